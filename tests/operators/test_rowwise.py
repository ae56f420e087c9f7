"""Functions of one row: what they get, what they may return, and what becomes of errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import weir
from support import POSTS, posts, rows_of
from weir.columns import to_schema
from weir.errors import OperatorError, TopologyError
from weir.operators import Filter, FilterRows, FlatMapRows, Map, MapRows
from weir.testing import run

BATCH = pa.record_batch({"place": ["a", "b", None], "n": [1, 2, 3]})


def mapped(operator, batch=BATCH):
    rows, parents = operator.apply(batch, operator.emits(batch.schema))
    return rows.to_pylist(), None if parents is None else parents.tolist()


def test_a_map_gets_named_tuples_and_returns_dicts_or_tuples():
    doubled = [{"place": "a", "m": 2}, {"place": "b", "m": 4}, {"place": None, "m": 6}]
    by_name = MapRows(lambda row: {"m": 2 * row.n, "place": row.place}, "place string, m int")
    by_position = MapRows(lambda row: (row.place, 2 * row.n), "place string, m int")
    assert mapped(by_name) == mapped(by_position) == (doubled, [0, 1, 2])
    assert isinstance(by_name, Map)


def test_a_map_without_a_schema_keeps_the_columns():
    rows, _ = mapped(MapRows(lambda row: row._replace(n=row.n + 10)))
    assert rows == [{"place": "a", "n": 11}, {"place": "b", "n": 12}, {"place": None, "n": 13}]
    rows, _ = mapped(MapRows(lambda row: row, columns=["n"]))
    assert rows == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_flat_map_returns_or_yields_rows_and_knows_their_parents():
    def copies(row):
        if row.place is not None:
            for number in range(row.n):
                yield row.place, number

    expected = [{"place": "a", "i": 0}, {"place": "b", "i": 0}, {"place": "b", "i": 1}]
    assert mapped(FlatMapRows(copies, "place string, i long")) == (expected, [0, 1, 1])
    assert mapped(FlatMapRows(lambda row: [{"i": row.n}] * (row.n - 1), "i long"))[1] == [1, 2, 2]
    assert mapped(FlatMapRows(lambda row: None, "i long")) == ([], [])


def test_a_filter_returns_a_boolean_and_null_is_false():
    assert FilterRows(lambda row: row.n > 1).mask(BATCH).to_pylist() == [False, True, True]
    assert FilterRows(lambda row: row.place and row.place == "a").mask(BATCH).to_pylist() == [
        True,
        False,
        False,
    ]
    assert issubclass(FilterRows, Filter)


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (
            MapRows(lambda row: None, "n long"),
            "it returned None, which is no row: a row is a dict or a tuple of n",
        ),
        (MapRows(lambda row: "ab", "a string, b string"), "it returned 'ab', which is no row"),
        (MapRows(lambda row: {"m": 1}, "n long"), "without 'n'"),
        (MapRows(lambda row: (1, 2), "n long"), "the declared columns are n"),
        (MapRows(lambda row: ("x",), "n long"), "column 'n' is declared as int64"),
        (MapRows(lambda row: (2**40,), "n int"), "column 'n' is declared as int32"),
        (FlatMapRows(lambda row: {"n": 1}, "n long"), "a flat_map returns several rows"),
        (FlatMapRows(lambda row: row, "place string, n long"), "a flat_map returns several rows"),
        (FlatMapRows(lambda row: 5, "n long"), "a flat_map returns several rows"),
        (
            FlatMapRows(lambda row: (row.n, 2), "n long"),
            r"which is no row: a row is a dict or a tuple of n; for one column, \(1,\)",
        ),
    ],
)
def test_what_is_returned_wrongly_is_explained(operator, says):
    with pytest.raises(TopologyError, match=says):
        mapped(operator)


def test_a_filter_that_returns_no_boolean_is_explained():
    with pytest.raises(TopologyError, match="a filter returns True or False for a row; it returned 1"):
        FilterRows(lambda row: row.n).mask(BATCH)


def test_an_error_of_the_function_itself_comes_through():
    def broken(row):
        yield (1,)
        yield (len(5),)

    with pytest.raises(TypeError, match=r"has no len\(\)"):
        mapped(FlatMapRows(broken, "n long"))


def test_operators_travel_to_other_processes_and_types_survive():
    when = datetime(2024, 5, 1, tzinfo=UTC)
    batch = pa.record_batch({"t": pa.array([when], pa.timestamp("us", "UTC")), "tags": [["x", "y"]]})
    operator = MapRows(lambda row: {"t": row.t, "first": row.tags[0]}, "t timestamp, first string")
    again = cloudpickle.loads(cloudpickle.dumps(operator))
    assert mapped(again, batch)[0] == [{"t": when, "first": "x"}]
    assert again.emits(batch.schema) == to_schema("t timestamp, first string")


def test_names_that_python_cannot_spell_are_numbered():
    batch = pa.record_batch({"class": [1], "n": [2]})
    assert mapped(MapRows(lambda row: (row._0 + row.n,), "s long"), batch)[0] == [{"s": 3}]


def test_rows_through_all_three_in_an_application():
    table = posts(2000, 1)

    def words(row):
        if row.n == 7:
            raise ValueError("seven")
        return [{"word": word, "n": row.n} for word in row.topic.split()]

    def application(**options):
        return (
            weir.source(POSTS)
            .keyed("place", weir.Count(emit="rows"))
            .map(lambda row: (row.topic.upper(), row.n), "topic string, n long", columns=["topic", "n"])
            .flat_map(words, "word string, n long", **options)
            .filter(lambda row: row.n >= 100 and row.word != "TOPIC")
            .keyed("word", weir.Count())
        )

    where = r"\(test_rowwise\.py, line \d+\); at row \{'topic': 'TOPIC .*'n': 7\}"
    with pytest.raises(OperatorError, match=rf"'flat_map': ValueError: seven {where}"):
        run(application(), [table], servers=2)

    query = run(application(on_error="divert"), [table], servers=2)
    letters = query.dead_letters.to_pylist()
    expected: dict[str, int] = {}
    for row in table.to_pylist():
        if row["n"] >= 100:
            word = row["topic"].split()[1]
            expected[word] = expected.get(word, 0) + 1
    assert rows_of(query.state("word")) == sorted(expected.items(), key=repr)
    sevens = [row["topic"].upper() for row in table.to_pylist() if row["n"] == 7]
    assert sevens
    assert sorted(json.loads(letter["row"])["topic"] for letter in letters) == sorted(sevens)
    assert {(letter["operator"], letter["error"]) for letter in letters} == {
        ("flat_map", "ValueError: seven")
    }
