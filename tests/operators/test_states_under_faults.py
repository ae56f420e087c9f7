"""Every kind of state is what plain Python makes of it, under kills, moves, scaling, merging and restarts."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.engine.inspect.inspection import inspect
from weir.errors import OperatorError
from weir.operators.process import parts, process_instance
from weir.testing import run, start

SCHEMA = "k string, n long"
LAST = 7


@dataclass
class Tally:
    rows: int = 0
    total: int = 0


@dataclass
class Inner:
    most: int = -1


@dataclass
class Mixed:
    by_rest: dict[int, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    inner: Inner = field(default_factory=Inner)


@dataclass
class Parts:
    last: weir.ListState[int] = field(default_factory=weir.ListState)
    counts: weir.MapState[str, int] = field(default_factory=weir.MapState)


def tally(key, rows, state):
    state.rows += len(rows)
    state.total += sum(row.n for row in rows)


def mix(key, rows, state):
    for row in rows:
        state.by_rest[row.n % 3] = state.by_rest.get(row.n % 3, 0) + 1
        state.seen.add(f"s{row.n % 5}")
        state.inner.most = max(state.inner.most, row.n)


def keep(key, rows, state):
    for row in rows:
        state.last.append(row.n)
        if len(state.last) > LAST:
            state.last.popleft()
        name = f"c{row.n % 4}"
        state.counts[name] = state.counts.get(name, 0) + 1
        if row.n % 11 == 0:
            state.counts.pop("c1", None)


def add(batch):
    rows = batch.state("rows", 0) + np.diff(batch.offsets)
    return {
        "rows": rows,
        "total": batch.state("total", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1]),
    }


def merge_tallies(one, other):
    return Tally(one.rows + other.rows, one.total + other.total)


def merge_columns(one, other):
    return {name: pc.add(one[name], other[name]) for name in ("rows", "total")}


def application(split):
    """Return an application with an operator for each kind of state."""
    rows = weir.source(SCHEMA)
    if split:
        routing = weir.PartialKey()
        return weir.Application(
            rows.process("k", tally, state=Tally, merge=merge_tallies, name="tally", routing=routing),
            rows.process_batch(
                "k", add, state="rows long, total long", merge=merge_columns, name="columns", routing=routing
            ),
        )
    return weir.Application(
        rows.process("k", tally, state=Tally, name="tally"),
        rows.process("k", mix, state=Mixed, name="mixed"),
        rows.process("k", keep, state=Parts, order_by="n", name="parts"),
        rows.process_batch("k", add, state="rows long, total long", name="columns"),
    )


def truth(batches):
    """Return the states of all operators, by plain Python."""
    out = {}
    for key in {k for batch in batches for k, _ in batch}:
        numbers = [n for batch in batches for n in sorted(n for k, n in batch if k == key)]
        last, counts = deque(maxlen=LAST), Counter()
        for n in numbers:
            last.append(n)
            counts[f"c{n % 4}"] += 1
            if n % 11 == 0:
                counts.pop("c1", None)
        out["tally", key] = out["columns", key] = {"rows": len(numbers), "total": sum(numbers)}
        out["mixed", key] = {
            "by_rest": {str(k): v for k, v in Counter(n % 3 for n in numbers).items()},
            "seen": sorted({f"s{n % 5}" for n in numbers}),
            "inner": {"most": max(numbers)},
        }
        out["parts", key] = {"last": list(last), "counts": dict(counts)}
    return out


def states(query):
    out = {}
    for name in query.topology.by_name:
        for state in dicts(query.state(name)):
            key = state.pop("k")
            out[name, key] = {c: json.loads(v) if isinstance(v, str) else v for c, v in state.items()}
            if "seen" in state:
                out[name, key]["seen"].sort()
    return out


KEYS = st.sampled_from("abcdefgh")
STORY = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, st.integers(0, 99)), max_size=25),
        st.sampled_from([None, None, "out", "in", "restart", "fewer", "reconfigure"]),
    ),
    min_size=2,
    max_size=7,
)
CRASHES = st.lists(
    st.tuples(st.sampled_from(["plan-written", "job-done", "commit-written"]), st.integers(0, 6)), max_size=3
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    STORY, CRASHES, st.booleans(), st.sampled_from(["jobs", "jobs", "live"]), st.sampled_from([0, 12, 1024])
)
def test_every_kind_of_state_is_that_of_plain_python(story, crashes, split, execution, small):
    patch = pytest.MonkeyPatch()
    patch.setattr(parts, "SMALL", small)
    patch.setattr(process_instance, "AT_ONCE", 3)
    faults = [*sorted({f"{point}:{batch}" for point, batch in crashes}), "step-started:101"]
    learns = {} if split else {"routing": weir.Locality(period=None, forecast=None)}
    with tempfile.TemporaryDirectory() as folder, patch.context():
        query = start(application(split), folder, servers=2, execution=execution, faults=faults, **learns)
        fed = []
        for batch, action in story:
            query.feed([{"k": k, "n": n} for k, n in batch])
            fed.append(batch)
            if action in ("out", "in") and query._driver.load.rates():
                if action == "out":
                    query.scale_out(1)
                elif query.topology.servers > 1:
                    query.scale_in(1)
            elif action == "reconfigure" and not split:
                query.reconfigure(wait=True)
            elif action in ("restart", "fewer"):
                query.restart(**({"servers": 1} if action == "fewer" else {}))
        query.finish()
        expected = {at: s for at, s in truth(fed).items() if at[0] in query.topology.by_name}
        assert states(query) == expected
        assert inspect(folder)["health"]["ok"]
        query.stop()
    patch.undo()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: setattr(state, "total", 1.7), "Expected `int`, got `float`"),
        (lambda state: setattr(state, "total", "7"), "Expected `int`, got `str`"),
        (lambda state: setattr(state, "total", None), "Expected `int`, got `None`"),
        (lambda state: setattr(state, "other", 1), "declares no 'other'"),
        (lambda state: setattr(state, "total", 1 << 70), "Integer value out of range|exceeds 64 bits|can't"),
    ],
)
def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_saved(change, why):
    def spoil(key, rows, state):
        state.rows += 1
        if key == "b":
            change(state)

    rows = [[{"k": k, "n": 1} for k in "abc"]]
    app = weir.source(SCHEMA).process("k", spoil, state=Tally, name="t")
    with pytest.raises(OperatorError, match=f"operator 't', key 'b': .*({why})"):
        run(app, rows, servers=1)
    app = weir.source(SCHEMA).process("k", spoil, state=Tally, name="t", on_error="divert")
    query = run(app, rows, servers=1)
    assert sorted(s["k"] for s in dicts(query.state("t"))) == ["a", "c"]
    assert [letter["key"] for letter in dicts(query.dead_letters)] == ["b"]


@pytest.mark.parametrize("small", [0, 1024])
def test_so_is_an_element_that_could_not_be_read_again(small, monkeypatch):
    monkeypatch.setattr(parts, "SMALL", small)

    def spoil(key, rows, state):
        state.last.append(1.5 if key == "b" else 1)
        if key == "c":
            state.counts = {"x": 1}

    app = weir.source(SCHEMA).process("k", spoil, state=Parts, name="t", on_error="divert")
    query = run(app, [[{"k": k, "n": 1} for k in "abc"]], servers=1)
    assert [(s["k"], s["last"]) for s in dicts(query.state("t"))] == [("a", "[1]")]
    errors = {letter["key"]: letter["error"] for letter in dicts(query.dead_letters)}
    assert "Expected `int`, got `float`" in errors["b"]
    assert "counts is a dict; change it in place, or assign a weir.MapState" in errors["c"]


def test_a_list_or_map_may_be_put_in_the_place_of_another(monkeypatch):
    monkeypatch.setattr(parts, "SMALL", 8)

    def replace(key, rows, state):
        numbers = [row.n for row in rows]
        if min(numbers) < 0:
            state.last, state.counts = weir.ListState(numbers), weir.MapState({"new": len(numbers)})
        for n in numbers:
            state.last.append(n)
            state.counts[str(n)] = 1

    app = weir.source(SCHEMA).process("k", replace, state=Parts, order_by="n", name="t")
    with start(app, servers=1) as query:
        query.feed([{"k": "a", "n": n} for n in range(20)])
        query.feed([{"k": "a", "n": -1}])
        (state,) = dicts(query.state("t"))
        assert json.loads(state["last"]) == [-1, -1]
        assert json.loads(state["counts"]) == {"new": 1, "-1": 1}


def test_what_has_not_changed_is_not_written():
    def look(key, rows, state):
        state.rows = max(state.rows, 5)

    with start(weir.source(SCHEMA).process("k", look, state=Tally, name="t"), servers=1) as query:
        query.feed([{"k": k, "n": 1} for k in "abc"])
        assert query.progress.state_bytes_written > 0
        query.feed([{"k": k, "n": 2} for k in "abc"])
        assert query.progress.state_bytes_written == 0
        query.feed([{"k": k, "n": 2} for k in "cd"])
        assert query.progress.state_bytes_written > 0
        assert len(dicts(query.state("t"))) == 4
