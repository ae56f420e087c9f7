"""Whatever a user's code does wrong, ``on_error="divert"`` sends its rows to the dead letters and keeps the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

import weir
import weir.testing
from weir.engine.documents import TaskReport
from weir.engine.task.task_files import TaskFiles, TaskOutputs
from weir.errors import OperatorError
from weir.flow import parts_of
from weir.graph.model import DEAD_LETTERS
from weir.state.storage import Storage

SCHEMA = "key string, n long"


@dataclass
class Seen:
    total: int = 0
    kept: list = field(default_factory=list)


class Fragile(weir.Process):
    """Fails in the way that a row asks for, by its number."""

    state = Seen
    output = {"key": "string", "total": "long"}

    def process(self, key, rows, state):
        for row in rows:
            state.total += row.n
            if row.n == 13:
                raise ValueError("unlucky")
            if row.n == 14:
                state.total = 1 << 70  # no such number in a saved state
            if row.n == 15:
                state.kept.append(object())  # cannot be saved
            if row.n == 16:
                yield key, "sixteen"  # not of the declared type
            if row.n == 17:
                yield key, 1 << 70
            if row.n == 18:
                yield {"key": key}  # a column is missing
        yield key, state.total

    def expired(self, key, state):
        if state.total == 99:
            raise RuntimeError("cannot let go")
        if state.total == 98:
            return [(key, "ninety-eight")]
        return [(key, -state.total)]

    def merge(self, one, other):
        if one.total + other.total == 77:
            raise RuntimeError("cannot merge")
        return Seen(one.total + other.total)


def rows(*pairs):
    return [{"key": k, "n": n} for k, n in pairs]


BAD = [13, 14, 15, 16, 17, 18]


def app(on_error, **options):
    return weir.source(SCHEMA).keyed("key", Fragile(), name="f", on_error=on_error, **options)


@pytest.mark.parametrize("bad", BAD)
def test_a_key_that_fails_is_diverted_with_its_rows_and_keeps_its_state(bad):
    batches = [rows(("a", 1), ("b", 2)), rows(("a", bad), ("b", 3), ("a", 4)), rows(("a", 5), ("b", 6))]
    result = weir.testing.run(app("divert"), batches, servers=2)
    totals = {r["key"]: r["total"] for r in result.state("f").to_pylist()}
    assert totals == {"a": 6, "b": 11}
    letters = result.dead_letters.to_pylist()
    assert {letter["row"] for letter in letters} == {f'{{"key":"a","n":{n}}}' for n in (4, bad)}
    assert len(letters) == 2
    assert {letter["key"] for letter in letters} == {"a"}
    assert result.recent_progress[1].operators["f"].diverted == 2
    emitted = [(r["key"], r["total"]) for r in result.output("f", batch=1).to_pylist()]
    assert emitted == [("b", 5)]
    assert result.progress.state_keys["f"] == 2


@pytest.mark.parametrize("bad", BAD)
def test_without_divert_the_error_names_operator_and_key(bad):
    with pytest.raises(OperatorError, match="operator 'f'"):
        weir.testing.run(app("fail"), [rows(("a", bad))], servers=2)


def test_keys_that_cannot_be_let_go_are_diverted_with_their_state():
    now = [0]
    query = weir.testing.start(app("divert", ttl="1 second"), servers=2, clock=lambda: now[0])
    query.feed(rows(("a", 99), ("b", 98), ("c", 5)))
    now[0] = 3_000_000
    query.feed(rows(("d", 1)))
    assert [r["key"] for r in query.state("f").to_pylist()] == ["d"]
    letters = {letter["key"]: letter["row"] for letter in query.dead_letters.to_pylist()}
    assert set(letters) == {"a", "b"}
    assert '"total":99' in letters["a"]
    assert ("c", -5) in [(r["key"], r["total"]) for r in query.output("f", batch=1).to_pylist()]


def test_partial_states_that_cannot_be_merged_are_diverted_and_the_saved_one_stays():
    query = weir.testing.start(app("divert", routing=weir.Shuffle()), servers=2, source_tasks=1)
    query.feed(rows(("a", 7), ("b", 1)))
    query.feed(rows(("a", 70), ("b", 1)))  # 7 + 70 cannot be merged
    query.feed(rows(("a", 1), ("b", 1)))
    assert {r["key"]: r["total"] for r in query.state("f").to_pylist()} == {"a": 8, "b": 3}
    (letter,) = query.dead_letters.to_pylist()
    assert letter["key"] == "a"
    assert '"total":70' in letter["row"]
    assert query.progress.state_keys["f"] == 2


def test_rows_that_json_cannot_hold_are_dead_letters_all_the_same():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def fail(key, rows, state):
        raise Unspeakable

    app = weir.source("key string, n decimal(38,0), text string").process(
        "key", fail, name="fails", state=Seen, on_error="divert"
    )
    table = pa.table(
        {
            "key": ["a", "b"],
            "n": pa.array([10**37, 1], pa.decimal128(38, 0)),
            "text": ["x", "y"],
        }
    )
    with weir.testing.start(app, servers=2) as query:
        query.feed(table)
        letters = query.dead_letters.to_pylist()
    assert sorted(letter["key"] for letter in letters) == ["a", "b"]
    assert {letter["error"] for letter in letters} == {"Unspeakable: (its message cannot be read)"}


@pytest.mark.parametrize(
    "row", [{"n": 1 << 70}, {"text": "half a pair: \ud83d"}, {"odd": {(1, 2): float("nan")}}]
)
def test_what_json_cannot_hold_is_written_as_python_shows_it(row, tmp_path):
    app = weir.source(SCHEMA).process("key", Fragile(), name="fails", on_error="divert")
    topology = parts_of(app).topology(1, sinks=[DEAD_LETTERS])
    outputs = TaskOutputs(
        TaskFiles(Storage(tmp_path), report := TaskReport(server=0, step=1), 0, 0), topology
    )
    outputs.divert(topology.by_name["fails"], "key \ud83d", row, ValueError("half a pair: \ud83d"))
    outputs.write()
    assert [ref.rows for ref in report.outputs[DEAD_LETTERS]] == [1]
