"""``state.clear()``: a key is forgotten, as if it had never been there."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

import msgspec
import pytest

import weir
import weir.testing
from weir import ListState, MapState
from weir.engine.inspect.inspection import inspect
from weir.errors import OperatorError
from weir.testing import start

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
FAULTS = ("plan-written:1", "commit-written:1", "step-started:201", "commit-written:3")


@dataclass
class Seen:
    rows: int = 0
    numbers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Slots:
    rows: int = 0
    numbers: ListState[int] = field(default_factory=ListState)
    names: MapState[str, int] = field(default_factory=MapState)


class Struct(msgspec.Struct):
    rows: int = 0
    numbers: list[int] = msgspec.field(default_factory=list)


def every_third(key, rows, state):
    """Forget a key with its third row, and tell what it had."""
    for row in rows:
        state.rows += 1
        state.numbers.extend([row.n] * 200)  # long enough for entries of their own
        if state.rows == 3:
            yield {"key": key, "had": len(state.numbers)}
            state.clear()


def batches(n=5):
    return [[{"key": f"k{(5 * i + j) % 7}", "n": 1000 * i + j} for j in range(40)] for i in range(n)]


@pytest.mark.parametrize("kind", [Seen, Slots, Struct])
@pytest.mark.parametrize("settings", [{}, {"faults": FAULTS}, {"execution": "live"}])
def test_a_key_is_forgotten_and_begins_anew(tmp_path, kind, settings):
    rows = weir.source("key string, n long")
    app = rows.process("key", every_third, state=kind, output="key string, had long", order_by="n", name="it")
    seen: dict[str, int] = {}
    told = 0
    with start(app, str(tmp_path / "ckpt"), servers=3, **settings) as query:
        for batch in batches():
            query.feed(batch)
            for row in batch:
                seen[row["key"]] = (seen.get(row["key"], 0) + 1) % 3
                told += seen[row["key"]] == 0
            left = {key: count for key, count in seen.items() if count}
            assert {r["key"]: r["rows"] for r in query.state("it").to_pylist()} == left
        assert query.output("it")["had"].to_pylist() == [600] * told
        assert query.pending_faults == []
    assert inspect(str(tmp_path / "ckpt"))["health"]["ok"]  # keys and elements are counted there


def test_what_is_assigned_afterwards_is_kept_and_a_call_that_fails_clears_nothing():
    def function(key, rows, state):
        state.rows += 1
        if key == "kept":
            state.clear()
            state.rows = 7
        if key == "fails":
            state.clear()
            raise ValueError(key)

    app = weir.source("key string").process("key", function, state=Seen, name="it", on_error="divert")
    with start(app, servers=2, dead_letters=lambda *_: None) as query:
        query.feed([{"key": "kept"}, {"key": "other"}])
        query.feed([{"key": "kept"}, {"key": "other"}, {"key": "fails"}])
        state = sorted(query.state("it").to_pylist(), key=str)
        assert [(r["key"], r["rows"]) for r in state] == [("kept", 7), ("other", 2)]
        assert query.dead_letters.num_rows == 1


def test_a_timer_may_clear_and_keys_with_a_ttl_too():
    def function(key, rows, state, timers):
        state.rows += len(rows)
        timers.set(rows[0].time + dt.timedelta(minutes=1))

    def on_timer(key, timer, state, timers):
        yield {"key": key, "rows": state.rows}
        state.clear()

    rows = weir.source("key string, time timestamp").event_time("time")
    app = rows.process(
        "key",
        function,
        state=Seen,
        timers="event",
        on_timer=on_timer,
        output="key string, rows long",
        name="it",
        ttl="1 d",
    )
    with start(app, servers=2) as query:
        query.feed([{"key": "a", "time": NOON}, {"key": "b", "time": NOON + dt.timedelta(seconds=30)}])
        query.feed([{"key": "c", "time": NOON + dt.timedelta(seconds=80)}])
        # the timer of a goes off, and a has a row in the same batch
        query.feed([{"key": "a", "time": NOON + dt.timedelta(seconds=81)}])
        assert query.output("it").to_pylist() == [{"key": "a", "rows": 1}]
        query.feed([{"key": "c", "time": NOON + dt.timedelta(seconds=99)}])
        query.feed([{"key": "c", "time": NOON + dt.timedelta(seconds=100)}])  # now it is past the timer of b
        assert {r["key"]: r["rows"] for r in query.state("it").to_pylist()} == {"a": 1, "c": 3}


def test_a_type_with_a_clear_of_its_own_keeps_it():
    @dataclass
    class Own:
        rows: int = 0

        def clear(self):
            self.rows = -1

    app = weir.source("key string").process(
        "key", lambda key, rows, state: state.clear(), state=Own, name="it"
    )
    with start(app, servers=2) as query:
        query.feed([{"key": "a"}])
        assert query.state("it").to_pylist() == [{"key": "a", "rows": -1}]


def test_it_is_refused_where_a_key_has_several_states():
    def function(key, rows, state):
        state.clear()

    rows = weir.source("key string, time timestamp")
    merging = rows.process(
        "key", function, state=Seen, merge=lambda one, other: one, routing=weir.PartialKey()
    )
    windowed = rows.process("key", function, state=Seen, window=weir.tumbling("time", "1 minute"))
    for app in (merging, windowed):
        with (
            start(app, servers=2) as query,
            pytest.raises(OperatorError, match=r"clear\(\) of a state behind"),
        ):
            query.feed([{"key": "a", "time": NOON}])
