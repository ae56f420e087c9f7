"""A user's own operator: order, typed state, errors, dead letters, merging, time to live."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import POSTS, Rises, Run, dicts, grouped, posts, rises_in_python, rows_of
from weir.testing import run, start


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seed", [None, 7])
def test_rows_come_in_the_order_asked_for_and_state_is_typed(servers, seed):
    tables = [posts(1200, s) for s in range(3)]
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .keyed("topic", Rises(order_by="n"), name="rises")
    )
    query = run(app, tables, servers=servers, seed=seed)
    expected = rises_in_python(tables)
    assert {r["topic"]: r["rises"] for r in dicts(query.output("rises"))} == expected
    state = {r["topic"]: r for r in dicts(query.state("rises"))}
    assert {k: r["rises"] for k, r in state.items()} == expected
    assert sum(r["rows"] for r in state.values()) == 3600
    assert query.state("rises").schema.field("seen").type == pa.string()
    seen = {t: sorted({r["n"] % 5 for r in rows}) for (t,), rows in grouped(tables, "topic").items()}
    assert {k: json.loads(r["seen"]) for k, r in state.items()} == seen


def test_without_an_order_the_result_is_still_the_same_every_time():
    table = posts(1500, 9)
    app = weir.source(POSTS).keyed("topic", Rises(), name="r")
    answers = []
    for attempt in range(3):
        # from the second time on the input is cut and ordered differently
        order = np.random.default_rng(attempt).permutation(len(table)) if attempt else np.arange(len(table))
        query = run(app, [table.take(order)], servers=2, source_tasks=1 + 3 * attempt, seed=attempt or None)
        answers.append(rows_of(query.state("r")))
    assert answers[0] == answers[1] == answers[2]


def test_an_error_names_operator_key_and_row():
    def fail(key, rows, state):
        for row in rows:
            if row.n > 900:
                raise ZeroDivisionError("too big")

    query = start(weir.source(POSTS).process("topic", fail, name="fragile"), servers=2)
    with pytest.raises(
        weir.errors.OperatorError, match=r"operator 'fragile', key 'topic \d+': ZeroDivisionError: too big"
    ) as caught:
        query.feed(posts(200, 1))
    assert "'n': 9" in str(caught.value)
    assert isinstance(query.exception(), weir.errors.OperatorError)
    assert query.status["message"] == "failed"


def test_diverted_rows_go_to_the_dead_letters_and_leave_the_state_alone():
    table = posts(500, 2)

    def fragile(key, rows, state):
        state.rows += len(rows)
        if key == "topic 0":
            raise ValueError("cannot take this topic")

    def picky(batch):
        if any(n > 990 for n in batch.column("n").to_pylist()):
            raise ValueError("number too large")
        return batch

    app = (
        weir.source(POSTS)
        .map_batches(picky, name="picky", on_error="divert")
        .process("topic", fragile, name="fragile", state=Run, on_error="divert")
    )
    letters = []
    query = run(
        app, [table, table], servers=2, dead_letters=lambda t, b: letters.extend((b, *r) for r in rows_of(t))
    )
    assert query.dead_letters.num_rows == len(letters)
    large = pc.greater(table["n"], 990)
    bad_topic = pc.and_(pc.equal(table["topic"], "topic 0"), pc.invert(large))
    for batch in (0, 1):
        mine = [r for r in letters if r[0] == batch]
        assert sum(r[1] == "picky" for r in mine) == pc.sum(large).as_py()
        assert sum(r[1] == "fragile" and r[2] == "topic 0" for r in mine) == pc.sum(bad_topic).as_py() > 0
    assert any("number too large" in r[4] and '"n":99' in r[3] for r in letters)
    state = {r["topic"]: r["rows"] for r in dicts(query.state("fragile"))}
    assert "topic 0" not in state
    good = table.filter(pc.invert(pc.or_(large, pc.equal(table["topic"], "topic 0"))))
    assert sum(state.values()) == 2 * good.num_rows


def test_a_process_that_merges_may_be_split():
    tables = [posts(800, 3), posts(800, 4)]

    def add(key, rows, state):
        state.rows += len(rows)
        state.last = max([state.last, *(r.n for r in rows)])

    def merge(a, b):
        return Run(rows=a.rows + b.rows, last=max(a.last, b.last))

    app = weir.source(POSTS).process(
        "place", add, name="places", state=Run, merge=merge, routing=weir.Shuffle()
    )
    query = run(app, tables, servers=3)
    groups = grouped(tables, "place").items()
    expected = sorted(((p, len(rows), max(r["n"] for r in rows)) for (p,), rows in groups), key=repr)
    assert rows_of(query.state("places").select(["place", "rows", "last"])) == expected


def test_null_keys_are_dropped_and_counted_or_an_error():
    table = pa.table({"k": pa.array(["a", None, "b", None, "a"]), "j": pa.array(["x", "y", None, "x", "x"])})
    source = weir.source(table.schema)
    app = source.keyed("j", weir.Count(emit="rows"), name="j").keyed("k", weir.Count(), name="k")
    query = run(app, [table], servers=2)
    assert rows_of(query.state("k")) == [("a", 2)]
    operators = query.progress.operators
    assert (operators["j"].null_keys, operators["k"].null_keys) == (1, 2)
    strict = source.keyed("k", weir.Count(), name="k", null_keys="error")
    with pytest.raises(weir.errors.NullKeyError, match=r"operator 'k': a row has no key"):
        run(strict, [table], servers=2)


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_idle_keys_are_forgotten(execution):
    class Visits(weir.Process):
        state = Run
        output = {"k": "string", "rows": "long"}

        def process(self, key, rows, state):
            state.rows += len(rows)

        def expired(self, key, state):
            yield {"k": key, "rows": state.rows}

    app = (
        weir.source("k string")
        .keyed("k", weir.Count(emit="rows"), name="counts", ttl=10)
        .keyed("k", Visits(), name="visits", ttl=10)
    )
    times = iter([100, 105, 112, 130])
    query = start(app, servers=2, clock=lambda: next(times) * 1_000_000, execution=execution)
    for keys in ("ab", "a", "ac", "b"):
        query.feed([{"k": key} for key in keys])
    # b idle since 100 is gone at 112; a and c (112) are gone at 130, when b begins anew
    assert rows_of(query.state("counts")) == [("b", 1)]
    assert rows_of(query.state("visits").select(["k", "rows"])) == [("b", 1)]
    gone = [(batch, *row) for _, batch, table in query.deliveries for row in rows_of(table)]
    assert sorted(gone) == [(2, "b", 1), (3, "a", 3), (3, "c", 1)]
    assert query.progress.state_keys == {"counts": 1, "visits": 1}
