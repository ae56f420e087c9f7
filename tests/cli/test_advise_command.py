"""``weir advise``: what it prints, plots and refuses. What it advises is tested in tests/advise."""

from __future__ import annotations

import json

import pytest

from recorded import planted, stream_of, write
from weir.advise import advise
from weir.cli.main import main

pytestmark = pytest.mark.usefixtures("few_starts")


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    return write(tmp_path_factory.mktemp("advise") / "communities.parquet", stream_of(*planted()))


@pytest.fixture
def line(communities):
    return ["advise", str(communities), "--keys", "place,topic", "--servers", "4", "--time", "time"]


def test_plot_and_printed_advice(line, tmp_path, capsys):
    plot = tmp_path / "plot.png"
    assert main([*line, "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert text.index("Start with this table") < text.index("how the last tenth")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_is_all_that_json_prints(line, communities, capsys):
    assert main([*line, "--json"]) == 0
    advised = advise(communities, keys=["place", "topic"], servers=4, time="time")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(advised))


def test_every_option_reaches_the_advice(line, communities, tmp_path, monkeypatch):
    received = {}

    def note(data, **options):
        received.update(options, data=data)
        raise KeyboardInterrupt  # enough is seen

    monkeypatch.setattr("weir.cli.advise.advise", note)
    out = str(tmp_path / "tables")
    options = {
        "operators": "places,topics",
        "merges": "topics",
        "alpha": 1.2,
        "sample": 2_000,
        "payload": 99.0,
        "capacity": 1_000,
        "out": out,
        "master": "local[1]",
        "seed": 3,
    }
    main([*line, *(word for name, value in options.items() for word in (f"--{name}", str(value)))])
    del received["progress"]
    given = {"data": str(communities), "keys": "place,topic", "servers": 4, "time": "time"}
    assert received == {**given, **options}


def test_mistakes_are_one_line(line, communities, tmp_path, capsys, monkeypatch):
    def refused(says, *words):
        assert main([*line, *map(str, words)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("weir: ")
        assert error.count("\n") == 1
        assert says in error

    refused("did you mean 'topic'", "--keys", "place,topik")
    refused("can't write there", "--out", communities / "below-a-file")
    refused("name a folder that exists", "--plot", tmp_path / "no" / "plot.png")
    refused("name a .png", "--plot", tmp_path / "plot.txt")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("pip install", "--plot", tmp_path / "plot.png")
