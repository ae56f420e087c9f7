"""The latest row of another stream before each row, beside plain Python and pandas."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.errors import CheckpointMismatch, TopologyError
from weir.testing import run, start

LEFT, RIGHT = "k string, n long, time timestamp", "k string, m long, at timestamp"
ZERO = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def at(second):
    return None if second is None else ZERO + dt.timedelta(seconds=second)


def second(time):
    return None if time is None else round((time - ZERO).total_seconds())


def batch(left, right):
    """Rows as ``(key, number, second)``."""
    return {
        "left": [{"k": k, "n": n, "time": at(t)} for k, n, t in left],
        "right": [{"k": k, "m": m, "at": at(t)} for k, m, t in right],
    }


def application(how="left", tolerance="5 s", lateness="3 s", first=False):
    left, right = weir.source(LEFT, "left"), weir.source(RIGHT, "right")
    if first:  # rows come from everywhere
        left, right = (
            s.count("k", emit="rows", name=f"{n} rows") for n, s in (("left", left), ("right", right))
        )
    times = {"time": ("time", "at"), "lateness": lateness}
    return left.join_asof(right, "k", tolerance=tolerance, how=how, name="joined", **times)


def truth(batches, how="left", tolerance=5, lateness=3):
    """Return what is emitted in the end, how many rows are late, and the rows that are not."""
    taken, seen, watermark, late, out = ([], []), [None, None], None, 0, []
    for sides in batches:
        for side, rows in enumerate(sides):
            good = [(k, n, t) for k, n, t in rows if t is not None and (watermark is None or t >= watermark)]
            late += len(rows) - len(good)
            taken[side].extend(good)
            times = [t for _, _, t in rows if t is not None]
            seen[side] = max([*times, *([] if seen[side] is None else [seen[side]])], default=None)
        if None not in seen:
            reached = min(seen) - lateness
            watermark = reached if watermark is None else max(watermark, reached)
    for k, n, t in taken[0]:
        before = [(at, m) for key, m, at in taken[1] if key == k and t - tolerance <= at <= t]
        if before or how == "left":
            time, number = max(before, default=(None, None))
            out.append((k, n, t, number, time))
    return Counter(out), late, taken


def emitted(query):
    rows = dicts(query.output("joined"))
    return Counter((r["k"], r["n"], second(r["time"]), r["m"], second(r["at"])) for r in rows)


def in_story(story):
    """Let time go on from batch to batch, and no two right rows have one time."""
    out, base, there = [], 0, set()
    for left, right, pause in story:
        shifted = [[(k, n, None if t is None else base + t) for k, n, t in side] for side in (left, right)]
        shifted[1] = [
            row for row in shifted[1] if (row[0], row[2]) not in there and not there.add((row[0], row[2]))
        ]
        out.append(tuple(shifted))
        base += pause
    return out


ROW = st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.none() | st.integers(0, 12))
SIDE = st.lists(ROW, max_size=10)
STORY = st.lists(st.tuples(SIDE, SIDE, st.integers(0, 9)), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    STORY,
    st.sampled_from(["left", "inner"]),
    st.sampled_from(["jobs", "live"]),
    st.lists(
        st.tuples(st.sampled_from(["job-done", "commit-written"]), st.integers(0, 5)), max_size=2, unique=True
    ),
    st.sampled_from([None, "restart", "out", "move"]),
)
def test_it_is_what_plain_python_says_whatever_happens(story, how, execution, crashes, between):
    batches = in_story(story)
    routing = weir.Locality(period=1, forecast=None) if between == "move" else None
    faults = [f"{point}:{number}" for point, number in crashes]
    app = application(how, first=True)
    with tempfile.TemporaryDirectory() as folder:
        query = start(app, folder, servers=2, seed=3, routing=routing, faults=faults, execution=execution)
        for number, rows in enumerate(batches):
            query.feed(batch(*rows))
            if between == "restart" and number == 1:
                query.restart(servers=3)
            elif between == "out" and number == 1 and query._driver.load.rates():
                query.scale_out(1)
        query.finish()
        expected, late, _ = truth(batches, how)
        assert emitted(query) == expected
        assert query.late("joined").num_rows == late
        assert query.state("joined").num_rows == query.progress.state_keys["joined"] == 0


def test_without_late_rows_it_is_merge_asof_of_pandas():
    rng = np.random.default_rng(7)
    times = [rng.integers(0, 900, 400).tolist(), rng.permutation(900)[:300].tolist()]
    left, right = ([(f"k{rng.integers(0, 9)}", i, t) for i, t in enumerate(side)] for side in times)
    parts = [batch(left[i::4], right[i::4]) for i in range(4)]
    query = run(application(tolerance="20 s", lateness="1 h"), parts, servers=3)
    both = [
        pd.DataFrame(rows, columns=["k", name, "t"])
        .sort_values("t")
        .assign(**{f"t_{name}": lambda d: d["t"]})
        for name, rows in (("n", left), ("m", right))
    ]
    merged = pd.merge_asof(*both, on="t", by="k", tolerance=20).astype(object)
    merged = merged.where(merged.notna(), None)
    assert emitted(query) == Counter(zip(merged.k, merged.n, merged.t, merged.m, merged.t_m, strict=True))


def test_an_older_row_that_comes_later_counts_and_rows_wait_for_it():
    query = start(application(lateness=0, tolerance="100 s"), servers=2)
    query.feed(batch([("a", 1, 50)], [("a", 1, 10)]))
    query.feed(batch([("a", 2, 60)], [("a", 2, 49)]))
    assert not emitted(query)
    query.feed(batch([("a", 3, 200)], [("a", 3, 55)]))
    assert emitted(query) == {}  # the watermark is 49
    query.feed(batch([], [("a", 4, 52)]))  # late: it is 55 now; but it would have been too late for nobody
    assert emitted(query) == {("a", 1, 50, 2, 49): 1}
    query.feed(batch([], [("a", 5, 300)]))
    query.feed(batch([], []))
    assert emitted(query) == {("a", 1, 50, 2, 49): 1, ("a", 2, 60, 3, 55): 1}


def test_of_rows_with_one_time_content_decides_not_how_they_come():
    rows = [("a", m, 10) for m in range(6)]
    results = set()
    for parts, servers in (([rows], 1), ([rows[3:], rows[:3]], 2), ([[r] for r in reversed(rows)], 3)):
        batches = [batch([], part) for part in parts] + [batch([("a", 1, 11)], [])]
        results.add(frozenset(emitted(run(application(lateness="1 h"), batches, servers=servers)).items()))
    assert len(results) == 1


def test_state_is_bounded_by_the_tolerance():
    query = start(application(lateness=0), servers=2)
    for number in range(30):
        query.feed(batch([("a", 1, 10 * number)] * 3, [("a", number, 10 * number)] * 4))
    assert query.progress.state_keys["joined"] == query.state("joined").num_rows <= 21


def test_on_a_quiet_stream_rows_follow_when_their_time_has_come():
    now = [at(0)]
    query = start(application(lateness=0), servers=2, clock=lambda: int(now[0].timestamp() * 1_000_000))
    query.feed(batch([("a", 1, 0)], [("a", 2, 0)]))
    assert not query.tick()
    now[0] += dt.timedelta(minutes=5, seconds=1)
    assert query.tick()
    assert emitted(query) == {("a", 1, 0, 2, 0): 1}


def test_what_cannot_be_is_refused_and_another_tolerance_does_not_fit_the_state(tmp_path):
    left, right = weir.source(LEFT, "left"), weir.source(RIGHT, "right")
    for wrong, about in (
        ({"tolerance": -1, "time": ("time", "at")}, "negative"),
        ({"tolerance": 1}, "declare it for both"),
        ({"tolerance": 1, "time": ("time", "at"), "how": "full"}, '"left" or "inner"'),
        ({"tolerance": 1, "time": ("time", "at"), "ttl": 5}, "takes no ttl"),
        ({"tolerance": 1, "time": "time"}, "no column"),
        ({"tolerance": 1, "time": ("n", "at")}, "not a timestamp"),
    ):
        with pytest.raises(TopologyError, match=about):
            run(left.join_asof(right, "k", **wrong), [], servers=1)
    run(application(), [batch([("a", 1, 1)], [])], str(tmp_path), servers=1)
    with pytest.raises(CheckpointMismatch, match="another definition"):
        start(application(tolerance="6 s"), str(tmp_path), servers=1)
