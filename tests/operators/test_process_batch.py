"""Functions of many keys at once: rows by key, states as columns, and the promises of every other operator."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.errors import OperatorError, TopologyError
from weir.operators import KeyedBatch, ProcessBatch
from weir.testing import run, start

SCHEMA = "k string, n long, at timestamp"
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
STATE = {"rows": "long", "total": "double", "last": "timestamp"}


def totals(batch):
    rows = batch.state("rows", 0) + np.diff(batch.offsets)
    total = batch.state("total", 0.0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1])
    last = np.maximum.reduceat(batch.values("at"), batch.offsets[:-1])
    last = np.where(batch.new, last, np.maximum(batch.state("last", NOON), last))
    return {"rows": rows, "total": total, "last": last}, {"total": total}


def merge(one, other):
    return {
        "rows": pc.add(one["rows"], other["rows"]),
        "total": pc.add(one["total"], other["total"]),
        "last": pc.if_else(pc.greater(one["last"], other["last"]), one["last"], other["last"]),
    }


def app(function=totals, state=STATE, output="k string, total double", **options):
    return weir.source(SCHEMA).process_batch("k", function, state=state, output=output, name="b", **options)


def rows(*pairs):
    return [{"k": k, "n": n, "at": NOON + dt.timedelta(seconds=n)} for k, n in pairs]


def truth(*batches):
    out = {}
    for row in (row for batch in batches for row in batch):
        before = out.setdefault(row["k"], {"k": row["k"], "rows": 0, "total": 0.0, "last": NOON})
        before["rows"] += 1
        before["total"] += row["n"]
        before["last"] = max(before["last"], row["at"])
    return sorted(out.values(), key=lambda state: state["k"])


def states(query):
    return sorted(dicts(query.state("b")), key=lambda state: state["k"])


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_states_are_those_of_plain_python(execution):
    batches = [rows(("a", 1), ("b", 2), ("a", 3)), rows(("c", 4)), rows(("a", 5), ("c", 6))]
    query = run(app(), batches, servers=2, execution=execution, faults=["job-done:1", "commit-written:2"])
    assert states(query) == truth(*batches)
    told = [sorted(dicts(query.output("b", batch)), key=str) for batch in range(3)]
    assert told[0] == [{"k": "a", "total": 4.0}, {"k": "b", "total": 2.0}]
    assert told[2] == [{"k": "a", "total": 9.0}, {"k": "c", "total": 10.0}]
    assert query.progress.state_keys == {"b": 3}
    assert query.progress.operators["b"].spent.keys() == {"fetching", "function", "encoding", "writing"}


def test_partial_states_are_merged_as_it_says():
    batches = [rows(*((f"k{i % 3}", i) for i in range(30))) for _ in range(4)]
    query = run(
        app(merge=merge, output=None, function=lambda b: totals(b)[0]),
        batches,
        servers=3,
        routing=weir.PartialKey(),
        faults=["job-done:2"],
    )
    assert states(query) == truth(*batches)


def test_it_splits_keys_only_if_it_merges():
    with pytest.raises(TopologyError, match="b"):
        run(app(routing=weir.PartialKey()), [rows(("a", 1))], servers=2)


def test_keys_are_sorted_and_rows_in_order():
    seen = []

    def look(batch):
        keys = batch.keys.column("k").to_pylist()
        bounds = batch.offsets.tolist()
        numbers = batch.values("n").tolist()
        seen.append({k: numbers[a:b] for k, a, b in zip(keys, bounds[:-1], bounds[1:], strict=True)})
        assert batch.numbers.tolist() == sorted(batch.numbers.tolist())
        assert batch.rows.column("k").to_pylist() == [keys[i] for i in batch.numbers]

    mixed = rows(("a", 3), ("b", 9), ("a", 1), ("b", 2), ("a", 2))
    run(app(look, {"n": "long"}, None, order_by="n"), [mixed], servers=1)
    assert seen == [{"a": [1, 2, 3], "b": [2, 9]}] or seen == [{"b": [2, 9], "a": [1, 2, 3]}]


def test_a_row_says_the_number_of_its_key_or_there_is_one_per_key():
    def big(batch):
        n = batch.values("n")
        chosen = np.flatnonzero(n > 2)
        return {"n": np.full(len(batch), 1)}, {"n": n[chosen]}, batch.numbers[chosen]

    given = [rows(("a", 1), ("b", 3), ("a", 4), ("c", 5))]
    query = run(app(big, {"n": "long"}, "k string, n long"), given, servers=2)
    assert sorted((r["k"], r["n"]) for r in dicts(query.output("b"))) == [("a", 4), ("b", 3), ("c", 5)]


def test_a_key_whose_state_is_null_is_forgotten_and_what_is_equal_is_not_written():
    def until_ten(batch):
        total = batch.state("n", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1])
        return {"n": pa.array(total, mask=total > 10)}

    with start(app(until_ten, {"n": "long"}, None), servers=1) as query:
        query.feed(rows(("a", 5), ("b", 11), ("c", 1)))
        assert states(query) == [{"k": "a", "n": 5}, {"k": "c", "n": 1}]
        query.feed(rows(("a", 6), ("c", 0)))
        assert states(query) == [{"k": "c", "n": 1}]
        assert query.progress.state_keys == {"b": 1}
        query.feed(rows(("c", 0)))
        assert query.progress.state_bytes_written == 0
        query.feed(rows(("a", 2)))
        assert states(query) == [{"k": "a", "n": 2}, {"k": "c", "n": 1}]


def test_idle_keys_are_let_go():
    now = [100]
    query = start(app(ttl=10), servers=2, clock=lambda: now[0] * 1_000_000)
    query.feed(rows(("a", 1), ("b", 1)))
    now[0] = 105
    query.feed(rows(("b", 1)))
    now[0] = 112
    query.feed(rows(("c", 1)))
    assert [s["k"] for s in states(query)] == ["b", "c"]
    now[0] = 130
    query.feed(rows(("b", 7)))
    assert [(s["k"], s["rows"]) for s in states(query)] == [("b", 1)]
    assert query.progress.state_keys == {"b": 1}


def test_event_time_is_handed_over_where_the_stream_has_it():
    marks = []

    def look(batch):
        marks.append((batch.batch, batch.watermark))

    def build(source):
        return source.process_batch("k", look, state={"n": "long"}, name="b")

    batches = [rows(("a", 1)), rows(("a", 5)), rows(("a", 7))]
    run(build(weir.source(SCHEMA).event_time("at", lateness="1 s")), batches, servers=1)
    noon = int(NOON.timestamp() * 1_000_000)
    assert marks == [(0, None), (1, noon), (2, noon + 4_000_000)]
    marks.clear()
    run(build(weir.source(SCHEMA)), batches, servers=1)
    assert marks == [(0, None), (1, None), (2, None)]


def test_a_state_gains_a_column():
    with start(app(lambda b: {"n": b.state("n", 0) + 1}, {"n": "long"}, None), servers=2) as query:
        query.feed(rows(("a", 1)))
        query.restart(
            app(
                lambda b: {"n": b.state("n", 0) + 1, "more": b.state("more", 7)},
                {"n": "long", "more": "long"},
                None,
            )
        )
        query.feed(rows(("a", 1), ("b", 1)))
        assert states(query) == [{"k": "a", "n": 2, "more": 7}, {"k": "b", "n": 1, "more": 7}]


def fails_on_13(batch):
    if (batch.values("n") == 13).any():
        raise ValueError("no thirteen")
    return totals(batch)


@pytest.mark.parametrize("split", [False, True])
def test_a_key_that_fails_is_named_or_diverted(split):
    options = {"routing": weir.PartialKey(), "merge": merge} if split else {}
    given = [rows(("a", 1), ("b", 2)), rows(("a", 13), ("b", 3), ("c", 4), ("a", 5))]
    with pytest.raises(OperatorError, match=r"operator 'b', key 'a': ValueError: no thirteen.*of batch 1"):
        run(app(fails_on_13, **options), given, servers=2)
    query = run(app(fails_on_13, on_error="divert", **options), given, servers=1)
    assert states(query) == truth(rows(("a", 1), ("b", 2)), rows(("b", 3), ("c", 4)))
    assert sorted(letter["row"] for letter in dicts(query.dead_letters)) == sorted(
        weir_json(row) for row in rows(("a", 13), ("a", 5))
    )


def weir_json(row):
    import msgspec

    return msgspec.json.encode(row, enc_hook=str).decode()


def test_a_merge_that_fails_names_its_key():
    def refuse(one, other):
        if 5 in one["n"].to_pylist() + other["n"].to_pylist():
            raise ValueError("not five")
        return {"n": pc.add(one["n"], other["n"])}

    def add(batch):
        return {"n": np.add.reduceat(batch.values("n"), batch.offsets[:-1])}

    build = app(add, {"n": "long"}, None, merge=refuse, routing=weir.Shuffle())
    with pytest.raises(OperatorError, match="key 'a': ValueError: not five"):
        run(build, [rows(("a", 5), ("b", 1)), rows(("a", 2), ("b", 1))], servers=2)
    build = app(add, {"n": "long"}, None, merge=refuse, routing=weir.Shuffle(), on_error="divert")
    query = run(build, [rows(("a", 5), ("b", 1)), rows(("a", 2), ("b", 1))], servers=2)
    assert states(query) == [{"k": "a", "n": 5}, {"k": "b", "n": 2}]
    assert dicts(query.dead_letters)[0]["key"] == "a"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda b: {"n": [1]}, "returned 1 states for 2 keys"),
        (lambda b: {"m": [1, 2]}, "returned no column 'n'"),
        (lambda b: {"n": [1.5, 2.0]}, "where n: int64 was declared"),
        (lambda b: 5, "must return a pyarrow RecordBatch, Table or dict"),
        (lambda b: ({"n": [1, 2]}, {"total": [1.0]}), "returned 1 rows for 2 keys; say the number"),
        (lambda b: ({"n": [1, 2]}, {"total": [1.0]}, [7]), "numbers the keys of its rows otherwise"),
        (lambda b: ({"n": [1, 2]}, None, None, None), "more than states, rows"),
        (lambda b: b.values("m"), "no column 'm'"),
        (lambda b: b.state("n"), "say what stands for them"),
    ],
)
def test_what_it_returns_is_checked(function, why):
    with pytest.raises(OperatorError, match=why):
        run(app(function, {"n": "long"}), [rows(("a", 1), ("b", 2))], servers=1)


def test_what_cannot_work_is_refused_before_anything_runs():
    for make, why in [
        (lambda: ProcessBatch(7, state="n long"), "takes a function first"),
        (lambda: ProcessBatch(totals, state={}), "name the columns of its state"),
        (lambda: run(app(order_by="m"), [], servers=1), "no column 'm'"),
        (lambda: run(app(state="k string"), [], servers=1), "its state and its key both have a column 'k'"),
        (lambda: run(app(window=weir.tumbling("at", 10)), [], servers=1), "window"),
    ]:
        with pytest.raises(TopologyError, match=why):
            make()


def test_a_part_of_a_batch_is_a_batch():
    batch = KeyedBatch(
        pa.record_batch({"k": ["a", "b", "c"]}),
        pa.record_batch({"n": [1, 2, 3, 4]}),
        np.array([0, 1, 3, 4]),
        pa.record_batch({"s": pa.array([None, 1, 2])}),
    )
    part = batch.part(1, 3)
    assert (len(part), part.offsets.tolist(), part.values("n").tolist()) == (2, [0, 2, 3], [2, 3, 4])
    assert part.state("s").tolist() == [1, 2]


def test_columns_are_put_in_order_when_they_are_read():
    rows = pa.record_batch({"n": [1, 2, 3], "t": ["a", None, "c"]})
    keys, states = pa.record_batch({"k": ["x", "y"]}), pa.record_batch({"s": pa.nulls(2, pa.int64())})
    batch = KeyedBatch(keys, rows, np.array([0, 2, 3]), states, order=np.array([2, 0, 1]))
    assert (batch.values("n").tolist(), batch.values("t", "b").tolist()) == ([3, 1, 2], ["c", "a", "b"])
    assert batch.rows.to_pydict() == {"n": [3, 1, 2], "t": ["c", "a", None]}
    assert batch.part(1, 2).values("n").tolist() == [2]
    with pytest.raises(KeyError, match="no column 'm'"):
        batch.values("m")


@pytest.mark.parametrize("hot", [3, 300])  # rows of one key: few are sorted at once, many are grouped before
def test_a_key_may_have_few_rows_or_many(hot):
    def sums(batch):
        some = [batch.values("n")[a:b].tolist() for a, b in itertools.pairwise(batch.offsets)]
        assert all(numbers == sorted(numbers) for numbers in some)
        return {"total": batch.state("total", 0.0) + [sum(numbers) for numbers in some]}

    sent = rows(*(("hot", n) for n in range(hot)), *((f"k{n}", n) for n in range(50)))
    query = run(app(sums, {"total": "double"}, None, order_by="n"), [sent[::-1], sent], servers=1)
    totals = {state["k"]: state["total"] for state in states(query)}
    assert totals == {"hot": 2.0 * sum(range(hot)), **{f"k{n}": 2.0 * n for n in range(50)}}


STORY = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=12),
        st.integers(0, 8),  # seconds until the next batch
        st.sampled_from([None, None, None, 1, 3]),  # servers to go on with
    ),
    min_size=2,
    max_size=6,
)
TTL = 10


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(STORY, st.integers(0, 5), st.booleans())
def test_states_of_idle_keys_and_watermarks_are_those_of_plain_python(story, crash, split):
    def function(batch):
        mark = batch.states["mark"]
        if batch.watermark is not None:
            mark = pa.array(np.full(len(batch), batch.watermark))
        return {
            "n": batch.state("n", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1]),
            "mark": mark,
        }

    def both(one, other):
        return {"n": pc.add(one["n"], other["n"]), "mark": pc.max_element_wise(one["mark"], other["mark"])}

    clock, newest, expected = int(NOON.timestamp()) + 10, None, {}
    options = {"merge": both, "routing": weir.PartialKey()} if split else {"ttl": TTL}
    stream = weir.source(SCHEMA).event_time("at", lateness="2 s")
    build = stream.process_batch("k", function, state="n long, mark long", name="b", **options)
    faults = [f"job-done:{crash}", f"commit-written:{crash + 1}"]
    query = start(build, servers=2, faults=faults, clock=lambda: clock * 1_000_000)
    for pairs, pause, servers in story:
        query.feed(rows(*pairs))
        expected = {k: state for k, state in expected.items() if split or state[2] > clock}
        for k, n in pairs:
            before = expected.get(k, (0, None, 0))
            mark = before[1] if newest is None else newest - 2_000_000
            expected[k] = before[0] + n, mark, clock + TTL
        seconds = [int(row["at"].timestamp() * 1_000_000) for row in rows(*pairs)]
        newest = max([*seconds, *([] if newest is None else [newest])], default=None)
        clock += pause
        if servers is not None:
            query.restart(servers=servers)
    assert {s["k"]: (s["n"], s["mark"]) for s in dicts(query.state("b"))} == {
        k: state[:2] for k, state in expected.items()
    }
    assert query.progress.state_keys == {"b": len(expected)}
    query.stop()
