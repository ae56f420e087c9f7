"""Timers of a user's own operator: set, deleted, gone off once, by either clock, wherever their key lives."""

from __future__ import annotations

import datetime as dt
import tempfile
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.engine.inspect.inspection import inspect
from weir.testing import start

SCHEMA = "k string, time timestamp, note string"
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
OUT = {"k": "string", "rows": "long", "at": "timestamp", "clock": "string"}


def second(number):
    return NOON + dt.timedelta(seconds=number)


class Wall:
    def __init__(self):
        self.seconds = 0

    def __call__(self):
        return int(second(self.seconds).timestamp() * 1_000_000)


@dataclass
class Seen:
    rows: int = 0


class Remind(weir.Process):
    """Reminds of a key ten seconds of event time and a minute of the clock after its rows; a row may call it off."""

    state = Seen
    output = OUT
    timers = ("event", "processing")

    def process(self, key, rows, state, timers):
        state.rows += len(rows)
        for row in rows:
            if row.note == "fail":
                raise ValueError("cannot take this")
            act = timers.delete if row.note == "off" else timers.set
            act(row.time + dt.timedelta(seconds=10), "event")
            if row.note == "soon":
                timers.set(timers.now + dt.timedelta(minutes=1), "processing")

    def on_timer(self, key, timer, state, timers):
        state.rows += 100
        yield key, state.rows, timer.time, timer.clock
        if timer.clock == "processing" and state.rows < 300:
            timers.set(timer.time + dt.timedelta(minutes=1), "processing")


def app(**options):
    return weir.source(SCHEMA).event_time("time").keyed("k", Remind(), name="r", **options)


def rows(*triples):
    return [{"k": k, "time": second(t), "note": note} for k, t, note in triples]


def told(query):
    by_batch = {batch: table for name, batch, table in query.deliveries if name == "r"}
    return [
        (batch, r["k"], r["rows"], int((r["at"] - NOON).total_seconds()), r["clock"])
        for batch, table in sorted(by_batch.items())
        for r in sorted(dicts(table), key=lambda r: (r["k"], r["rows"]))
    ]


@pytest.mark.parametrize(
    "faults", [[], ["job-done:1", "commit-written:1", "plan-written:2", "sink-delivered:2"]]
)
def test_timers_go_off_once_in_order_and_before_the_rows_of_their_batch(faults):
    wall = Wall()
    query = start(app(), servers=2, clock=wall, faults=faults)
    query.feed(rows(("a", 0, ""), ("a", 5, ""), ("b", 1, ""), ("c", 40, "")))
    query.feed(rows(("a", 41, "")))  # the watermark is at 40: three timers are due, then the row is taken
    assert told(query) == [(1, "a", 102, 10, "event"), (1, "a", 202, 15, "event"), (1, "b", 101, 11, "event")]
    query.feed(rows(("c", 42, "")))
    query.feed(rows(("d", 42, "")))
    assert len(told(query)) == 3
    state = {r["k"]: r["rows"] for r in dicts(query.state("r"))}
    assert state == {"a": 203, "b": 101, "c": 2, "d": 1}
    assert query.pending_faults == []
    query.finish()  # at the end of the input all that are left go off
    assert [row[1:] for row in told(query)[3:]] == [
        ("a", 303, 51, "event"),
        ("c", 102, 50, "event"),
        ("c", 202, 52, "event"),
        ("d", 101, 52, "event"),
    ]
    assert query.progress.state_keys["r"] == 4


def test_a_timer_can_be_deleted_and_set_again():
    query = start(app(), servers=1)
    query.feed(rows(("a", 0, ""), ("b", 0, ""), ("c", 0, "off")))
    query.feed(rows(("a", 0, "off")))
    query.feed(rows(("b", 0, "off"), ("b", 0, "")))  # in which order is not defined, but both at once
    query.feed(rows(("x", 30, "")))
    query.feed(rows(("x", 31, "")))
    assert "a" not in {row[1] for row in told(query)}
    assert query.progress.state_keys["r"] == 4 + 2  # four keys, and the two timers of x


def test_timers_by_the_clock_go_off_on_a_quiet_stream_and_may_set_others():
    wall = Wall()
    query = start(app(), servers=2, clock=wall)
    query.feed(rows(("a", 0, "soon")))
    wall.seconds = 59
    query.tick()  # it may run for nothing, but tells nothing
    assert told(query) == []
    wall.seconds = 60
    assert query.tick()
    assert [row[1:] for row in told(query)] == [("a", 101, 60, "processing")]
    query.restart(servers=3)
    wall.seconds = 100
    assert not query.tick()
    wall.seconds = 130  # late, but once
    assert query.tick()
    assert not query.tick()
    assert [row[1:] for row in told(query)[1:]] == [("a", 201, 120, "processing")]
    wall.seconds = 300 + 11  # idle for more than five minutes: event time has gone on as well
    assert query.tick()
    assert [row[2:] for row in told(query)[2:]] == [(301, 10, "event"), (401, 180, "processing")]


def test_a_time_that_has_passed_goes_off_with_the_next_that_does():
    query = start(app(), servers=1)
    query.feed(rows(("z", 100, "")))
    query.feed(rows(("a", 0, "")))
    assert told(query) == []
    query.feed(rows(("z", 105, "")))
    assert told(query) == []  # the watermark is still at 100
    query.feed(rows(("z", 105, "")))
    assert told(query) == [(3, "a", 101, 10, "event")]


def test_what_fails_is_diverted_and_leaves_state_and_timers_alone():
    class Fragile(Remind):
        def on_timer(self, key, timer, state, timers):
            state.rows = 1000
            timers.set(timer.time + dt.timedelta(seconds=1), "event")
            if key == "a":
                raise ValueError("not this one")
            return [(key, "many" if key == "b" else 1, timer.time, timer.clock)]

    stream = weir.source(SCHEMA).event_time("time").keyed("k", Fragile(), name="r", on_error="divert")
    query = start(stream, servers=2)
    query.feed(rows(("a", 0, ""), ("b", 0, ""), ("c", 0, ""), ("d", 0, "fail")))
    query.feed(rows(("z", 30, "")))
    query.feed(rows(("z", 30, "")))
    assert [(row[1], row[2]) for row in told(query)] == [("c", 1)]
    assert {r["k"]: r["rows"] for r in dicts(query.state("r"))} == {"a": 1, "b": 1, "c": 1000, "z": 2}
    letters = [(r["key"], r["row"].partition(":")[0]) for r in dicts(query.dead_letters)]
    assert sorted(letters) == [("a", '{"timer"'), ("b", '{"timer"'), ("d", '{"k"')]


def test_a_function_may_have_timers_too_and_mistakes_are_refused():
    def process(key, rows, state, timers):
        timers.set(rows[0].time)

    def on_timer(key, timer, state, timers):
        return [(key,)]

    stream = weir.source(SCHEMA).event_time("time")
    query = start(
        stream.process("k", process, output="k string", timers="event", on_timer=on_timer, name="r"),
        servers=1,
    )
    query.feed(rows(("a", 5, "")))
    query.feed([])
    assert dicts(query.output("r")) == [{"k": "a"}]
    with pytest.raises(weir.errors.TopologyError, match="belong together"):
        weir.Process(process, timers="event")
    with pytest.raises(weir.errors.TopologyError, match='expected "event", "processing" or both'):
        weir.Process(process, timers="clock", on_timer=on_timer)
    query = start(
        stream.process(
            "k", lambda k, r, s, t: t.set(r[0].time, "processing"), timers="event", on_timer=on_timer
        ),
        servers=1,
    )
    with pytest.raises(weir.errors.OperatorError, match="a timer by the clock 'processing': say 'event'"):
        query.feed(rows(("a", 5, "")))


keys = st.sampled_from("abcdef")
steps = st.lists(
    st.tuples(
        st.lists(st.tuples(keys, st.integers(0, 40)), max_size=8),
        st.sampled_from([None, "out", "in", "restart"]),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps, st.lists(st.tuples(st.sampled_from(["job-done", "commit-written"]), st.integers(0, 5)), max_size=2)
)
def test_every_timer_goes_off_exactly_once_wherever_its_key_lives(story, crashes):
    with tempfile.TemporaryDirectory() as folder:
        routing = weir.Locality(period=1, forecast=None)
        faults = {f"{point}:{batch}" for point, batch in crashes}
        query = start(app(), folder, servers=2, routing=routing, faults=sorted(faults))
        set_before: set[tuple[str, int]] = set()
        expected: list[tuple[str, int]] = []
        newest = None
        for number, (batch, action) in enumerate(story):
            times = [(k, 20 * number + t) for k, t in batch]
            if newest is not None:  # what is due goes off before this batch's rows are taken
                due = {timer for timer in set_before if timer[1] <= newest}
                expected += sorted(due)
                set_before -= due
            query.feed(rows(*((k, t, "") for k, t in times)))
            set_before |= {(k, t + 10) for k, t in times}
            newest = max([t for _, t in times] + ([newest] if newest is not None else []), default=None)
            if query._driver.load.rates():
                if action == "out":
                    query.scale_out(1)
                elif action == "in" and query.topology.servers > 1:
                    query.scale_in(1)
            if action == "restart":
                query.restart()
        query.finish()
        expected += sorted(set_before)
        assert sorted((row[1], row[3]) for row in told(query)) == sorted(expected)
        assert inspect(folder)["health"]["ok"]  # as many entries as are on record, each on one server
