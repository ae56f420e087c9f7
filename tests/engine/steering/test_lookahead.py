"""Keys that are counted before their batch is planned are placed for its rows; nothing else changes."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

import weir
import weir.testing
from support import counts, rows_of
from truth import eventually
from weir.engine.live.source import HeldRows
from weir.engine.local.in_process import LiveThreads
from weir.errors import TopologyError
from weir.hashing import mix
from weir.locality.foresight import BUDGET
from weir.locality.manager import LocalityManager
from weir.locality.stats import BatchStats

SOURCE = "place string, topic string"
SERVERS = 4


def batch(seed, rows=1500):
    """Topics that are all new in every batch, each of one place: only who looks ahead can place them in time."""
    rng = np.random.default_rng(seed)
    place = rng.integers(24, size=rows)
    names = (
        pa.array([f"place {p}" for p in place]),
        pa.array([f"{seed}/{p}/{i % 5}" for i, p in enumerate(place)]),
    )
    return pa.table(dict(zip(("place", "topic"), names, strict=True)))


def app():
    places = weir.source(SOURCE).keyed("place", weir.Count(emit="rows"), name="places")
    return places.keyed("topic", weir.Count(), name="topics")


# dies between counting and planning, with the plan written, with the commit written; source tasks and servers fail
FAULTS = ("keys-counted:3", "rows-held:400", "plan-written:4", "commit-written:5", "step-started:602")
WAYS = pytest.mark.parametrize(
    ("execution", "faults"),
    [("jobs", ()), ("jobs", FAULTS[2:]), ("live", ()), ("live", FAULTS)],
    ids=["jobs", "jobs, faults", "live", "live, faults"],
)


def fed(batches, ahead, faults, execution):
    """Return a query that has had some batches, and a reconfiguration after the second; its counts are right."""
    routing = weir.Locality(period=None, look_ahead=ahead)
    faults = [fault for fault in faults if ahead or not fault.startswith(("keys-counted", "rows-held"))]
    settings = {"servers": SERVERS, "routing": routing, "execution": execution}
    query = weir.testing.start(app(), **settings, faults=faults)
    for number, table in enumerate(batches):
        query.feed(table)
        if number == 1:
            query.reconfigure(wait=True)
    assert query.pending_faults == []
    assert rows_of(query.state("topics")) == counts(batches, "topic")
    assert rows_of(query.state("places")) == counts(batches, "place")
    return query


@WAYS
def test_new_keys_are_placed_for_the_rows_that_bring_them(faults, execution):
    batches = [batch(seed) for seed in range(7)]
    locality = {}
    for ahead in (False, True):
        query = fed(batches, ahead, faults, execution)
        locality[ahead] = query.progress.edges["places → topics"].locality
    assert locality[False] < 0.4
    assert locality[True] > 0.9


@WAYS
def test_keys_that_are_known_go_where_their_next_rows_are(faults, execution):
    """Every topic is in other affinity whenever it comes: what it was seen with so far says nothing."""
    batches, locality, moved = [], {}, {}
    for number in range(8):
        rng = np.random.default_rng(number)
        topic = rng.permutation(600)[:300]
        place = (topic * 7 + number * 5) % 24
        pairs = [(f"place {p}", f"topic {t}") for p, t in zip(place, topic, strict=True)]
        batches.append(pa.Table.from_pylist([{"place": p, "topic": t} for p, t in pairs for _ in range(2)]))
    for ahead in (False, True):
        query = fed(batches, ahead, faults, execution)
        locality[ahead] = query.progress.edges["places → topics"].locality
        moved[ahead] = query.progress.moved_keys
    assert locality[False] < 0.5
    assert locality[True] > 0.9
    assert moved[True] > 100


def test_keys_that_the_source_has_not_got_are_refused():
    changed = (
        weir.source(SOURCE)
        .map_batches(lambda b: b, name="changed")
        .keyed("place", weir.Count(), name="places")
    )
    with pytest.raises(TopologyError, match="look_ahead=True: the key of operator 'places'"):
        weir.testing.start(changed, servers=2, routing=weir.Locality(look_ahead=True))


def test_rows_without_a_key_are_not_counted_ahead():
    source = weir.source(SOURCE).keyed("place", weir.Count(emit="rows"), name="places", null_keys="drop")
    app = source.keyed("topic", weir.Count(), name="topics", null_keys="drop")
    rows = [{"place": p, "topic": t} for p, t in (("a", "x"), (None, "x"), ("a", None), ("b", "y"))]
    query = weir.testing.run(app, [rows] * 3, servers=2, routing=weir.Locality(period=1, look_ahead=True))
    assert rows_of(query.state("places")) == [("a", 6), ("b", 3)]
    assert rows_of(query.state("topics")) == [("x", 3), ("y", 3)]


def test_rows_that_do_not_fit_memory_are_held_in_files(monkeypatch):
    monkeypatch.setattr(
        weir.testing.LocalQuery, "_live_runner", partial(LiveThreads, limit=2000, sealed=True)
    )
    spilled = []
    take = HeldRows.take
    monkeypatch.setattr(HeldRows, "take", lambda held: spilled.append(held.spilled) or take(held))
    query = fed([batch(seed) for seed in range(6)], True, (), "live")
    assert {p.execution for p in query.recent_progress} == {"live"}
    assert not any(p.routing.counting for p in query.recent_progress)
    assert len(spilled) == 3 * 2  # source tasks hold every other batch here
    assert min(spilled) > 0


def test_source_tasks_without_a_plan_do_not_wait_for_ever():
    """The driver dies twice behind the counting: the tasks that hold rows end, and the batch is counted anew."""
    faults = ("keys-counted:2", "keys-counted:2", "keys-counted:4", "plan-written:4")
    fed([batch(seed) for seed in range(6)], True, faults, "live").stop()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "weir-source"])


def looks(query):
    return [p.routing.ahead is not None for p in query.recent_progress]


def test_auto_looks_ahead_where_that_pays_and_all_is_right():
    faults = ("keys-counted:5", "rows-held:600", "plan-written:6", "step-started:802")
    batches = [batch(seed) for seed in range(12)]
    locality = {}
    for ahead, points in ((False, ()), ("auto", faults)):
        terms = {"routing": weir.Auto(look_ahead=ahead), "execution": "live", "faults": points}
        query = weir.testing.start(app(), servers=SERVERS, **terms)
        for table in batches:
            query.feed(table)
        query.stop()
        assert query.pending_faults == []
        assert rows_of(query.state("topics")) == counts(batches, "topic")
        assert rows_of(query.state("places")) == counts(batches, "place")
        assert looks(query)[-3:] == [bool(ahead)] * 3
        locality[ahead] = query.progress.edges["places → topics"].locality
    assert locality["auto"] > locality[False] + 0.2
    assert any("counted before it was planned" in line for line in query.progress.routing.lines())


def test_auto_does_not_look_ahead_where_keys_are_independent():
    rng = np.random.default_rng(0)
    tables = [
        pa.table(
            {
                "place": pa.array(rng.integers(2000, size=1500)).cast(pa.string()),
                "topic": pa.array(rng.integers(2000, size=1500)).cast(pa.string()),
            }
        )
        for _ in range(16)
    ]
    with weir.testing.start(app(), servers=SERVERS, routing="auto", execution="live") as query:
        for table in tables:
            query.feed(table)
        # while keys are new, nothing moves when they are placed
        assert not any(looks(query)[-4:])
        assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_auto_reads_no_source_twice_and_runs_where_no_key_is_known_before():
    changed = weir.source(SOURCE).map_batches(lambda b: b, name="changed").count("place", name="places")
    batches = [batch(seed) for seed in range(3)]
    query = weir.testing.run(changed, batches, servers=2, routing="auto")
    assert rows_of(query.state("places")) == counts(batches, "place")
    assert not any(looks(query))


def test_no_more_states_move_than_the_budget_says():
    rng = np.random.default_rng(0)
    manager = LocalityManager(
        weir.Locality(look_ahead="auto", period=None), ["places", "topics"], [("places", "topics")], SERVERS
    )
    moved = []
    manager.foresight.active = True
    for number in range(8):
        # 20,000 topics, each with another place every time: to follow all of them would move most states
        place, topic = rng.integers(200, size=20_000), np.arange(20_000) + 1_000
        keys = place.astype(np.uint64), mix(topic.astype(np.uint64), np.uint64(1))
        stats = BatchStats.of(dict(enumerate(keys)), {(0, 1): keys})
        if number:
            manager.look_ahead(stats)
        plan = manager.plan_next()
        if number > 1:
            moved.append(len(plan.moves.get(1, ())) if plan else 0)
        manager.observe(stats)
    assert max(moved) <= BUDGET * 20_000 * 1.01
    assert moved[0] > 0
