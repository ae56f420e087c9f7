"""Functions of users that misbehave: each gets a clear error with its operator and row, or is diverted."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import pytest

import weir
from weir.errors import OperatorError, TopologyError, WeirError
from weir.testing import run, start

ROWS = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}]


@dataclass
class Tally:
    n: int = 0


class Odd(Exception):
    """An error whose text can't be had."""

    def __str__(self):
        raise RuntimeError("no text")


def half_way(key, rows, state):
    yield key, 1
    raise KeyError("half-way")


def exits(key, rows, state):
    sys.exit(3)


def raises_odd(key, rows, state):
    raise Odd


def stops(key, rows, state):
    raise StopIteration


def returns_a_number(key, rows, state):
    return 5


def too_many(key, rows, state):
    yield key, 1, 2


def wrong_type(key, rows, state):
    yield 1, key


def spoils_its_state(key, rows, state):
    state.n = object()


def changes_its_rows(key, rows, state):
    rows[0].n = 7


MISBEHAVING = {
    half_way: "KeyError: 'half-way'",
    exits: r"it called sys.exit\(3\), which would end the worker",
    raises_odd: "Odd",
    stops: "StopIteration",
    returns_a_number: "TypeError",
    too_many: "but the declared columns are k, n",
    wrong_type: "column 'k' is declared as string: 1 does not fit",
    spoils_its_state: "cannot be saved: object",
    changes_its_rows: "AttributeError",
}


def app(function, on_error="fail"):
    source = weir.source("k string, n long")
    return source.process(
        "k", function, state=Tally, output="k string, n long", name="mine", on_error=on_error
    )


@pytest.mark.parametrize("execution", ["jobs", "live"])
@pytest.mark.parametrize("function", MISBEHAVING, ids=lambda f: f.__name__)
def test_a_process_that_misbehaves_is_named(function, execution):
    with pytest.raises(OperatorError, match=f"operator 'mine'.*{MISBEHAVING[function]}"):
        run(app(function), [ROWS], servers=2, execution=execution)


@pytest.mark.parametrize("function", MISBEHAVING, ids=lambda f: f.__name__)
def test_or_its_rows_go_to_the_dead_letters(function):
    query = run(app(function, "divert"), [ROWS], servers=2)
    assert query.output().num_rows == 0
    assert query.dead_letters.num_rows == len(ROWS)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda row: sys.exit("bye"), r"sys.exit\('bye'\)"),
        (lambda row: None, "which is no row"),
        (lambda row: 1 / 0, "ZeroDivisionError"),
        (lambda row: row.k, "which is no row"),
    ],
)
def test_a_map_that_misbehaves_is_named_with_its_row(function, why):
    mapped = weir.source("k string, n long").map(function, "k string", name="mine")
    with pytest.raises(WeirError, match=f"'mine'.*{why}.*'k': 'a'"):
        run(mapped, [ROWS], servers=1)


def loops(key, rows, state):
    while True:
        len(rows)


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_a_function_that_never_returns_is_ended_and_named(execution):
    stuck = weir.source("k string, n long").process(
        "k", loops, state=Tally, output="k string, n long", name="mine", timeout="200 ms"
    )
    with pytest.raises(
        OperatorError, match=r"'mine', key 'a': it did not return within 0\.2 s.*test_misbehaving"
    ):
        run(stuck, [ROWS], servers=1, execution=execution)


def test_or_its_rows_go_to_the_dead_letters_while_other_keys_are_served():
    def sometimes(key, rows, state):
        if key == "a":
            yield from loops(key, rows, state)
        yield key, len(rows)

    stuck = weir.source("k string, n long").process(
        "k", sometimes, state=Tally, output="k string, n long", on_error="divert", timeout="200 ms"
    )
    query = run(stuck, [ROWS], servers=1)
    a = sum(row["k"] == "a" for row in ROWS)
    assert query.dead_letters.num_rows == a
    assert query.output().column("n").to_pylist() == [len(ROWS) - a]


def test_a_map_that_never_returns_is_ended_and_named():
    stuck = weir.source("k string, n long").map(
        lambda row: loops(row.k, [row], None), "k string", name="mine", timeout=0.2
    )
    with pytest.raises(OperatorError, match=r"'mine': it did not return within 0\.2 s.*at one of \d rows"):
        run(stuck, [ROWS], servers=1)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(TopologyError, match="timeout=0: expected more than nothing"):
        weir.source("k string, n long").map(lambda row: row, "k string, n long", timeout=0)


def test_an_error_says_where_in_your_code_it_was_raised():
    with pytest.raises(OperatorError, match=r"KeyError: 'half-way' \(test_misbehaving\.py, line \d+\)"):
        run(app(half_way), [ROWS], servers=1)


def test_what_cannot_be_sent_to_executors_is_refused_by_tests_too():
    lock = threading.Lock()

    def locked(key, rows, state):
        with lock:
            return

    with pytest.raises(TopologyError, match=r"operator 'mine' can't be sent to the executors .*a lock"):
        start(app(locked), servers=1)


def test_a_misspelt_trigger_is_refused():
    with pytest.raises(TopologyError, match="no 'availablenow'; did you mean 'availableNow'"):
        weir.Options(servers=1, trigger={"availablenow": True})


def test_a_sink_that_can_never_be_written_is_refused_before_any_row(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    query = start(app(half_way), servers=1, sink=str(tmp_path / "file" / "out"))
    with pytest.raises(weir.errors.SinkError, match="is no folder; use another path"):
        query.feed(ROWS)
    assert query.progress is None
