"""An application gains a value or a field and goes on from the checkpoint that it has."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pytest

import weir
import weir.testing
from support import dicts, grouped, posts
from weir.errors import CheckpointMismatch
from weir.operators.process.state_types import extends

SCHEMA = "place string, topic string, n long"
LOCALITY = weir.Locality(period=1, forecast=None)
TABLES = [posts(300, seed, places=12, topics=60) for seed in range(8)]


@dataclass
class Before:
    rows: int = 0


@dataclass
class Detail:
    most: int = -1


@dataclass
class After:
    last: str = "none yet"
    rows: int = 0
    seen: list[int] = field(default_factory=list)
    detail: Detail = field(default_factory=Detail)


class CountsRows(weir.Process):
    state = Before

    def process(self, key, rows, state):
        state.rows += len(rows)


class CountsMore(weir.Process):
    state = After
    order_by = "n"

    def process(self, key, rows, state):
        state.rows += len(rows)
        state.seen += [row.n for row in rows]
        state.last = rows[-1].place
        state.detail.most = max(state.detail.most, rows[-1].n)


def application(grown, topics=None):
    values = {"rows": "count"}
    if grown:
        # before and behind what was there
        values = {
            "total": "sum(n)",
            "rows": "count",
            "kinds": "approx_distinct(n)",
            "top": "top_k(n, 2)",
            "m": "mean(n)",
        }
    return (
        weir.source(SCHEMA)
        .keyed("place", weir.Aggregate(**values, emit="rows"), name="places")
        .keyed("topic", CountsMore() if grown else CountsRows(), name="topics", routing=topics)
    )


def check(query, before, after):
    """Compare with plain Python: old values count from the start, new ones from the restart."""
    everything, new = grouped([*before, *after], "place"), grouped(after, "place")
    for row in dicts(query.state("places")):
        fresh = [r["n"] for r in new.get((row["place"],), [])]
        assert row["rows"] == len(everything.pop((row["place"],)))
        assert row["total"] == (sum(fresh) if fresh else None)
        assert row["m"] == (pytest.approx(sum(fresh) / len(fresh)) if fresh else None)
        assert row["top"] == sorted(fresh, reverse=True)[:2]
        assert abs(row["kinds"] - len(set(fresh))) <= 0.15 * len(set(fresh))
    assert not everything
    everything, new = grouped([*before, *after], "topic"), grouped(after, "topic")
    for row in dicts(query.state("topics")):
        fresh = [r["n"] for r in new.get((row["topic"],), [])]
        assert row["rows"] == len(everything.pop((row["topic"],)))
        assert sorted(msgspec.json.decode(row["seen"] or "[]")) == sorted(fresh)
        assert not fresh or msgspec.json.decode(row["detail"])["most"] == max(fresh)
    assert not everything


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"servers": 3}, {}),
        ({"servers": 3}, {"servers": 5}),
        ({"servers": 3, "routing": LOCALITY}, {}),
        ({"servers": 3, "routing": LOCALITY}, {"servers": 2, "routing": weir.Hash()}),
    ],
    ids=["as it was", "more servers", "keys move", "another routing"],
)
def test_new_values_and_fields_start_empty_and_old_ones_go_on(first, then):
    with weir.testing.start(application(False), **first) as query:
        for table in TABLES[:3]:
            query.feed(table)
        query.restart(application(True), **then)
        for number, table in enumerate(TABLES[3:6], 1):
            if query._driver.learner is not None:
                query.reconfigure(wait=True)
            query.feed(table)
            check(query, TABLES[:3], TABLES[3 : 3 + number])
        query.restart()
        query.feed(TABLES[6])
        check(query, TABLES[:3], TABLES[3:7])


@pytest.mark.parametrize("at_once", [1, 1 << 26], ids=["by ranges", "whole"])
def test_a_query_that_grew_scales_and_merges_its_old_segments(at_once, monkeypatch):
    monkeypatch.setattr("weir.state.merge.IN_MEMORY", at_once)
    few = pa.concat_tables(TABLES[:1])
    with weir.testing.start(application(False), servers=2) as query:
        query.feed(few)
        query.restart(application(True))
        after = []
        for number in range(12):  # more than it takes for segments from before to be merged
            if number == 4:
                query.scale_out(2)
            after.append(TABLES[number % 5].slice(0, 40))
            query.feed(after[-1])
        check(query, [few], after)


@dataclass
class OtherType:
    rows: str = ""


@dataclass
class Renamed:
    lines: int = 0


@pytest.mark.parametrize("state", [OtherType, Renamed, None])
def test_a_state_that_loses_a_field_or_changes_its_type_is_refused(state):
    def process(key, rows, state):
        pass

    def app(kind):
        return weir.source(SCHEMA).process("topic", process, state=kind, name="topics")

    with weir.testing.start(app(Before), servers=2) as query:
        query.feed(TABLES[0])
        with pytest.raises(CheckpointMismatch, match="'topics' has another definition now"):
            query.restart(app(state))


@pytest.mark.parametrize("values", [{"total": "sum(n)"}, {"rows": "sum(n)"}, {"rows": "count(n)"}])
def test_an_aggregate_that_loses_or_redefines_a_value_is_refused(values):
    def app(**values):
        return weir.source(SCHEMA).keyed("topic", weir.Aggregate(**values), name="topics")

    with weir.testing.start(app(rows="count"), servers=2) as query:
        query.feed(TABLES[0])
        with pytest.raises(CheckpointMismatch, match="'topics' has another definition now"):
            query.restart(app(**values))


class Inner(msgspec.Struct):
    a: int


class InnerMore(msgspec.Struct):
    a: int
    b: int


def test_a_nested_field_without_a_default_does_not_extend():
    def schema(kind):
        return msgspec.json.schema(kind)

    assert extends(schema(dict[str, list[Inner]]), schema(dict[str, list[Inner]]))
    assert not extends(schema(dict[str, list[Inner]]), schema(dict[str, list[InnerMore]]))
    assert not extends(schema(list[int]), schema(list[str]))
    assert not extends(schema(int | None), schema(int))
