"""A small table beside the rows: refreshed between batches, the same for a batch that runs again."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import dicts, rows_of
from weir.errors import SourceError, TopologyError
from weir.testing import run, start

SCHEMA = "k string, n long"
ROWS = [{"k": "a", "n": 2}, {"k": "b", "n": 3}]


class Prices:
    """A table that changes whenever it is read."""

    def __init__(self, *changes):
        self.reads, self.changes = 0, changes

    def __call__(self):
        price = self.changes[min(self.reads, len(self.changes) - 1)]
        self.reads += 1
        return [{"k": "a", "price": price}, {"k": "b", "price": 10 * price}]


def priced(side):
    def price(row, prices):
        return row.k, row.n * prices[row.k].price

    return weir.source(SCHEMA).map(price, "k string, cost long", side=side)


@pytest.mark.parametrize("fault", ["plan-written:1", "job-done:1", "commit-written:1", "step-started:101"])
def test_a_batch_that_runs_again_sees_what_it_saw_before(fault):
    prices = Prices(1, 2, 3)
    counts = priced(weir.SideInput(prices, key="k")).keyed("k", weir.Aggregate(cost="sum(cost)"))
    query = run(counts, [ROWS, ROWS, ROWS], servers=2, faults=[fault])
    assert query.pending_faults == []
    assert rows_of(query.state("k")) == [("a", 2 * 6), ("b", 3 * 60)]
    assert prices.reads == 3, "a batch that was planned is not planned again"


def test_only_a_table_that_changed_is_written_again_and_old_ones_are_cleaned_away(tmp_path):
    prices = Prices(*[1] * 8, *[2] * 30)
    with start(priced(weir.SideInput(prices, key="k")), str(tmp_path), servers=1, retain=2) as query:
        for _ in range(8):
            query.feed(ROWS)
        assert len(list(tmp_path.glob("side/map/*/*.arrow"))) == 1
        for _ in range(16):
            query.feed(ROWS)
        assert [p.parent.name for p in tmp_path.glob("side/map/*/*.arrow")] == ["000000000008"]
        query.restart()
        query.feed(ROWS)
        assert dicts(query.output("map", 24))[0]["cost"] in (4, 60)


def test_every_says_how_often_it_is_read():
    times = iter(range(100, 200))
    prices = Prices(1, 2, 3, 4, 5)
    query = start(
        priced(weir.SideInput(prices, key="k", every="3 s")), servers=1, clock=lambda: next(times) * 1_000_000
    )
    for _ in range(7):
        query.feed(ROWS)
    assert [dicts(query.output("map", b))[0]["cost"] for b in range(7)] == [2, 2, 2, 4, 4, 4, 6]


@dataclass
class Total:
    cost: int = 0


def test_all_functions_can_have_one():
    table = pa.table({"k": ["a"], "price": [5]})
    plain, by_key = weir.SideInput(table), weir.SideInput(lambda: table, key="k")

    def add(key, rows, state, prices):
        state.cost += sum(row.n for row in rows) * prices.num_rows
        yield key, state.cost

    app = (
        weir.source(SCHEMA)
        .filter(lambda row, prices: row.k in prices, side=by_key)
        .filter_batches(lambda batch, prices: pc.is_in(batch["k"], prices["k"].combine_chunks()), side=plain)
        .map_batches(
            lambda batch, prices: {"k": batch["k"], "n": pc.add(batch["n"], prices["price"][0])}, side=plain
        )
        .flat_map(lambda row, prices: [row] * prices[row.k].price, side=by_key)
        .process("k", add, state=Total, output="k string, cost long", side=plain, name="total")
    )
    query = run(app, [ROWS], servers=2)
    assert rows_of(query.output("total")) == [("a", 35)]


def test_what_cannot_be_is_refused():
    def broken():
        raise ConnectionError("no route")

    query = start(priced(weir.SideInput(broken, key="k")), servers=1)
    with pytest.raises(SourceError, match="side input of operator 'map': .*ConnectionError: no route"):
        query.feed(ROWS)
    with pytest.raises(TopologyError, match="no column 'key'"):
        weir.SideInput([{"k": 1}], key="key")
    with pytest.raises(TopologyError, match="expected a weir.SideInput"):
        weir.source(SCHEMA).map(lambda row, t: row, side=[{"k": 1}])
    with pytest.raises(TopologyError, match="no function that could take a side input"):
        weir.source(SCHEMA).keyed("k", weir.Count(), side=weir.SideInput([{"k": 1}]))
