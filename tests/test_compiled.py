"""Compiled ahead: every function declares its types, one call compiles all, and no query compiles in mid-stream."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numba.core import event

import weir
import weir.testing
from weir import compiled
from weir.compiled import MODULES, declared
from weir_evaluation import routing as rivals

ROOT = Path(compiled.__file__).parent
ROWS = pa.table(
    {
        "place": [f"p{i % 7}" for i in range(400)],
        "topic": [f"t{i % 11}" for i in range(400)],
        "n": pa.array([i % 5 for i in range(400)], pa.int64()),
        "at": pa.array([i * 1_000_000 for i in range(400)], pa.timestamp("us", "UTC")),
    }
)
SCHEMA = "place string, topic string, n long, at timestamp"


@pytest.fixture(scope="module")
def everything_compiled():
    compiled.compile_all()


class Compilations(event.Listener):
    """What numba compiles while this listens."""

    def __init__(self):
        self.names = []

    def on_start(self, event):
        self.names.append(event.data["dispatcher"].py_func.__qualname__)

    def on_end(self, event):
        pass


def compiled_by(action):
    listener = Compilations()
    with event.install_listener("numba:compile", listener):
        action()
    return listener.names


def test_every_module_with_compiled_functions_is_listed():
    decorated = re.compile(r"^@compiled\(", re.MULTILINE)
    found = {
        "weir." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.rglob("*.py")
        if decorated.search(path.read_text())
    }
    assert found == set(MODULES)


def test_numba_compiles_nothing_that_is_not_declared():
    plain = re.compile(r"nb\.(n?jit|vectorize|guvectorize)\b")
    found = [path.name for path in ROOT.rglob("*.py") if plain.search(path.read_text())]
    assert found == ["compiled.py"]


GROUPINGS = {
    repr(grouping)[:40]: grouping
    for grouping in (
        weir.Hash(),
        weir.PartialKey(),
        weir.Consistent(),
        weir.Weighted(weir.PartialKey()),
        rivals.RandomChoices(),
        rivals.TwoChoices(),
        rivals.BoundedRing(),
        rivals.DChoices(),
        rivals.WChoices(),
        rivals.HeavyKeys.learn(np.arange(100, dtype=np.uint64) % 7, 3),
        weir.Locality(period=1),
        weir.Locality(period=1, look_ahead=True),
    )
}


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.usefixtures("everything_compiled")
def test_no_grouping_compiles_in_mid_stream(name):
    source = weir.source(SCHEMA)
    counts = source.keyed("place", weir.Count(emit="rows"), name="places")
    app = counts.keyed("topic", weir.Count(), name="topics", routing=GROUPINGS[name])
    assert compiled_by(lambda: weir.testing.run(app, [ROWS] * 4, servers=3)) == []


def apps():
    source = weir.source(SCHEMA)
    timed = source.event_time("at", lateness="1 minute", ahead=None)
    total = weir.Aggregate(
        n="count", total="sum(n)", least="min(n)", users="approx_distinct(topic)", last="last(n, at)"
    )
    yield "aggregate", source.keyed("place", total)
    yield (
        "windows",
        timed.keyed("place", weir.Aggregate(total="sum(n)"), window=weir.tumbling("at", "1 minute")),
    )
    yield "sessions", timed.keyed("place", weir.Count(), window=weir.session("at", "2 minutes"))
    yield "deduplicate", timed.deduplicate("place", within="10 seconds")
    yield "number keys", source.keyed("n", weir.Count())
    yield "time keys", source.keyed("at", weir.Count())


APPS = dict(apps())


@pytest.mark.parametrize("name", APPS)
@pytest.mark.usefixtures("everything_compiled")
def test_no_operator_compiles_in_mid_stream(name):
    assert compiled_by(lambda: weir.testing.run(APPS[name], [ROWS] * 3, servers=2)) == []


def environment(folder: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    return inherited | {"NUMBA_CACHE_DIR": str(folder)}


SOME = "weir.hashing", "weir.state.index"


def test_processes_that_start_at_once_compile_each_function_once(tmp_path):
    program = (
        "from numba.core import event\n"
        "from weir.compiled import declared\n"
        f"functions = declared({SOME})\n"
        "with event.install_recorder('numba:compile') as recorder:\n"
        "    for function in functions: function.load()\n"
        "names = [e.data['dispatcher'].py_func.__qualname__ for _, e in recorder.buffer if e.is_start]\n"
        "import json; print(json.dumps(sorted(set(names) & {f.name.rsplit('.', 1)[1] for f in functions})))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    compiled_there = [name for p in processes for name in json.loads(p.communicate(timeout=120)[0])]
    assert sorted(compiled_there) == sorted(f.name.rsplit(".", 1)[1] for f in declared(SOME))


def test_a_damaged_file_is_compiled_again_and_read_only_folders_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "first"))
    [*functions] = declared(SOME)
    for function in functions:
        monkeypatch.setattr(function, "_loaded", False)  # as in a process that has not used it
    compiled.compile_all(SOME)
    path = functions[0]._cache.find(functions[0].signatures[0])
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1])
    assert (
        functions[0]._cache.load_overload(functions[0].signatures[0], compiled.cpu_target.target_context)
        is None
    )
    # what root has compiled into the package serves a user who may write only elsewhere
    monkeypatch.setattr(compiled, "folders", lambda: [tmp_path / "first" / "weir", tmp_path / "own"])
    monkeypatch.setattr(compiled, "writable", lambda: tmp_path / "own")
    assert functions[1]._cache.find(functions[1].signatures[0]).parent == tmp_path / "first" / "weir"


def test_folders_of_others_are_not_executed(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.os, "getuid", lambda: 12345)
    tmp_path.chmod(0o777)
    os.chown(tmp_path, 54321, -1) if os.geteuid() == 0 else pytest.skip("needs root to give a folder away")
    assert not compiled._ours(tmp_path)
    os.chown(tmp_path, 0, -1)
    assert compiled._ours(tmp_path)


def test_the_command_compiles_and_says_where(tmp_path):
    command = [sys.executable, "-m", "weir.cli.main", "compile", "--json", "--cache", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["compiled"] == result["functions"] == len(declared(MODULES))
    assert result["folder"] == str(tmp_path / "weir")
    again = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
    assert again["compiled"] == 0


def test_without_the_compiler_functions_run_as_they_are_written(tmp_path):
    program = (
        "import numpy as np\n"
        "from weir.operators.deduplicate import _passing\n"
        "zeros, out = np.zeros(3, np.int64), np.zeros(3, np.bool_)\n"
        "_passing(zeros, np.array([0, 3, 6]), zeros[:1], zeros[:1], zeros[:0], 5, out)\n"
        "print(_passing.ready, out.tolist())\n"
    )
    there = environment(tmp_path) | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=there, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True [True, False, True]\n"
    assert not list(tmp_path.rglob("*.nbi"))
