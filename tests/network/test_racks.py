"""Racks from files, scripts, dicts and functions; wrong ones are refused with the place of the mistake."""

from __future__ import annotations

import os

import pytest

from weir import Racks
from weir.errors import TopologyError
from weir.network.distance import Distance, Place
from weir.network.locator import Locator, tree_of


def test_a_file_lists_hosts_and_their_racks(tmp_path):
    file = tmp_path / "racks"
    file.write_text("# our hosts\nhost-a  /row-1/rack-2\n\nhost-b /row-1/rack-3 # the new one\n")
    racks = Racks.from_file(file)
    assert racks.find(["host-b", "host-a", "host-c"]) == ["/row-1/rack-3", "/row-1/rack-2", "/default-rack"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host-a\n", "line 1: expected a host and a rack, got 'host-a'"),
        ("a /r1\nb /r1\na /r2\n", "line 3: host 'a' is in '/r2' and in '/r1'"),
    ],
)
def test_a_faulty_file_is_refused_with_the_line(tmp_path, text, message):
    file = tmp_path / "racks"
    file.write_text(text)
    with pytest.raises(TopologyError, match=message):
        Racks.from_file(file)


def script(tmp_path, text):
    path = tmp_path / "topology.sh"
    path.write_text("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def test_a_script_is_given_hosts_and_prints_racks_and_each_host_is_asked_for_once(tmp_path):
    calls = tmp_path / "calls"
    racks = Racks.from_script(
        script(tmp_path, f'echo "$@" >> {calls}\nfor h in "$@"; do echo /rack-${{h#host-}}; done\n')
    )
    assert racks.find(["host-1", "host-2", "host-1"]) == ["/rack-1", "/rack-2", "/rack-1"]
    assert racks["host-2"] == "/rack-2"
    assert calls.read_text().splitlines() == ["host-1 host-2"]
    assert len(racks.find([f"host-{i}" for i in range(250)])) == 250
    assert len(calls.read_text().splitlines()) == 1 + 3


def test_a_script_that_fails_or_says_too_little_is_refused(tmp_path):
    with pytest.raises(TopologyError, match="exit code 3: no idea"):
        Racks.from_script(script(tmp_path, "echo no idea >&2; exit 3\n"))["host-a"]
    with pytest.raises(TopologyError, match="1 racks for 2 hosts"):
        Racks.from_script(script(tmp_path, "echo /only-one\n")).find(["a", "b"])
    with pytest.raises(TopologyError, match="no such rack script"):
        Racks.from_script(tmp_path / "missing")
    with pytest.raises(TopologyError, match="names no rack for host 'a'"):
        Racks.of(lambda host: "")["a"]
    with pytest.raises(TopologyError, match="expected weir.Racks"):
        Racks.of(7)


def test_a_server_that_moves_is_known_to_be_elsewhere():
    locator = Locator(3, Racks.of({"a": "r", "b": "r", "c": "s"}))
    assert locator.places == []
    assert locator.update(dict.fromkeys(range(3), ("a", "a:1"))) == [0, 1, 2]
    assert locator.update({0: ("a", "a:1"), 2: ("c", "c:4")}) == [2]
    assert [Distance(d).name for d in locator.distances()[0]] == ["PROCESS", "NODE", "ANY"]
    locator.resize(4)
    assert not locator.complete
    locator.update({3: ("b", "b:1")})
    assert locator.distances()[0, 3] == Distance.RACK


def test_servers_nest_by_rack_host_and_process():
    four = [
        Place(f"{h}:{p}", h, r) for r, h, p in [("x", "a", 1), ("y", "b", 1), ("x", "a", 2), ("x", "c", 1)]
    ]
    assert tree_of(four) == [[[0, 2], 3], 1]
    assert tree_of([Place("1", "a"), Place("1", "a")]) is None
