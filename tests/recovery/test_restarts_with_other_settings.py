"""A query starts again on its checkpoint with other settings: every count goes on where it was."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

import weir
import weir.testing
from weir.engine.batch import bootstrap, ledger
from weir.errors import CheckpointError, CheckpointMismatch, EngineError

SCHEMA = "place string, topic string, n long"


def drifting(batches, rows=600, places=30, topics=240, every=3, seed=0):
    """Rows whose topics keep affinity with other places every few batches."""
    rng = np.random.default_rng(seed)
    out = []
    for batch in range(batches):
        shift = 7 * (batch // every)
        topic = rng.integers(0, topics, rows)
        place = (topic + shift) % places
        out.append(
            pa.table(
                {
                    "place": [f"place {p}" for p in place],
                    "topic": [f"topic {t}" for t in topic],
                    "n": pa.array(rng.integers(0, 100, rows)),
                }
            )
        )
    return out


def counts(tables, column):
    return dict(collections.Counter(v for t in tables for v in t[column].to_pylist()))


def check(query, tables, names=("place", "topic")):
    for name in names:
        rows = query.state(name).select([name, "count"]).to_pylist()
        assert len(rows) == len({r[name] for r in rows}), f"a key of {name} lives in two places"
        assert {r[name]: r["count"] for r in rows} == counts(tables, name)


def two_counts(**options):
    return (
        weir.source(SCHEMA)
        .keyed("place", weir.Count(emit="rows"), **options)
        .keyed("topic", weir.Count(), **options)
    )


LOCALITY = weir.Locality(period=1, forecast=None)


@pytest.mark.parametrize("between", [weir.Hash(), weir.PartialKey()], ids=["hash", "pkg"])
def test_locality_then_another_routing_then_locality_again(between):
    tables = drifting(9)
    with weir.testing.start(two_counts(), servers=4, routing=LOCALITY) as query:
        for number, table in enumerate(tables):
            if number == 3:
                query.restart(routing=between)
            if number == 6:
                query.restart(routing=LOCALITY)
            if number not in (3, 4, 5):
                query.reconfigure(wait=True)
            query.feed(table)
            check(query, tables[: number + 1])


@pytest.mark.parametrize(
    "after", [weir.Hash(), weir.Table.of({f"topic {t}": t % 3 for t in range(200)}), LOCALITY, weir.Shuffle()]
)
def test_states_of_split_keys_find_the_homes_of_another_routing(after):
    tables = drifting(4)
    with weir.testing.start(two_counts(routing=weir.PartialKey()), servers=3) as query:
        query.feed(tables[0])
        query.feed(tables[1])
        query.restart(two_counts(), routing=after)
        query.feed(tables[2])
        check(query, tables[:3])
        query.feed(tables[3])
        check(query, tables)


def test_a_move_that_names_the_wrong_server_stops_the_batch(monkeypatch):
    """A key whose state is elsewhere than a move says is never started anew."""
    from weir.engine.steering import learning

    tables = drifting(4)
    real = learning.write_moves

    def wrong(storage, operator, batch, moves):
        return real(
            storage, operator, batch, moves._replace(source=((moves.source + 1) % 4).astype(np.int32))
        )

    with weir.testing.start(two_counts(), servers=4, routing=LOCALITY) as query:
        query.feed(tables[0])
        query.reconfigure(wait=True)
        monkeypatch.setattr(learning, "write_moves", wrong)
        with pytest.raises(EngineError, match="server"):
            query.feed(tables[1])
        check(query, tables[:1])


def test_batches_out_of_order_are_refused(tmp_path):
    with weir.testing.start(two_counts(), servers=2) as query:
        for table in drifting(3):
            query.feed(table)
        for number in (0, 1, 5):
            with pytest.raises(CheckpointMismatch, match="source"):
                query._driver.batch(query._rows(drifting(1)[0]), number)


def test_a_failing_partitioner_does_not_stop_the_stream(monkeypatch):
    from weir.engine.steering import learning

    tables = drifting(5)

    def broken(snapshot):
        raise MemoryError("no room for the graph")

    with weir.testing.start(two_counts(), servers=3, routing=LOCALITY) as query:
        query.feed(tables[0])
        monkeypatch.setattr(learning, "propose", broken)
        query.reconfigure(wait=True)
        query.feed(tables[1])
        query.reconfigure(wait=True)
        query.feed(tables[2])
        assert "no room for the graph" in query.decisions[-1].error
        monkeypatch.undo()
        query.reconfigure(wait=True)  # one that fails may still be under way
        query.feed(tables[3])
        query.reconfigure(wait=True)
        query.feed(tables[4])
        assert query.decisions[-1].error is None
        check(query, tables)


@pytest.mark.parametrize(
    "second", [{}, {"servers": 3}, {"routing": LOCALITY}], ids=["same", "servers", "routing"]
)
def test_a_second_driver_takes_over_and_the_first_is_refused(tmp_path, second):
    tables = drifting(4)
    first = weir.testing.start(two_counts(), str(tmp_path), servers=2)
    first.feed(tables[0])
    other = weir.testing.start(two_counts(), str(tmp_path), **{"servers": 2, **second})
    with pytest.raises(CheckpointError, match="another driver"):
        first.feed(tables[1])
    other.feed(tables[1])
    with pytest.raises(CheckpointError, match="another driver"):
        first.feed(tables[1])
    with pytest.raises(CheckpointError, match="another driver"):
        first._driver.ledger.clean()
    other.feed(tables[2])
    check(other, tables[:3])


def test_an_application_that_is_refused_takes_nothing_over(tmp_path):
    tables = drifting(2)
    first = weir.testing.start(two_counts(), str(tmp_path), servers=2)
    first.feed(tables[0])
    other = weir.source(SCHEMA).keyed("place", weir.Aggregate(total="sum(n)"))
    with pytest.raises(CheckpointMismatch):
        weir.testing.start(other, str(tmp_path), servers=2)
    first.feed(tables[1])
    check(first, tables)


def test_giving_up_rows_of_an_operator_that_stays_leaves_its_keys_where_scaling_has_put_them(checkpoint):
    tables = drifting(4)
    with weir.testing.start(two_counts(), checkpoint, servers=2) as query:
        query.feed(tables[0])
        query.scale_out(1)
        query.feed(tables[1])
    with weir.testing.start(two_counts(), checkpoint, servers=2, forget={"undelivered": ["topic"]}) as query:
        query.feed(tables[2])
        query.scale_in(1)
        query.feed(tables[3])
        check(query, tables)


@pytest.mark.parametrize("meanwhile", ["batches", "scalings"])
def test_a_driver_that_starts_while_another_goes_on_is_refused_before_it_does_anything(
    meanwhile, checkpoint, monkeypatch
):
    tables = drifting(8)
    query = weir.testing.start(two_counts(), checkpoint, servers=2)
    query.feed(tables[0])
    query.scale_out(1)
    query.feed(tables[1])

    def go_on():
        monkeypatch.undo()
        query.feed(tables[2])
        if meanwhile == "scalings":
            query.scale_out(1)
            query.feed(tables[3])
            query.scale_in(1)
            query.feed(tables[4])

    # either between reading the last commit and claiming the checkpoint, or before it is read for the second time
    module, name = (ledger, "Fence") if meanwhile == "batches" else (bootstrap, "Clock")
    real = getattr(module, name)

    def late(*terms):
        go_on()
        return real(*terms)

    monkeypatch.setattr(module, name, late)
    with pytest.raises(CheckpointError, match="another driver was at work while this one started"):
        weir.testing.start(two_counts(), checkpoint, servers=2)
    fed = 3 if meanwhile == "batches" else 5
    with weir.testing.start(two_counts(), checkpoint, servers=2) as again:
        again.feed(tables[5])
        check(again, [*tables[:fed], tables[5]])


@dataclass
class Seen:
    n: int = 0
    places: weir.MapState[str, int] = field(default_factory=weir.MapState)


class Remember(weir.Process):
    """Tells how many rows a topic has had, and of which places."""

    state = Seen
    output = "topic string, n long, places long"

    def process(self, key, rows, state):
        for row in rows:
            state.n += 1
            state.places[row.place] = state.n
        yield key, state.n, len(state.places)

    def expired(self, key, state):
        yield key, -state.n, len(state.places)


@pytest.mark.parametrize("servers", [2, 3], ids=["as before", "laid out anew"])
def test_keys_whose_time_was_up_while_there_was_no_ttl_expire_when_there_is_one_again(servers):
    now = [1000]

    def app(ttl):
        return weir.source(SCHEMA).keyed("topic", Remember(), name="topic", ttl=ttl)

    def told(topic, place, at):
        now[0] = at
        query.feed([{"topic": topic, "place": place, "n": 1}])
        return sorted(tuple(row.values()) for row in query.output("topic", query.progress.batch).to_pylist())

    with weir.testing.start(app("10 s"), servers=2, clock=lambda: now[0] * 1_000_000) as query:
        told("a", "x", 1000)
        told("b", "x", 1001)
        query.restart(app(None))
        told("c", "x", 1100)
        query.restart(app("10 s"), servers=servers)
        assert told("a", "y", 1101) == [("a", -1, 1), ("a", 1, 1), ("b", -1, 1)]
        assert told("a", "y", 1200) == [("a", -1, 1), ("a", 1, 1)]
        assert sorted(query.state("topic")["topic"].to_pylist()) == ["a", "c"]
