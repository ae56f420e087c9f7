"""A grouping and an operator defined outside the library get everything that the library's own get."""

from __future__ import annotations

import collections

import numpy as np
import pyarrow as pa
import pytest
from own_parts import Halves, Modulo, NearestRested, Peak, _PeakInstance

import weir
import weir.testing
from support import POSTS, posts, stream, write_batches
from weir.hashing import hash_columns, key_group

TABLES = [posts(400, seed, places=15, topics=60) for seed in range(4)]


def peaks(tables):
    out = collections.defaultdict(lambda: -1)
    for table in tables:
        for topic, n in zip(table["topic"].to_pylist(), table["n"].to_pylist(), strict=True):
            out[topic] = max(out[topic], n)
    return dict(out)


def counts(tables, column):
    return dict(collections.Counter(v for t in tables for v in t[column].to_pylist()))


def as_dict(table, key):
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert len({row[0] for row in rows}) == len(rows), f"a key of {key} lives in two places"
    return dict(rows)


def application(source, places, topics):
    return source.keyed("place", weir.Count(emit="rows"), name="places", routing=places).keyed(
        "topic", Peak("n"), name="topics", routing=topics
    )


def check(query, tables):
    assert as_dict(query.state("places"), "place") == counts(tables, "place")
    assert as_dict(query.state("topics"), "topic") == peaks(tables)


@pytest.mark.parametrize("places", [Halves(), Modulo(), NearestRested(), weir.Hash()], ids=lambda g: g.name)
@pytest.mark.parametrize("topics", [Halves(5), Modulo(), NearestRested()], ids=lambda g: g.name)
def test_scaled_out_and_in_killed_and_replayed(places, topics):
    app = application(weir.source(POSTS), places, topics)
    faults = ["plan-written:1", "step-started:101", "job-done:2", "commit-written:2", "sink-delivered:3"]
    with weir.testing.start(app, servers=2, faults=faults, hosts=["a", "a", "b"], seed=5) as query:
        query.feed(TABLES[0])
        query.scale_out(2)
        query.feed(TABLES[1])
        assert query.topology.servers == 4
        check(query, TABLES[:2])
        query.scale_in(1)
        query.feed(TABLES[2])
        assert query.topology.servers == 3
        check(query, TABLES[:3])
        query.restart(servers=2, routing=None)
        query.feed(TABLES[3])
        check(query, TABLES)
        assert query.progress.state_keys == {name: len(query.state(name)) for name in ("places", "topics")}
        for name, batch, rows in query.deliveries:  # however often a batch is delivered, it has the same rows
            assert rows.sort_by("topic") == query.output(name, batch).sort_by("topic")


def test_weighted_by_distance_and_told_about_load():
    app = application(weir.source(POSTS), weir.Hash(), NearestRested())
    with weir.testing.start(app, servers=3, hosts=["a", "a", "b"]) as query:
        for table in TABLES:
            query.feed(table)
        weights = query.progress.weights["places → topics"]
        # the own server and those of one's host are as near as it gets: a process, then a host
        assert weights["0"][0] == 2
        assert weights["2"][2] == 2
        assert min(weights["2"]) == 1
        assert set(query._driver.ledger.last.feedback) == {"topics"}
        check(query, TABLES)


def test_its_rule_agrees_with_its_routers():
    keys = hash_columns([pa.array([f"key {i}" for i in range(5000)])])
    for n in (1, 2, 3, 7):
        rule = Halves().rule(n)
        by_rule = rule.homes[key_group(keys, len(rule.homes))]
        assert np.array_equal(by_rule, Halves().router(n).route(keys))


def test_scaled_on_spark(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", TABLES[:1])
    app = application(weir.source(stream(spark, folder, POSTS)), Halves(), Modulo())
    query = app.start(checkpoint, servers=2, execution="jobs")
    try:
        query.process_all_available()
        assert query.progress.rows == len(TABLES[0])
        query.scale_out(1, share_slots=True)
        write_batches(tmp_path / "posts", TABLES[1:2])
        query.process_all_available()
        assert query.topology.servers == 3
        assert query.progress.rows == len(TABLES[1])
        state = {name: query.state(name).toArrow() for name in ("places", "topics")}
        assert as_dict(state["places"], "place") == counts(TABLES[:2], "place")
        assert as_dict(state["topics"], "topic") == peaks(TABLES[:2])
    finally:
        query.stop()


class Told(Peak):
    """The same, but it tells its sink alone: nothing goes on to other operators."""

    def instance(self, context):
        return _ToldInstance(self, context)


class _ToldInstance(_PeakInstance):
    def finish(self):
        self._told = next(super().finish(), None)
        return iter(())

    def updates(self):
        return None if self._told is None else self._told.batch


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_what_an_instance_returns_as_updates_reaches_its_sink(execution):
    rows = [{"place": "a", "n": 3}, {"place": "a", "n": 7}, {"place": "b", "n": 1}]
    source = weir.source("place string, n long")
    for operator in (Told("n"), Peak("n")):  # as updates, or as rows that it emits: the same, and once
        query = weir.testing.run(
            source.keyed("place", operator), [rows, rows], servers=2, execution=execution
        )
        assert sorted((r["place"], r["peak"]) for r in query.output().to_pylist()) == [("a", 7), ("b", 1)]
