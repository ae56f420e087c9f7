"""A stream and a table that changes: each row sees the latest row of its key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.errors import TopologyError, UnknownColumn
from weir.flow import parts_of
from weir.testing import run, start

ORDERS, PRICES = "item string, amount long", "item string, price long, version long, gone boolean"

ITEM = st.sampled_from("abc")
CHANGE = st.tuples(ITEM, st.integers(0, 99), st.integers(0, 9), st.booleans())
BATCHES = st.lists(
    st.tuples(st.lists(st.tuples(ITEM, st.integers(0, 9)), max_size=6), st.lists(CHANGE, max_size=4)),
    max_size=5,
)


def application(**options):
    orders, prices = weir.source(ORDERS, "orders"), weir.source(PRICES, "prices")
    return orders.lookup(prices, "item", name="priced", **options)


def batch(orders, changes):
    return {
        "orders": [{"item": i, "amount": n} for i, n in orders],
        "prices": [{"item": i, "price": p, "version": v, "gone": g} for i, p, v, g in changes],
    }


@pytest.mark.parametrize("how", ["left", "inner"])
@settings(max_examples=12)
@given(batches=BATCHES)
def test_changes_come_first_and_the_latest_counts(how, batches):
    # one change per item and batch, and versions that tell all changes apart: plain Python needs no rule for ties
    batches = [(orders, list({c[0]: c for c in changes}.values())) for orders, changes in batches]
    numbered = [
        (orders, [(i, p, 100 * v + number, g) for i, p, v, g in changes])
        for number, (orders, changes) in enumerate(batches)
    ]
    query = run(
        application(how=how, latest="version", deleted="gone"),
        [batch(*b) for b in numbered],
        servers=3,
        seed=1,
        faults=["job-done:1", "commit-written:2"],
    )
    table, expected = {}, []
    for orders, changes in numbered:
        for item, price, version, gone in changes:
            if item not in table or version >= table[item][1]:
                table[item] = (price, version)
                if gone:
                    del table[item]
        for item, amount in orders:
            price, version = table.get(item, (None, None))
            if how == "left" or item in table:
                expected.append((item, amount, price, version))
    rows = dicts(query.output("priced")) if batches else []
    assert sorted(map(repr, ((r["item"], r["amount"], r["price"], r["version"]) for r in rows))) == sorted(
        map(repr, expected)
    )
    if batches:
        state = {r["item"]: r["price"] for r in dicts(query.state("priced"))}
        assert state == {item: price for item, (price, _) in table.items()}
        assert query.progress.state_keys["priced"] == len(table)


def test_without_a_version_the_later_batch_counts_and_the_table_moves_with_its_keys():
    locality = weir.Locality(period=1, forecast=None)
    items = [f"i{n}" for n in range(20)]
    query = start(application(), servers=3, routing=locality)
    for number in range(6):
        if number == 3:
            query.scale_out(1)
        query.reconfigure(wait=True)
        changes = [(item, 10 * number, 0, False) for item in items[number::2]]
        query.feed(batch([(item, number) for item in items], changes))
        latest = {}
        for earlier in range(number + 1):
            latest |= dict.fromkeys(items[earlier::2], 10 * earlier)
        rows = {r["item"]: r["price"] for r in dicts(query.output("priced", number))}
        assert rows == {item: latest.get(item) for item in items}


def test_what_cannot_be_is_refused():
    def built(**options):
        return parts_of(application(**options)).topology(2)

    with pytest.raises(UnknownColumn, match="its table has no column 'amount'"):
        built(latest="amount")
    with pytest.raises(TopologyError, match="not a boolean column"):
        built(deleted="price")
    with pytest.raises(TopologyError, match="how is"):
        built(how="full")
    with pytest.raises(TopologyError, match="takes no ttl="):
        built(ttl=3)
