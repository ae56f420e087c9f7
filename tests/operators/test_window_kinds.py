"""Sliding and session windows, of aggregates and of a user's own operator, beside plain Python."""

from __future__ import annotations

import datetime as dt
import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts, rows_of
from weir.testing import run, start

SCHEMA = "k string, time timestamp, n long"
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
WINDOWS = {
    "tumbling": weir.tumbling("time", 60, lateness=20),
    "sliding": weir.sliding("time", 60, 20, lateness=20),
    "uneven": weir.sliding("time", 50, 30, lateness=20),
    "session": weir.session("time", 15, lateness=20),
}


@dataclass
class Collected:
    numbers: list[int] = field(default_factory=list)


class Collect(weir.Process):
    """Tells the numbers of a window when it closes."""

    state = Collected
    output = {"k": "string", "start": "timestamp", "end": "timestamp", "numbers": "string"}

    def process(self, key, rows, state):
        state.numbers = sorted([*state.numbers, *(row.n for row in rows)])

    def merge(self, one, other):
        return Collected(sorted([*one.numbers, *other.numbers]))

    def closed(self, key, window, state):
        yield key, window.start, window.end, ",".join(map(str, state.numbers))


def second(number):
    return NOON + dt.timedelta(seconds=number)


def table(batch):
    return [{"k": key, "time": second(time), "n": n} for key, time, n in batch]


def windows_in_python(batches, window):
    """Return key, start, end and numbers of all windows, and how many rows are late."""
    size, step = window.size // 10**6, window.step // 10**6
    lateness = window.lateness // 10**6
    newest, mark, late = None, None, 0
    open_windows, done = {}, []  # (key, start, end) → numbers

    def close(until):
        for one in [w for w in open_windows if w[2] <= until]:
            done.append((*one, sorted(open_windows.pop(one))))

    for batch in batches:
        if newest is not None:
            mark = max(newest - lateness, mark if mark is not None else newest - lateness)
        for key, time, n in batch:
            if window.session:
                if mark is not None and time + size <= mark:
                    late += 1
                    continue
                start, end, numbers = time, time + size, [n]
                for one in [w for w in open_windows if w[0] == key and w[1] <= end and start <= w[2]]:
                    start, end = min(start, one[1]), max(end, one[2])
                    numbers += open_windows.pop(one)
                open_windows[key, start, end] = numbers
                continue
            starts = [s for s in range(time - time % step, time - size, -step) if s + size > time]
            starts = [s for s in starts if mark is None or s + size > mark]
            late += not starts
            for start in starts:
                open_windows.setdefault((key, start, start + size), []).append(n)
        if mark is not None:
            close(mark)
        newest = max([time for _, time, _ in batch] + ([newest] if newest is not None else []), default=None)
    close(10**9)
    return sorted(done), late


def results(query, name):
    """Return what an operator told in the form of the truth."""
    out = []
    for row in dicts(query.output(name)):
        start, end = (row.get("start") or row["window_start"]), (row.get("end") or row["window_end"])
        seconds = [int((t - NOON).total_seconds()) for t in (start, end)]
        if "numbers" in row:
            out.append((row["k"], *seconds, [int(n) for n in row["numbers"].split(",")]))
        else:
            out.append((row["k"], *seconds, row["rows"], row["total"]))
    return sorted(out)


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 60), st.integers(0, 9)), max_size=12
)
steps = st.lists(st.tuples(rows, st.integers(0, 50)), min_size=1, max_size=6)


@settings(max_examples=14, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(WINDOWS)),
    steps,
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["job-done", "commit-written"]), st.integers(0, 5)), max_size=2, unique=True
    ),
    st.sampled_from([None, "restart", "out", "move"]),
)
def test_every_kind_of_window_is_what_plain_python_says(kind, story, servers, crashes, between):
    window = WINDOWS[kind]
    batches, base = [], 0
    for batch, pause in story:  # time goes on, with rows that are late, very late or in order
        batches.append([(key, base + time, n) for key, time, n in batch])
        base += pause
    source = weir.source(SCHEMA).keyed(
        "n", weir.Count(emit="rows"), name="first"
    )  # rows come from everywhere
    app = weir.Application(
        source.keyed("k", weir.Aggregate(rows="count", total="sum(n)"), name="sums", window=window),
        source.keyed("k", Collect(), name="own", window=window),
    )
    with tempfile.TemporaryDirectory() as folder:
        routing = weir.Locality(period=1, forecast=None) if between == "move" else None
        faults = [f"{point}:{batch}" for point, batch in crashes]
        query = start(app, folder, servers=servers, seed=servers, routing=routing, faults=faults)
        for number, batch in enumerate(batches):
            query.feed(table(batch))
            if between == "restart" and number == 1:
                query.restart(servers=servers + 1)
            elif between == "out" and number == 1 and query._driver.load.rates():
                query.scale_out(1)
        query.finish()
        expected, late = windows_in_python(batches, window)
        assert results(query, "own") == expected
        assert results(query, "sums") == [(k, s, e, len(n), sum(n)) for k, s, e, n in expected]
        for name in ("sums", "own"):
            assert query.late(name).num_rows == late
            assert query.progress.state_keys[name] == query.state(name).num_rows == 0


def test_a_row_between_two_saved_sessions_makes_them_one():
    app = weir.Application(
        weir.source(SCHEMA).keyed("k", weir.Count(), name="counts", window=WINDOWS["session"]),
    )
    query = start(app, servers=2)
    query.feed(table([("a", 0, 1), ("a", 30, 1), ("b", 0, 1)]))
    assert query.progress.state_keys == {"counts": 3}
    query.feed(table([("a", 15, 1)]))
    assert query.progress.state_keys == {"counts": 2}
    state = rows_of(query.state("counts"))
    assert state == [("a", second(0), second(45), 3), ("b", second(0), second(15), 1)]


def test_early_results_come_every_so_often_and_only_to_the_sink():
    now = [0]
    window = weir.tumbling("time", 60, early=10)
    early = weir.source(SCHEMA).keyed("k", weir.Aggregate(total="sum(n)"), name="early", window=window)
    app = early.keyed("k", weir.Aggregate(windows="count", total="sum(total)"), name="behind")
    faults = [f"{point}:{batch}" for point in ("job-done", "commit-written") for batch in (2, 3)]
    query = start(
        app,
        servers=2,
        sink=dict.fromkeys(["early", "behind"], lambda table, batch: None),
        clock=lambda: int(second(now[0]).timestamp() * 1_000_000),
        faults=faults,
    )

    def told(batch):
        return [(r["k"], r["total"], r["closed"]) for r in dicts(query.output("early", batch))]

    now[0] = 100
    query.feed(table([("a", 1, 1), ("b", 1, 1)]))
    now[0] = 105
    query.feed(table([("a", 2, 2)]))
    assert told(0) == told(1) == []
    now[0] = 112
    query.feed(table([("a", 3, 4)]))  # it is time: with what this batch has brought
    assert sorted(told(2)) == [("a", 7, False), ("b", 1, False)]
    now[0] = 125
    assert not query.tick()  # nothing has changed since
    query.feed(table([("b", 4, 8)]))
    assert told(3) == []
    now[0] = 136
    query.tick()  # on a quiet stream, too
    assert told(4) == [("b", 9, False)]
    query.feed(table([("b", 70, 1)]))
    query.feed(table([("b", 71, 1)]))
    closed = sorted(told(6))
    assert closed == [("a", 7, True), ("b", 9, True)]
    assert rows_of(query.state("behind")) == [("a", 1, 7), ("b", 1, 9)]
    assert query.pending_faults == []
    assert "closed" in query.topology.by_name["early"].sink_out.names


def test_wrong_windows_are_refused():
    for wrong in (
        lambda: weir.sliding("time", 10, 20),
        lambda: weir.session("time", 0),
        lambda: weir.tumbling("t", -1),
    ):
        with pytest.raises(weir.errors.TopologyError):
            wrong()


def test_a_window_that_changes_is_refused_on_restart():
    def app(window):
        return weir.source(SCHEMA).keyed("k", weir.Count(), name="w", window=window)

    with tempfile.TemporaryDirectory() as folder:
        run(app(WINDOWS["sliding"]), [table([("a", 1, 1)])], folder, servers=1)
        with pytest.raises(weir.errors.CheckpointMismatch, match="another window"):
            start(app(WINDOWS["uneven"]), folder, servers=1)
