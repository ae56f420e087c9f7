"""Control within a batch: what servers say of their load reaches sources in time, and rows follow it; none is lost."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from support import POSTS, counts, posts, rows_of, two_counts
from truth import eventually
from weir.engine.documents import BatchPlan
from weir.engine.live import control
from weir.engine.live.control import ClusterLoad, LoadAggregator, OperatorLoad, ServerLoad
from weir.engine.task.batch_context import BatchContext, Pace, Segments
from weir.flow import parts_of
from weir.operators.process.process_instance import Calls, Keys, PartialStates
from weir.routing.base import PERIODS, InstanceLoad
from weir.state.storage import Storage
from weir.testing import run

pytestmark = pytest.mark.usefixtures("few_starts")

SERVERS = 3


@dataclass
class Tally:
    rows: int = 0


def merge(one: Tally, other: Tally) -> Tally:
    return Tally(one.rows + other.rows)


class Slow:
    """Works for some time per row, on one of the servers for four times as long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls: list[tuple[str, str, int]] = []  # key, thread, rows

    def __call__(self, key, rows, state):
        me = threading.current_thread().name
        self.calls.append((key, me, len(rows)))
        state.rows += len(rows)
        if self.seconds:
            time.sleep(self.seconds * len(rows) * (4 if me.endswith("-0") else 1))


def tallies(function, routing, **terms):
    return weir.source(POSTS).process(
        "topic", function, name="topics", state=Tally, merge=merge, routing=routing, **terms
    )


@pytest.mark.parametrize("routing", [weir.Consistent(), weir.Weighted(weir.Hash())], ids=["CG", "WG"])
def test_a_slow_server_gets_less_within_the_first_batch(routing):
    table = posts(4000, 1)
    query = run(tallies(Slow(0.0003), routing), [table], servers=SERVERS, execution="live")
    first = query.recent_progress[0]
    assert first.execution == "live"
    rows = [server.rows for server in first.servers]
    assert sum(rows) == 4000
    assert rows[0] < 0.8 * min(rows[1:])  # with shares as they begin it gets as many as the others
    assert rows_of(query.state("topics").select(["topic", "rows"])) == counts([table], "topic")


class SlowFrom(Slow):
    """Works for as long on all servers up to some batch, then for four times as long on one of them."""

    def __init__(self, seconds: float, batch: int) -> None:
        super().__init__(seconds)
        self.batch = batch

    def __call__(self, key, rows, state):
        state.rows += len(rows)
        slow = rows[0].n >= self.batch and threading.current_thread().name.endswith("-0")
        time.sleep(self.seconds * len(rows) * (4 if slow else 1))


def test_rows_leave_a_server_that_becomes_slow_within_that_batch(monkeypatch):
    monkeypatch.setattr(control, "AHEAD", 0.5)  # of few rows, some are still to be sent when it shows
    tables = [posts(8000, 1) for _ in range(3)]
    tables = [t.set_column(2, "n", pa.array(np.full(len(t), i))) for i, t in enumerate(tables)]
    query = run(tallies(SlowFrom(0.0003, 2), "auto"), tables, servers=SERVERS, execution="live")
    before, slow = query.recent_progress[1:]
    assert [p.execution for p in (before, slow)] == ["live"] * 2
    assert slow.servers[0].rows < 0.8 * before.servers[0].rows
    assert rows_of(query.state("topics").select(["topic", "rows"])) == counts(tables, "topic")


@pytest.mark.parametrize(
    ("busy", "before", "slowed"),
    [
        ([1.0, 1.0, 1.7], [0.01] * 3, True),
        ([1.7, 1.7, 1.7], [0.01] * 3, False),  # all have: rows take longer now
        ([1.0, 1.0, 1.7], [0.01, 0.01, 0.017], False),  # it was slow before
        ([0.02, 0.02, 0.05], [0.0002] * 3, False),  # too early to tell
        ([1.0, 1.0, 1.7], [np.nan] * 3, False),
    ],
)
def test_who_has_become_slow_shows_against_the_others(busy, before, slowed):
    told = ClusterLoad(7, 1, {0: [(0.0, OperatorLoad(100, 0, seconds)) for seconds in busy]})
    told.operators[0].append(None)  # not heard of yet
    about = job(4)
    name = about.topology.nodes[0].name
    about = replace(about, pace=Pace(1, {name: [*before, 0.01]}))
    assert control.server_slowed(told, about) is slowed
    told.batch = 8  # it is about another batch
    assert not control.server_slowed(told, about)


def test_without_anybody_who_follows_load_functions_are_called_once_per_key_and_server():
    slow = Slow(0)
    run(tallies(slow, weir.PartialKey()), [posts(3000, 1)], servers=SERVERS, execution="live")
    assert len(slow.calls) == len({(key, server) for key, server, _ in slow.calls})


def test_slow_functions_begin_before_all_rows_have_come():
    slow = Slow(0.0005)
    run(tallies(slow, weir.Consistent()), [posts(3000, 1)], servers=SERVERS, execution="live")
    assert len(slow.calls) > 1.5 * len({(key, server) for key, server, _ in slow.calls})
    assert sum(rows for *_, rows in slow.calls) == 3000


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_row_may_take_longer_than_a_moment(rows):
    """And there may be fewer of them than are tried at first."""
    tables = [posts(rows, seed) for seed in range(2)]
    query = run(tallies(Slow(0.02), weir.Consistent()), tables, servers=SERVERS, execution="live")
    assert {progress.execution for progress in query.recent_progress} == {"live"}
    assert rows_of(query.state("topics").select(["topic", "rows"])) == counts(tables, "topic")


def test_cheap_functions_do_not_once_that_is_known():
    """In the first batch few rows are tried."""
    cheap = Slow(0)
    tables = [posts(3000, seed) for seed in range(3)]
    query = run(tallies(cheap, weir.Consistent()), tables, servers=SERVERS, execution="live")
    expected = sum(query.recent_progress[batch].operators["topics"].pairs for batch in range(3))
    assert len(cheap.calls) <= expected + SERVERS * 200
    assert rows_of(query.state("topics").select(["topic", "rows"])) == counts(tables, "topic")


def test_an_order_of_rows_is_kept():
    """With order_by all rows of a key on a server come in one call, however slow."""
    slow = Slow(0.0002)
    table = posts(2000, 1)
    query = run(tallies(slow, weir.Consistent(), order_by="n"), [table], servers=SERVERS, execution="live")
    assert len(slow.calls) == len({(key, server) for key, server, _ in slow.calls})
    assert rows_of(query.state("topics").select(["topic", "rows"])) == counts([table], "topic")


def test_rows_that_fail_in_a_later_piece_are_diverted_and_the_others_count():
    seen: dict[tuple[str, str], int] = {}

    def twice_is_too_much(key, rows, state):
        time.sleep(0.0005 * len(rows))
        about = key, threading.current_thread().name
        seen[about] = seen.get(about, 0) + 1
        if seen[about] == 2:
            raise ValueError("again")
        state.rows += len(rows)

    table = posts(3000, 1)
    app = tallies(twice_is_too_much, weir.Consistent(), on_error="divert")
    query = run(app, [table], servers=SERVERS, execution="live")
    assert query.recent_progress[0].execution == "live"
    lost = query.recent_progress[0].operators["topics"].diverted
    assert lost > 0
    assert sum(rows for _, rows in rows_of(query.state("topics").select(["topic", "rows"]))) == 3000 - lost


failed = threading.Event()


def fails_once(key, rows, state):
    if threading.current_thread().name.endswith("-1") and not failed.is_set():
        failed.set()
        raise MemoryError("just this once")
    time.sleep(0.0003 * len(rows))
    state.rows += len(rows)


def test_a_server_that_fails_while_sources_wait_for_it_ends_the_batch_and_it_runs_again():
    failed.clear()
    table = posts(3000, 1)
    query = run(tallies(fails_once, weir.Consistent()), [table], servers=SERVERS, execution="live")
    assert query.recent_progress[0].execution == "jobs"
    assert "just this once" in query.recent_progress[0].ran_again
    assert rows_of(query.state("topics").select(["topic", "rows"])) == counts([table], "topic")


def test_sources_go_on_when_they_hear_nothing(monkeypatch):
    monkeypatch.setattr(control, "LOAD_TIMEOUT", 0.05)
    monkeypatch.setattr(LoadAggregator, "hear", lambda *_: None)
    tables = [posts(3000, seed) for seed in range(2)]
    query = run(two_counts(places=weir.Consistent()), tables, servers=SERVERS, execution="live")
    assert {progress.execution for progress in query.recent_progress} == {"live"}
    assert rows_of(query.state("topics")) == counts(tables, "topic")


# ---------------------------------------------------------------------- who is told what, and when


def job(servers: int = 2) -> BatchContext:
    """Return what tasks know of batch 7: one operator on every server, reached from a source by CG."""
    app = weir.source(POSTS).count("topic", routing=weir.Consistent())
    topology = parts_of(app).topology(servers)
    plan = BatchPlan(batch=7, fingerprint="", servers=servers, seed=0, clock=0, previous_clock=0)
    return BatchContext(topology, plan, Segments({}), Storage("nowhere"), list(range(servers)))


def word(taken: int, waiting: int, busy: float, hungry: bool = False, batch: int = 7) -> bytes:
    return msgspec.msgpack.encode(ServerLoad(batch, 1, hungry, {0: OperatorLoad(taken, waiting, busy)}))


def gathering(monkeypatch, every: float) -> tuple[LoadAggregator, list[ClusterLoad]]:
    monkeypatch.setattr(control, "every", lambda servers: every)
    told: list[ClusterLoad] = []
    return LoadAggregator(
        job(), lambda data: told.append(msgspec.msgpack.decode(data, type=ClusterLoad))
    ), told


def test_news_come_at_once_then_now_and_then_and_none_is_forgotten(monkeypatch):
    aggregator, told = gathering(monkeypatch, 0.1)
    aggregator.hear(0, word(1, 5, 0.1), time.perf_counter())
    assert len(told) == 1
    aggregator.hear(1, word(2, 5, 0.1), time.perf_counter())
    aggregator.hear(1, word(3, 5, 0.1), time.perf_counter())
    assert len(told) == 1
    eventually(lambda: len(told) == 2)
    heard = [at[1].taken for at in told[1].operators[0]]
    assert heard == [1, 3]


def test_hungry_servers_do_not_wait(monkeypatch):
    aggregator, told = gathering(monkeypatch, 60.0)
    aggregator.hear(0, word(1, 5, 0.1), time.perf_counter())
    aggregator.hear(1, word(1, 5, 0.1), time.perf_counter())
    aggregator.hear(1, word(6, 0, 0.1, hungry=True), time.perf_counter())
    eventually(lambda: len(told) == 2)
    assert told[1].operators[0][1][1].waiting == 0


def test_words_of_another_batch_are_not_told(monkeypatch):
    aggregator, told = gathering(monkeypatch, 0.0)
    aggregator.hear(0, word(1, 5, 0.1, batch=6), time.perf_counter())
    assert told == []


def receivers(*standings: OperatorLoad | None, sources: int = 1) -> control.Receivers:
    made = control.Receivers(job(len(standings)).topology.nodes[0], job(len(standings)))
    at = time.perf_counter()
    heard = [None if standing is None else (0.0, standing) for standing in standings]
    made.hear(ClusterLoad(7, sources, {0: heard}), at)
    return made


def test_before_speeds_are_known_a_source_sends_a_handful():
    unknown = receivers(OperatorLoad(), OperatorLoad())
    room, _ = unknown.room(1.0)
    assert room == 2 * control.FIRST_ROWS
    unknown.note(np.array([0, 1, 1], np.int32))
    assert unknown.room(1.0)[0] == 2 * control.FIRST_ROWS - 3
    # one has shown how fast it is; the other has rows, and has not
    assert (
        receivers(OperatorLoad(10, 0, 0.01), OperatorLoad(0, 20, 0.0)).room(1.0)[0]
        == 2 * control.FIRST_ROWS - 20
    )


def test_room_is_what_servers_lack():
    """Ten and a hundred rows per second; the first has 4 rows, the second 150."""
    known = receivers(OperatorLoad(10, 4, 1.0), OperatorLoad(100, 150, 1.0))
    room, most = known.room(1.0)
    assert room == pytest.approx(6, abs=1)
    assert most == pytest.approx(110)
    known.note(np.zeros(6, np.int32))
    assert known.room(1.0)[0] == pytest.approx(0, abs=1)
    shared = receivers(OperatorLoad(10, 4, 1.0), OperatorLoad(100, 150, 1.0), sources=2)
    assert shared.room(1.0)[0] == pytest.approx(3, abs=0.5)


def test_a_period_is_what_was_sent_and_how_long_it_takes(monkeypatch):
    known = receivers(OperatorLoad(10, 0, 1.0), OperatorLoad(100, 0, 1.0))
    assert known.period() is None  # nothing was sent
    known.note(np.array([0] * 50 + [1] * 70, np.int32))
    assert known.period() is None  # few
    known.note(np.array([0] * 10, np.int32))
    load = known.period()
    assert load.period == 7 * PERIODS + 1
    assert load.rows.tolist() == [60, 70]
    assert load.busy == pytest.approx([6, 0.7])
    known.note(np.zeros(200, np.int32))
    assert known.period() is None  # too soon
    monkeypatch.setattr(control, "every", lambda servers: 0.0)
    assert known.period().rows.tolist() == [200, 0]
    known.note(np.array([0] * 8 + [1] * 2, np.int32))
    load = known.period([1, 3])  # shares say more than a handful of rows
    assert load.rows.tolist() == [2.5, 7.5]
    assert load.busy == pytest.approx([0.25, 0.075])
    known.note(np.zeros(control.FEWEST_ROWS, np.int32))
    assert known.period([1, 3]) is None


@given(st.lists(st.dictionaries(st.integers(0, 9), st.binary(max_size=3)), max_size=6))
def test_partial_states_are_those_that_came_last(pieces):
    kept, expected = PartialStates(), {}
    for piece in pieces:
        names = list(piece)
        key_hash = np.array(names, np.uint64)
        key_check = key_hash + np.uint64(100)
        assert kept.prior(key_hash, key_check) == [expected.get(name) for name in names]
        calls = Calls(names)
        for number, name in enumerate(names):
            calls.add(number, piece[name], None)
        kept.keep(calls, Keys([pa.array(names, pa.int64())], key_hash, key_check), ["k"])
        expected |= piece
    if expected:
        keys = kept.keys()
        assert dict(zip(keys["k"].to_pylist(), kept.states, strict=True)) == expected
        assert keys.num_rows == len(expected)


def test_a_batch_as_a_whole_is_heard_after_its_parts_and_both_once():
    def load(period):
        return InstanceLoad(period, np.full(2, 10.0), np.array([1.0, 2.0]), np.zeros(2))

    grouping = weir.Weighted()
    router = grouping.router(2)
    weights = [router.weights.tolist()]
    for period in (3 * PERIODS + 1, 3 * PERIODS + 1, 4 * PERIODS - 1, 4 * PERIODS - 1, 4 * PERIODS + 1):
        router.listen(grouping.feedback(load(period)))
        weights.append(router.weights.tolist())
    assert weights[0] != weights[1] == weights[2] != weights[3] == weights[4] != weights[5]
