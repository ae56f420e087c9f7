"""``weir bench peers``: the command with peers of our own making, and the environments that it sets up.

The real peers are too heavy for a test suite; those that run here do so over few rows, in long tests.
"""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from weir.cli.main import main
from weir_evaluation import jars
from weir_evaluation.bench import peers
from weir_evaluation.bench.peers import environment, measure, show
from weir_evaluation.bench.peers.environment import Unavailable, compiled, prepared
from weir_evaluation.bench.peers.runners import jvm
from weir_evaluation.bench.peers.systems import System, all_systems

QUIET = Console(file=io.StringIO())
FEW = "--rows 4000 --payload 0 --warm-up 1 --batches 4"
KEYS = {"system", "version", "payload", "rows_per_s", "cpu_s_per_million", "peak_mb"}

HONEST = """
import time, told, pyarrow.parquet as pq
order = told.job()
passed, totals = told.Passed(order["work"]), {"A": {}, "B": {}}
for path in order["files"]:
    rows = pq.read_table(path)
    for operator, column in (("A", "k1"), ("B", "k2")):
        for key in rows[column].to_pylist():
            totals[operator][key] = totals[operator].get(key, 0) + 1
    time.sleep(0.05)
    passed.add(len(rows))
    passed.note()
BEFORE_THE_END
for operator, counts in totals.items():
    told_counts = told.Counts(order["work"], operator)
    for key, count in counts.items():
        told_counts.add(key, count)
told.detail(order["work"], exchanged_bytes=order["rows"] * 3)
"""


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """``weir bench peers --json`` with peers that are given as what they do before they tell their counts."""

    def run(*options, **behaviours):
        fakes = {}
        for name, behaviour in behaviours.items():
            runner = tmp_path / f"{name}.py"
            runner.write_text(HONEST.replace("BEFORE_THE_END", behaviour))
            fakes[name] = System(name, "1.0", runner, "none", needs_java=False)
        monkeypatch.setattr(peers, "all_systems", lambda: fakes)
        code = main(["bench", "peers", "--json", *FEW.split(), *options])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return run


def test_a_peer_is_measured_and_its_counts_are_checked(command):
    code, rows, _ = command(fake="")
    assert code == 0
    (row,) = rows
    assert row.keys() >= KEYS
    assert row["system"] == "fake"
    assert row["payload"] == 0
    assert "error" not in row
    # four batches of two files with 0.05 s of sleep each follow the warm-up
    assert 1_000 < row["rows_per_s"] < 16_000 / 0.4
    assert row["cpu_s_per_million"] >= 0
    assert row["peak_mb"] > 5
    assert row["rows"] == 20_000
    assert row["exchanged_bytes_per_row"] == 3


def test_peers_that_fail_are_listed_with_the_reason_and_do_not_stop_the_others(command):
    code, rows, err = command(
        "--timeout",
        "20",
        wrong="totals['B']['b-1'] += 1",
        lost="passed.add(1); passed.note()",
        broken="raise ValueError('no such [thing]')",
        good="",
    )
    assert code == 1
    errors = {row["system"]: row.get("error") for row in rows}
    assert "wrong result: 1 of 2,000 counts of B differ, e.g. 'b-1'" in errors["wrong"]
    assert "20,001 rows came through the last operator, not 20,000" in errors["lost"]
    assert "exit code 1" in errors["broken"]
    assert "no such [thing]" in errors["broken"]
    assert errors["good"] is None
    assert all(row.keys() >= KEYS for row in rows)
    assert "broken" in err
    shown = io.StringIO()
    show(rows, Console(file=shown, width=200))
    assert "wrong result" in shown.getvalue()
    assert "no such [thing]" in shown.getvalue()


def test_a_peer_that_takes_too_long_is_ended(command):
    code, rows, _ = command("--timeout", "3", slow="time.sleep(600)")
    assert code == 1
    assert rows[0]["error"] == "not done within 3 s"


def test_names_are_checked_before_any_work(command):
    code, rows, err = command("--only", "gud", good="")
    assert code == 1
    assert rows is None
    assert "no such system; did you mean 'good'?" in err
    code, rows, err = command("--cores", "100000", good="")
    assert code == 1
    assert "ask for that many at most" in err
    _, rows, _ = command("--only", "good", good="", other="raise SystemExit(1)")
    assert [row["system"] for row in rows] == ["good"]


def test_all_systems_say_what_they_promise():
    listed = all_systems()
    ours, jvm = ["weir-table", "weir-files", "weir-hash"], ["flink-heap", "flink-rocksdb", "kafka-streams"]
    jvm += ["storm-fields", "storm-partial", "storm-local"]
    assert list(listed) == [*ours, "spark", "flink", *jvm, "bytewax"]
    for system in listed.values():
        if system.java:  # what is said is what is fetched
            project = (jars.PROJECTS / "peers" / f"{system.java}.xml").read_text()
            assert f"<version>{system.version}</version>" in project
        assert system.guarantee
        assert system.note
        assert "import weir" not in system.runner.read_text() or system.name.startswith("weir")


def test_environments_are_made_once_and_failures_have_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert environment.cache() == tmp_path / "cache" / "weir" / "peers"
    with pytest.raises(Unavailable, match="could not install peer==9: .*peer==9"):
        prepared("peer-1", ["peer==9"], QUIET)
    wheel = tmp_path / "peer-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("peer.py", "answer = 42")
        info = "peer-1.0.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: peer\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(info + "WHEEL", tags)
        archive.writestr(info + "RECORD", "")
    # the folder of the failed attempt must not pass for an environment
    python = prepared("peer-1", [str(wheel)], QUIET)
    said = subprocess.run([python, "-c", "import peer; print(peer.answer)"], capture_output=True, text=True)
    assert said.stdout == "42\n"
    no_weir = subprocess.run([python, "-I", "-c", "import weir"], capture_output=True, text=True)
    assert "No module named 'weir'" in no_weir.stderr
    made = (python.parents[1] / environment.STAMP).stat().st_mtime_ns
    assert prepared("peer-1", [str(wheel)], QUIET) == python
    assert (python.parents[1] / environment.STAMP).stat().st_mtime_ns == made


def test_a_java_peer_is_compiled_once_and_says_why_it_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "JAVA", tmp_path / "java")
    (tmp_path / "java" / "peer").mkdir(parents=True)
    source = tmp_path / "java" / "peer" / "Peer.java"
    monkeypatch.setattr(jars, "fetch", lambda name: tmp_path / "jars")
    calls = tmp_path / "calls"
    javac = tmp_path / "bin" / "javac"
    javac.parent.mkdir()
    javac.write_text(
        f"#!/bin/sh\necho called >> {calls}\n"
        'for last in "$@"; do :; done\ngrep -q class "$last" || { echo "Peer.java:1: no class" >&2; exit 1; }\n'
        f"mkdir -p {tmp_path}/cache/weir/peers/java-peer\n"
    )
    javac.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    source.write_text("nothing")
    with pytest.raises(Unavailable, match=r"javac: Peer.java:1: no class"):
        compiled("peer", QUIET)
    source.write_text("class Peer {}")
    compiled("peer", QUIET)
    compiled("peer", QUIET)
    assert calls.read_text().count("called") == 2
    source.write_text("class Peer { int n; }")
    compiled("peer", QUIET)
    assert calls.read_text().count("called") == 3
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(Unavailable, match="there is no javac: install a JDK"):
        environment.tool("javac")

    def no_maven(name):
        raise jars.NoJars("no jars of peers/peer: there is no mvn here")

    monkeypatch.setattr(jars, "fetch", no_maven)
    with pytest.raises(Unavailable, match="there is no mvn here"):
        compiled("peer", QUIET)


def test_what_java_reads_has_the_rows_of_the_parquet_files(tmp_path):
    table = pa.table(
        {"k1": ["a-1", "a-22", "a-3"], "k2": ["b-1", "b-2", "b-3"], "payload": [b"", b"\0\n", b"x"]}
    )
    pq.write_table(table, tmp_path / "00000.parquet", row_group_size=2)
    order = {"data": str(tmp_path), "files": [str(tmp_path / "00000.parquet")]}
    (path,) = jvm.blocks(order)
    said, at, rows = Path(path).read_bytes(), 0, []
    while at < len(said):
        n, columns = int.from_bytes(said[at : at + 4], "little"), []
        at += 4
        for _ in range(3):
            ends = np.frombuffer(said, np.int32, n + 1, at)
            at += ends.nbytes
            columns.append([said[at + begin : at + end] for begin, end in itertools.pairwise(ends)])
            at += ends[-1]
        rows += zip(*columns, strict=True)
    assert rows == [(b"a-1", b"b-1", b""), (b"a-22", b"b-2", b"\0\n"), (b"a-3", b"b-3", b"x")]
    assert jvm.blocks(order) == [path]


def test_a_peer_that_cannot_be_installed_is_reported(command, monkeypatch, tmp_path, capsys):
    def refuse(name, requirements, console):
        raise Unavailable(f"pip could not install {requirements[0]}: no wheel")

    monkeypatch.setattr("weir_evaluation.bench.peers.systems.prepared", refuse)
    fake = System("gone", "2", Path("gone.py"), "none", requirements=("gone==2",), needs_java=False)
    monkeypatch.setattr(peers, "all_systems", lambda: {"gone": fake})
    assert main(["bench", "peers", "--json", "--payload", "0", "--payload", "1000"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [(row["payload"], row["error"]) for row in rows] == [
        (payload, "pip could not install gone==2: no wheel") for payload in (0, 1000)
    ]


def test_without_java_a_peer_says_so(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unavailable, match="no Java"):
        all_systems()["flink"].python(QUIET)


def test_the_clock_starts_when_the_warm_up_is_through():
    samples = [(0.0, 0.0), (10.0, 20.0)]
    # a note may carry the count beyond the warm-up; what came with it is not counted
    told = measure.figures([(1.0, 60), (2.0, 60), (4.0, 80)], samples, 100, 200)
    assert told == {"seconds": 2.0, "rows_per_s": 40.0, "cpu_s_per_million": 50_000.0}
    with pytest.raises(Unavailable, match="too few rows"):
        measure.figures([(1.0, 200)], samples, 100, 200)
    with pytest.raises(Unavailable, match="0 rows"):
        measure.figures([], samples, 100, 200)


@pytest.mark.long
def test_weir_itself_over_few_rows(capsys):
    few = "--only weir-table --rows 3000 --warm-up 1 --batches 2 --payload 100 --keys 50"
    assert main(["bench", "peers", "--json", *few.split()]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rows"] == 9_000
    assert row["rows_per_s"] > 0
    assert row["cpu_s_per_million"] > 0
    assert row["exchanged_bytes"] > 9_000 * 100  # every row's payload crosses the first exchange


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, system in all_systems().items() if system.java])
def test_a_peer_in_java_over_few_rows(name, capsys):
    few = f"--only {name} --rows 5000 --warm-up 1 --batches 3 --payload 100 --keys 50"
    assert main(["bench", "peers", "--json", *few.split()]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rows"] == 20_000
    assert row["rows_per_s"] > 0
    assert row["cpu_s_per_million"] > 0
