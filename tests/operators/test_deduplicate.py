"""One row of a key passes, those near it in time are dropped."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from support import dicts, rows_of
from weir.errors import TopologyError
from weir.flow import parts_of
from weir.testing import run, start

SCHEMA = "k string, n long, time timestamp"
ZERO = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ROW = st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 40))
BATCHES = st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5)


def batch(rows):
    return [{"k": k, "n": 0, "time": None if t is None else ZERO + dt.timedelta(seconds=t)} for k, t in rows]


def truth(batches, within, lateness):
    passed, out, late, watermark, newest = {}, [], 0, None, None
    for rows in batches:
        times = [t for _, t in rows if t is not None]
        for k, t in sorted(rows, key=lambda row: (row[0], -1 if row[1] is None else row[1])):
            if t is None or (watermark is not None and t < watermark):
                late += 1
            elif all(abs(t - other) >= within for other in passed.get(k, [])):
                passed.setdefault(k, []).append(t)
                out.append((k, t))
        newest = max([*times, *([] if newest is None else [newest])], default=None)
        if newest is not None:
            watermark = newest - lateness
    return sorted(out), late


@settings(max_examples=15)
@given(batches=BATCHES, within=st.integers(1, 12), lateness=st.integers(0, 20), faulty=st.booleans())
def test_it_passes_what_plain_python_passes(batches, within, lateness, faulty):
    app = weir.source(SCHEMA).deduplicate("k", within=within, time="time", lateness=lateness, name="d")
    faults = ["job-done:1", "commit-written:2"] if faulty else []
    query = run(app, [batch(b) for b in batches], servers=3, seed=5, faults=faults)
    rows = [(r["k"], round((r["time"] - ZERO).total_seconds())) for r in dicts(query.output("d"))]
    expected, late = truth(batches, within, lateness)
    assert sorted(rows) == expected
    if not faulty:  # a driver that starts again does not remember the progress of earlier batches
        assert sum(p.operators["d"].late for p in query.recent_progress) == late
    assert query.state("d").num_rows == 0


def test_what_passed_is_forgotten_when_the_watermark_is_past_it():
    app = weir.source(SCHEMA).deduplicate("k", within=10, time="time", name="d")
    query = start(app, servers=2)
    for number in range(12):
        query.feed(batch([("a", 20 * number), ("a", 20 * number + 1), (f"k{number}", 20 * number)]))
        assert query.progress.state_keys["d"] == query.state("d").num_rows <= 6
    assert query.output("d").num_rows == 24


def test_by_the_wall_clock():
    times = iter([100, 105, 112, 113])
    app = weir.source("k string, n long").deduplicate("k", within=10, name="d")
    query = start(app, servers=2, clock=lambda: next(times) * 1_000_000)
    for number, keys in enumerate(("aab", "ac", "abc", "b")):
        query.feed([{"k": k, "n": number} for k in keys])
    assert rows_of(query.output("d")) == [("a", 0), ("a", 2), ("b", 0), ("b", 2), ("c", 1)]
    assert query.progress.state_keys["d"] == query.state("d").num_rows == 3


def test_for_ever_also_across_restarts_and_scaling():
    app = weir.source("k string, n long").deduplicate("k", name="d")
    query = start(app, servers=2)
    for number in range(6):
        if number == 2:
            query.scale_out(2)
        if number == 4:
            query.restart(servers=3)
        query.feed([{"k": f"k{i}", "n": 0} for i in range(number, number + 20)] * 2)
    assert sorted(r["k"] for r in dicts(query.output("d"))) == sorted(f"k{i}" for i in range(25))


def test_what_cannot_be_is_refused():
    source = weir.source(SCHEMA)
    with pytest.raises(TopologyError, match="give within=, too"):
        source.deduplicate("k", time="time")
    with pytest.raises(TopologyError, match="must be positive"):
        source.deduplicate("k", within=0)
    with pytest.raises(TopologyError, match="not a timestamp"):
        parts_of(source.deduplicate("k", within=1, time="n")).topology(2)
    with pytest.raises(TopologyError, match="within= instead of ttl="):
        source.deduplicate("k", ttl=3)
