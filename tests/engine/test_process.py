"""A user's own operator: order, typed state, errors, dead letters, merging, time to live."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import POSTS, Rises, Run, posts, rises_in_python, rows_of, stream, write_batches

NOW = {"availableNow": True}


@pytest.mark.parametrize("servers", [1, 3])
def test_rows_come_in_the_order_asked_for_and_state_is_typed(spark, tmp_path, checkpoint, servers):
    tables = [posts(1200, s) for s in range(3)]
    folder = write_batches(tmp_path / "posts", tables)
    got: dict[str, int] = {}
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", Rises(order_by="n"), name="rises")
    )
    sink = lambda f, b: got.update({r["topic"]: r["rises"] for r in f.collect()})  # noqa: E731
    query = app.start(checkpoint, servers=servers, trigger=NOW, sink=sink)
    query.await_termination()
    expected = rises_in_python(tables)
    assert got == expected
    state = {r["topic"]: r for r in query.state("rises").collect()}
    assert {k: r["rises"] for k, r in state.items()} == expected
    assert sum(r["rows"] for r in state.values()) == 3600
    assert query.state("rises").schema["seen"].dataType.simpleString() == "string"


def test_without_an_order_the_result_is_still_the_same_every_time(spark, tmp_path):
    folder = write_batches(tmp_path / "posts", [posts(1500, 9)])
    answers = []
    for attempt in range(2):
        # the second time the input is cut and ordered differently
        frame = spark.read.schema(POSTS).parquet(folder).repartition(1 + 3 * attempt, "n")
        query = (
            weir.source(frame).keyed("topic", Rises(), name="r").run(str(tmp_path / f"c{attempt}"), servers=2)
        )
        answers.append(rows_of(query.state("r")))
    assert answers[0] == answers[1]


def test_an_error_names_operator_key_and_row(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", [posts(200, 1)])

    def fail(key, rows, state):
        for row in rows:
            if row.n > 900:
                raise ZeroDivisionError("too big")

    app = weir.source(stream(spark, folder, POSTS)).process("topic", fail, name="fragile")
    query = app.start(checkpoint, servers=2, trigger=NOW)
    with pytest.raises(
        weir.errors.OperatorError, match=r"operator 'fragile', key 'topic \d+': ZeroDivisionError: too big"
    ) as e:
        query.await_termination()
    assert "'n': 9" in str(e.value)
    assert isinstance(query.exception(), weir.errors.OperatorError)
    assert query.status["message"] == "failed"


def test_diverted_rows_go_to_the_dead_letters_and_leave_the_state_alone(spark, tmp_path, checkpoint):
    table = posts(500, 2)
    folder = write_batches(tmp_path / "posts", [table, table])

    def fragile(key, rows, state):
        state.rows += len(rows)
        if key == "topic 0":
            raise ValueError("cannot take this topic")

    def picky(batch):
        if any(n > 990 for n in batch.column("n").to_pylist()):
            raise ValueError("number too large")
        return batch

    letters = []
    app = (
        weir.source(stream(spark, folder, POSTS))
        .map_batches(picky, name="picky", on_error="divert")
        .process("topic", fragile, name="fragile", state=Run, on_error="divert")
    )
    with pytest.raises(weir.errors.TopologyError, match="no dead_letters="):
        app.start(checkpoint, servers=2, trigger=NOW)
    query = app.start(
        checkpoint,
        servers=2,
        trigger=NOW,
        dead_letters=lambda f, b: letters.extend((b, *r) for r in f.collect()),
    )
    query.await_termination()
    large = pc.greater(table["n"], 990)
    bad_topic = pc.and_(pc.equal(table["topic"], "topic 0"), pc.invert(large))
    for batch in (0, 1):
        mine = [r for r in letters if r[0] == batch]
        assert sum(r[1] == "picky" for r in mine) == pc.sum(large).as_py()
        assert sum(r[1] == "fragile" and r[2] == "topic 0" for r in mine) == pc.sum(bad_topic).as_py() > 0
    assert any("number too large" in r[4] and '"n":99' in r[3] for r in letters)
    state = {r["topic"]: r["rows"] for r in query.state("fragile").collect()}
    assert "topic 0" not in state
    good = table.filter(pc.invert(pc.or_(large, pc.equal(table["topic"], "topic 0"))))
    assert sum(state.values()) == 2 * good.num_rows


def test_a_process_that_merges_may_be_split(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", [posts(800, 3), posts(800, 4)])

    def add(key, rows, state):
        state.rows += len(rows)
        state.last = max([state.last, *(r.n for r in rows)])

    def merge(a, b):
        return Run(rows=a.rows + b.rows, last=max(a.last, b.last))

    app = weir.source(stream(spark, folder, POSTS)).process(
        "place", add, name="places", state=Run, merge=merge, routing=weir.Shuffle()
    )
    query = app.start(checkpoint, servers=3, trigger=NOW)
    query.await_termination()
    frame = spark.read.schema(POSTS).parquet(folder)
    frame.createOrReplaceTempView("merge_posts")
    expected = rows_of(spark.sql("select place, count(*), max(n) from merge_posts group by place"))
    assert rows_of(query.state("places").select("place", "rows", "last")) == expected


def test_null_keys_are_dropped_and_counted_or_an_error(spark, tmp_path, checkpoint):
    table = pa.table({"k": pa.array(["a", None, "b", None, "a"]), "j": pa.array(["x", "y", None, "x", "x"])})
    frame = spark.read.parquet(write_batches(tmp_path / "data", [table]))
    app = weir.source(frame).keyed("j", weir.Count(), name="j").keyed("k", weir.Count(), name="k")
    query = app.run(checkpoint, servers=2)
    assert rows_of(query.state("k")) == [("a", 2)]
    operators = query.progress["operators"]
    assert (operators["j"]["null_keys"], operators["k"]["null_keys"]) == (1, 2)
    strict = weir.source(frame).keyed("k", weir.Count(), name="k", null_keys="error")
    with pytest.raises(weir.errors.NullKeyError, match=r"operator 'k': a row has no key"):
        strict.run(checkpoint + "2", servers=2)


def test_idle_keys_are_forgotten(spark, tmp_path, checkpoint):
    def batch(*keys):
        return pa.table({"k": pa.array(keys)})

    batches = [batch("a", "b"), batch("a"), batch("a", "c"), batch("b")]
    folder = write_batches(tmp_path / "data", batches)
    times = iter([100, 105, 112, 130])
    gone: list[tuple[str, int]] = []

    class Visits(weir.Process):
        state = Run
        output = {"k": "string", "rows": "long"}

        def process(self, key, rows, state):
            state.rows += len(rows)

        def expired(self, key, state):
            yield {"k": key, "rows": state.rows}

    app = (
        weir.source(stream(spark, folder, "k string"))
        .keyed("k", weir.Count(), name="counts", ttl=10)
        .keyed("k", Visits(), name="visits", ttl=10)
    )
    clock_now = [0]

    def clock():
        clock_now[0] = next(times) * 1_000_000
        return clock_now[0]

    sink = lambda f, b: gone.extend((b, *r) for r in f.collect())  # noqa: E731
    query = app.start(checkpoint, servers=2, trigger=NOW, clock=clock, sink=sink)
    query.await_termination()
    # b idle since 100 is gone at 112; a and c (112) are gone at 130, when b begins anew
    assert rows_of(query.state("counts")) == [("b", 1)]
    assert rows_of(query.state("visits").select("k", "rows")) == [("b", 1)]
    assert sorted(gone) == [(2, "b", 1), (3, "a", 3), (3, "c", 1)]
    assert query.progress["state_keys"] == {"counts": 1, "visits": 1}
