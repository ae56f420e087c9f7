"""``weir run``: what it is told and by whom, what it checks, and how signals end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
import weir.testing
from weir.cli.configuration import imported, read
from weir.cli.main import main
from weir.engine.checkpoint import CheckpointLayout
from weir.errors import ConfigurationError
from weir.locality.config import Costs
from weir.state.storage import Storage

FILE = """\
checkpoint = "ckpt"
servers = 8
trigger = { processingTime = "2 seconds" }

[routing]
name = "locality"
period = 20
forecast = { confidence = 2.0 }

[[sinks]]
name = "parquet"
path = "out/topics"
operator = "topics"

[[sinks]]
name = "parquet"
path = "out/places"
shared = true
operator = "places"

[autoscale]
target_lag = 10
max = 8

[spark]
master = "local[2]"
executor.memory = "2g"
"spark.sql.ansi.enabled" = true
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Returns the configuration that a file, variables and settings make, and checks it."""
    monkeypatch.chdir(tmp_path)

    def tell(text=FILE, environment=(), settings=()):
        Path("weir.toml").write_text(text)
        return read("weir.toml", dict(environment), list(settings))

    return tell


def test_every_kind_of_value_has_a_place_in_the_file(told):
    config = told()
    options = config.options()
    assert (options.servers, options.trigger) == (8, {"processingTime": "2 seconds"})
    assert options.routing == weir.Locality(period=20, forecast=Costs(confidence=2.0))
    assert options.autoscale == weir.Autoscale(target_lag=10, max=8)
    assert {name: [repr(s) for s in sinks] for name, sinks in options.sink.items()} == {
        "topics": ["Parquet('out/topics')"],
        "places": ["Parquet('out/places')"],
    }
    assert options.sink["places"][0].shared is True
    assert config.own("checkpoint") == "ckpt"
    assert config.spark() == {
        "spark.master": "local[2]",
        "spark.executor.memory": "2g",
        "spark.sql.ansi.enabled": "true",
    }


def test_the_environment_is_over_the_file_and_settings_are_over_both(told):
    environment = {"WEIR_SERVERS": "6", "WEIR_ROUTING__PERIOD": "50", "WEIR_CACHE_MB": "9", "HOME": "/"}
    config = told(environment=environment)
    assert (config.options().servers, config.options().routing.period) == (6, 50)
    config = told(environment=environment, settings=[("servers", "auto"), ("routing.period", "none")])
    assert (config.options().servers, config.options().routing.period) == ("auto", None)
    config = told(environment={"WEIR_ROUTING": "hash"}, settings=[("spark.executor.memory", "3g")])
    assert (config.options().routing, config.spark()["spark.executor.memory"]) == (weir.Hash(), "3g")
    assert told(environment={"WEIR_MASTER": "spark://here:1"}).spark()["spark.master"] == "spark://here:1"
    config = told('checkpoint = "c"\nrouting = "locality"', settings=[("routing.alpha", "1.5")])
    assert config.options().routing == weir.Locality(alpha=1.5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("servers = 8", "server = 8"), "weir.toml, line 2: no option 'server'; did you mean 'servers'?"),
        (("servers = 8", "servers = 0"), "weir.toml, line 2: servers=0: expected a whole number"),
        (
            ("period = 20", "perod = 20"),
            "weir.toml, line 7: Locality takes no 'perod'; did you mean 'period'?",
        ),
        (("period = 20", 'period = "20"'), "weir.toml, line 7: period='20' of Locality: Expected `int"),
        (("period = 20", "alpha = 0.5"), "weir.toml, line 7: alpha=0.5: no server can stay"),
        (('"locality"', '"localty"'), "weir.toml, line 6: name='localty': no grouping of ours; did you mean"),
        (
            ("shared = true", "shred = true"),
            "weir.toml, line 18: Parquet takes no 'shred'; did you mean 'shared'?",
        ),
        (('path = "out/places"\n', ""), "weir.toml, line 15: Parquet needs path"),
        (
            ('name = "parquet"\npath = "out/p', 'name = "parqet"\npath = "out/p'),
            "line 16: name='parqet': no sink",
        ),
        (('operator = "places"\n', ""), 'weir.toml, line 10: say operator = "…" for every sink, or for none'),
        (("max = 8", "max = 0"), "weir.toml, line 21: Autoscale needs 1 ≤ min ≤ max"),
        (("servers = 8", "servers = = 8"), "weir.toml: no TOML: Invalid value \\(at line 2"),
        (('checkpoint = "ckpt"', ""), "no checkpoint: say where"),
        (("servers = 8", 'log = "yaml"'), "weir.toml, line 2: log='yaml': known: 'json', 'text'"),
    ],
)
def test_a_mistake_is_refused_with_its_place_and_the_remedy(told, change, says):
    assert change[0] in FILE
    with pytest.raises(ConfigurationError, match=says):
        told(FILE.replace(*change)).options()


def test_variables_and_settings_that_are_mistaken_are_named(told):
    with pytest.raises(
        ConfigurationError, match=r"\$WEIR_SERVRES: no option 'servres'; did you mean 'servers'"
    ):
        told(environment={"WEIR_SERVRES": "3"})
    told(
        environment={"WEIR_SERVICE_HOST": "10.0.0.1", "WEIR_PORT_80_TCP": "tcp://"}
    )  # as Kubernetes sets them
    with pytest.raises(ConfigurationError, match=r"\$WEIR_RETAIN: retain='many': expected a whole number"):
        told(environment={"WEIR_RETAIN": "many"}).options()
    with pytest.raises(ConfigurationError, match="routing.alfa=2: Locality takes no 'alfa'"):
        told(settings=[("routing.alfa", "2")]).options()
    with pytest.raises(ConfigurationError, match="'servers' is no table"):
        told(settings=[("servers.most", "2")])
    with pytest.raises(ConfigurationError, match="nowhere.toml: the configuration cannot be read"):
        read("nowhere.toml", {}, [])


OWN = """\
import weir
import weir.sinks

class Slack(weir.sinks.Sink):
    def __init__(self, channel: str):
        self.channel = channel
    def deliver(self, delivery):
        pass

topics = weir.kafka("127.0.0.1:1", "posts", "place string, topic string").count("topic", name="topics")
app = weir.Application(topics)
number = 7
"""


def test_check_looks_at_all_that_needs_no_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    Path("weir_own_app.py").write_text(OWN)
    Path("weir.toml").write_text(
        'checkpoint = "ckpt"\n[[sinks]]\nname = "weir_own_app:Slack"\nchannel = "#a"\n'
    )
    command = ["run", "weir_own_app.py:app", "--config", "weir.toml", "--check"]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["checked"][1].startswith("the application: kafka, topics")
    assert not Path("ckpt").exists()
    for change, says in (
        (["--set", "sinks=none", "--set", 'late="out/"'], "late= is for one operator, and there are 0"),
        (["--set", 'sinks=[{name="weir_own_app:Slack", chanel="#a"}]'], "Slack takes no 'chanel'"),
        (["--set", "servers"], "--set servers: expected NAME=VALUE"),
        (["--grace", "soon"], "grace=soon: cannot read the duration 'soon'"),
        (["--keep-open"], "keep_open=true: keep_open is for sources that end"),
        (["--set", "keep_open=maybe"], "keep_open=maybe: keep_open='maybe': expected true or false"),
    ):
        assert main([*command, *change]) == 2
        assert says in capsys.readouterr().err
    for app, says in (
        ("weir_own_app.py:number", "expected an application, or a function that takes a SparkSession"),
        ("weir_own_app.py:topic", "weir_own_app has no 'topic'; did you mean 'topics'?"),
        ("weir_own_app.py", "expected app.py:NAME or package.module:NAME"),
        ("nowhere.py:app", "nowhere.py: there is no such file"),
        ("weir_no_such_module:app", "there is no module 'weir_no_such_module'"),
    ):
        assert main(["run", app, *command[2:]]) == 2
        assert says in capsys.readouterr().err
    # another key than the checkpoint has
    with weir.testing.start(weir.source("n long").count("n", name="topics"), "ckpt", servers=2) as query:
        query.feed([{"n": 1}])
    assert main(command) == 2
    assert "operator 'topics'" in capsys.readouterr().err


def test_a_file_that_fails_runs_again_when_it_is_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "weir_fails_once.py"
    file.write_text("ready = True\nraise RuntimeError('no connection')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no connection"):
            imported(f"{file}:ready")
    assert file.stem not in sys.modules


APP = """\
import os, time
import helper
import weir

def gate(row):
    open("reached", "w").close()
    while not os.path.exists("open"):
        time.sleep(0.02)
    return helper.keep(row)

def app(spark):
    posts = spark.readStream.schema("place string, n long").option("maxFilesPerTrigger", 1).parquet("posts")
    return weir.source(posts).filter(gate).count("place", name="places")
"""
CONFIG = """\
checkpoint = "ckpt"
servers = 2
execution = "jobs"
sink = "out"
log = "json"
[spark]
master = "local[2]"
driver.memory = "1g"
"""


@pytest.mark.long
def test_a_signal_lets_the_batch_end_or_cuts_it_off_and_nothing_is_lost(tmp_path):
    """A start that is cut off by its bound, one that is told to stop in a batch, and one that goes to the end."""
    (tmp_path / "posts").mkdir()
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "helper.py").write_text("def keep(row):\n    return row.n % 3 != 0\n")
    (tmp_path / "weir.toml").write_text(CONFIG)
    for number in range(3):
        rows = pa.table({"place": [f"p{i % 5}" for i in range(100)], "n": range(number, number + 100)})
        pq.write_table(rows, tmp_path / "posts" / f"{number}.parquet")
        os.utime(tmp_path / "posts" / f"{number}.parquet", (1_000_000 + number,) * 2)

    @contextlib.contextmanager
    def service(*more):
        command = [sys.executable, "-m", "weir.cli.main", "run", "app.py:app", "--config", "weir.toml", *more]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
            try:
                yield child
            finally:
                child.kill()

    def until_in_a_batch(child):
        while not (tmp_path / "reached").exists():
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.05)
        (tmp_path / "reached").unlink()

    def last():
        commit = CheckpointLayout(Storage(str(tmp_path / "ckpt"))).latest_commit()
        return None if commit is None else commit.batch

    with service("--grace", "0.1s") as child:
        until_in_a_batch(child)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        assert child.wait() == 130
    assert "it runs again with the next start" in said
    assert "Traceback" not in said
    assert last() is None

    with service("--grace", "10 min") as child:
        until_in_a_batch(child)
        child.send_signal(signal.SIGTERM)
        lines = [json.loads(child.stderr.readline())]
        while "stops after the batch under way" not in lines[-1]["message"]:
            lines.append(json.loads(child.stderr.readline()))
        (tmp_path / "open").touch()
        rest = child.stderr.read().splitlines()
        assert child.wait() == 0
    assert last() == 0
    assert [json.loads(line)["message"].split(": ")[1] for line in rest] == ["ended"]
    assert {line["query"] for line in lines} == {str(tmp_path / "ckpt")}
    assert len(_latest(tmp_path / "out")) == 5  # it was delivered, too

    with service("--set", "trigger={availableNow = true}") as child:
        said = child.stderr.read()
        assert child.wait() == 0, said
    counts = {row["place"]: row["count"] for row in _latest(tmp_path / "out")}
    kept = [f"p{i % 5}" for number in range(3) for i in range(100) if (number + i) % 3]
    assert (last(), counts) == (2, Counter(kept))


def _latest(folder):
    """Return the rows of all batches, oldest first: a later one of a key replaces it."""
    files = sorted(folder.rglob("*.parquet"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
