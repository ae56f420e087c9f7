"""Two keyed streams joined within a bound of time: every pair once, and rows without a partner once."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.errors import CheckpointMismatch, GroupingError, TopologyError, UnknownColumn
from weir.flow import parts_of
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


def application(how="inner", within=("2 s", "3 s"), lateness="4 s", **options):
    left, right = weir.source(LEFT, "left"), weir.source(RIGHT, "right")
    return left.join(
        right, "k", how=how, within=within, time=("time", "at"), lateness=lateness, name="joined", **options
    )


def truth(batches, how, before=2, after=3, lateness=4):
    """Join in plain Python, batch by batch: what is emitted in the end, and how many rows were late."""
    kept = [[], []]  # key, number, time, has a partner
    seen = [None, None]
    watermark, late, out = None, 0, []
    for number in range(len(batches) + 1):
        ended = number == len(batches)
        new = [[], []]
        for side, rows in enumerate(batches[number] if not ended else ([], [])):
            for k, n, t in rows:
                if t is None or (watermark is not None and t < watermark):
                    late += 1
                else:
                    new[side].append([k, n, t, False])
        for side in (0, 1):
            kept[side] += new[side]
        for left in kept[0]:
            for right in kept[1]:
                fresh = any(one is left for one in new[0]) or any(one is right for one in new[1])
                if fresh and left[0] == right[0] and left[2] - before <= right[2] <= left[2] + after:
                    left[3] = right[3] = True
                    out.append((left[0], left[1], left[2], right[1], right[2]))
        limit = float("inf") if ended else watermark
        if limit is not None:
            for side, reach in ((0, after), (1, before)):
                gone = [row for row in kept[side] if row[2] + reach < limit]
                kept[side] = [row for row in kept[side] if row[2] + reach >= limit]
                for k, n, t, matched in gone:
                    if not matched and (how == "full" or (how == "left" and side == 0)):
                        out.append((k, n, t, None, None) if side == 0 else (k, None, None, n, t))
        if not ended:
            for side, rows in enumerate(batches[number]):
                times = [t for _, _, t in rows if t is not None]
                seen[side] = max([*times, *([] if seen[side] is None else [seen[side]])], default=None)
            if None not in seen:
                reached = min(seen) - lateness
                watermark = reached if watermark is None else max(watermark, reached)
    return Counter(out), late


def emitted(query):
    rows = dicts(query.output("joined"))
    return Counter((r["k"], r["n"], second(r["time"]), r["m"], second(r["at"])) for r in rows)


ROW = st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.none() | st.integers(0, 25))
SIDE = st.lists(ROW, max_size=12)
BATCHES = st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=5)


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@settings(max_examples=12)
@given(batches=BATCHES, faulty=st.booleans())
def test_it_joins_as_plain_python_does(how, batches, faulty):
    faults = ["job-done:0", "commit-written:1", "step-started:201"] if faulty else []
    query = run(application(how), [batch(*b) for b in batches], servers=3, seed=2, faults=faults)
    expected, late = truth(batches, how)
    assert emitted(query) == expected
    if not faulty:  # a driver that starts again does not remember the progress of earlier batches
        assert sum(p.operators["joined"].late for p in query.recent_progress) == late
    assert query.state("joined").num_rows == 0, "when the input has ended nothing is kept"


def drift(batches, keys=15, rows=25, step=5):
    out = []
    for number in range(batches):
        base = number * step
        sides = []
        for side in (0, 1):
            sides.append(
                [
                    (f"k{(7 * i + 3 * number + side) % keys}", i % 5, base + (i * (3 + side)) % 9)
                    for i in range(rows)
                ]
            )
        out.append(tuple(sides))
    return out


@pytest.mark.parametrize("how", ["inner", "full"])
def test_rows_move_and_scale_with_their_keys(how):
    """Keys move by learnt tables, servers come and go, a restart brings another number: nothing is lost or doubled."""
    batches = drift(10)
    locality = weir.Locality(period=1, forecast=None)

    def app():
        left, right = (
            weir.source(schema, name).keyed("k", weir.Count(emit="rows"), name=f"{name} rows")
            for schema, name in ((LEFT, "left"), (RIGHT, "right"))
        )
        return left.join(
            right, "k", how=how, within=("2 s", "3 s"), time=("time", "at"), lateness="4 s", name="joined"
        )

    query = start(app(), servers=3, routing=locality, seed=4, faults=["job-done:4", "commit-written:7"])
    for number, rows in enumerate(batches):
        if number in (2, 5):
            query.scale_out(1) if number == 2 else query.scale_in(1)
        if number == 8:
            query.restart(servers=2, routing=weir.Hash())
        if query._driver.learner is not None:
            query.reconfigure(wait=True)
        query.feed(batch(*rows))
    query.finish()
    assert emitted(query) == truth(batches, how)[0]


def test_state_is_bounded_by_the_watermark_of_the_side_that_is_behind():
    query = start(application("inner", lateness=0), servers=2)
    for number in range(20):
        query.feed(batch([("a", 1, 10 * number)] * 5, [("a", 2, 10 * number)] * 5))
    assert query.state("joined").num_rows <= 20
    for number in range(20, 30):  # the right side says nothing: left rows must wait for it
        query.feed(batch([("a", 1, 10 * number)] * 5, []))
    assert query.state("joined").num_rows == 60  # ten rows of second 190, and all newer ones
    assert query.progress.state_keys["joined"] == query.state("joined").num_rows


def test_declared_event_times_need_not_be_said_again():
    left, right = weir.source(LEFT, "left"), weir.source(RIGHT, "right")
    left, right = left.event_time("time").filter(lambda row: True), right.event_time("at", lateness="1 s")
    joined = left.join(right, "k", within="2 s", name="joined")
    query = run(joined, [batch([("a", 1, 10)], [("a", 2, 12), ("a", 3, 13)])], servers=2)
    assert emitted(query) == {("a", 1, 10, 2, 12): 1}


def test_late_rows_go_to_their_sink_and_rows_from_the_future_to_the_dead_letters():
    late, letters = [], []
    query = start(
        application("left", lateness=0),
        servers=2,
        late={"joined": lambda table, batch: late.extend(dicts(table))},
        dead_letters=lambda table, batch: letters.extend(dicts(table)),
    )
    query.feed(batch([("a", 1, 100)], [("a", 2, 100)]))
    query.feed(batch([("a", 3, 10)], [("a", 4, 99), ("b", 5, 100 * 365 * 86_400)]))
    assert {(row["k"], row["0:n"], row["1:m"]) for row in late} == {("a", 3, None), ("a", None, 4)}
    assert [(row["operator"], row["key"]) for row in letters] == [("joined", "b")]
    assert query.progress.operators["joined"].ahead == 1


def test_on_a_quiet_stream_a_row_goes_on_alone_when_its_time_has_come():
    now = [at(0)]
    app = application("left", lateness=0)
    query = start(app, servers=2, clock=lambda: int(now[0].timestamp() * 1_000_000))
    query.feed(batch([("a", 1, 0)], [("b", 2, 0)]))
    now[0] += dt.timedelta(minutes=5)  # after five minutes a source that brings nothing is idle
    assert not query.tick()
    now[0] += dt.timedelta(seconds=4)
    assert query.tick()
    assert emitted(query) == {("a", 1, 0, None, None): 1}
    assert query.state("joined").num_rows == 0


def test_without_a_bound_every_row_is_kept_and_meets_all_others():
    left, right = weir.source("k string, n long", "left"), weir.source("k string, n long", "right")
    app = left.join(right, "k", name="joined")
    rows = [
        {"left": [{"k": "a", "n": i}], "right": [{"k": "a", "n": -i}, {"k": "b", "n": i}]} for i in range(4)
    ]
    query = run(app, rows, servers=2)
    pairs = Counter((r["n"], r["n_right"]) for r in dicts(query.output("joined")))
    assert pairs == Counter((i, -j) for i in range(4) for j in range(4))
    assert query.state("joined").num_rows == 12


def test_without_a_bound_ttl_lets_rows_go():
    times = iter([100, 105, 111, 130])
    left, right = weir.source("k string, n long", "left"), weir.source("k string, m long", "right")
    query = start(
        left.join(right, "k", ttl=10, name="joined"), servers=2, clock=lambda: next(times) * 1_000_000
    )
    for number in range(4):
        query.feed(
            {"left": [{"k": "a", "n": number}], "right": [{"k": "a", "m": number}] if number % 2 else []}
        )
    # n=0 (at 100) meets m=1 (at 105); by 111 it is gone, and by 130 all are
    assert {(r["n"], r["m"]) for r in dicts(query.output("joined"))} == {(0, 1), (1, 1), (2, 1), (3, 3)}
    assert query.progress.state_keys["joined"] == query.state("joined").num_rows == 2


def test_a_stream_may_be_joined_with_itself_and_each_side_be_a_union():
    posts, more = weir.source("k string, n long", "posts"), weir.source("k string, n long", "more")
    app = posts.union(more).join(posts, "k", name="joined")
    rows = {"posts": [{"k": "a", "n": 1}, {"k": "a", "n": 1}], "more": [{"k": "a", "n": 2}]}
    query = run(app, [rows], servers=2)
    assert Counter((r["n"], r["n_right"]) for r in dicts(query.output("joined"))) == {(1, 1): 4, (2, 1): 2}


def test_only_columns_that_are_there_and_groupings_that_keep_keys_together():
    left, right = weir.source(LEFT, "left"), weir.source(RIGHT, "right")

    def built(stream):
        return parts_of(stream).topology(2)

    with pytest.raises(UnknownColumn, match="right side has no column 'n' for the key"):
        built(left.join(right, "n"))
    with pytest.raises(UnknownColumn, match="right side has no column 'time' for its time"):
        built(left.join(right, "k", within=1, time="time"))
    with pytest.raises(TopologyError, match="'n' is int64, not a timestamp"):
        built(left.join(right, "k", within=1, time=("n", "at")))
    with pytest.raises(TopologyError, match="needs within= and time="):
        left.join(right, "k", how="left")
    with pytest.raises(TopologyError, match="go together"):
        left.join(right, "k", within=1)
    with pytest.raises(GroupingError, match="cannot merge partial states"):
        built(left.join(right, "k", routing=weir.PartialKey()))
    with pytest.raises(TopologyError, match="string on the left and int64 on the right"):
        built(left.join(weir.source("k long", "right"), "k"))
    with pytest.raises(TopologyError, match="takes streams"):
        left.join(pa.table({"k": ["a"]}), "k")
    query = start(application(), servers=2)
    query.feed(batch([("a", 1, 0)], []))
    with pytest.raises(CheckpointMismatch, match="another definition"):
        query.restart(application(within="9 s"))
