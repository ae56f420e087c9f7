"""``initial=``: what operators keep before their first batch, as a run over the history would have left it."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
import weir.testing
from support import POSTS, Rises, counted, posts, rows_of, stream, write_batches
from truth import homes_of
from weir import ListState, MapState
from weir.engine.inspect.inspection import inspect
from weir.errors import CheckpointError, CheckpointMismatch, TopologyError
from weir.faults import watching
from weir.testing import Crash, start

HISTORY, COMING = [posts(250, seed) for seed in range(3)], [posts(200, seed) for seed in range(7, 10)]
POINTS = (
    "initial-written:0",
    "commit-replaced:0",
    "plan-written:1",
    "job-done:1",
    "commit-written:1",
    "plan-written:2",
)
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@dataclass
class Seen:
    rows: int = 0
    last: float = 0.0
    topics: list[str] = field(default_factory=list)
    at: dt.datetime | None = None
    numbers: ListState[int] = field(default_factory=ListState)
    sums: MapState[str, int] = field(default_factory=MapState)


def note(key, rows, state):
    for row in rows:
        state.rows += 1
        state.last = float(row.n)
        state.topics = sorted({*state.topics, row.topic})[:5]
        state.at = NOON
        state.numbers.append(row.n)
        state.sums[row.topic] = state.sums.get(row.topic, 0) + row.n


def totals(batch):
    import numpy as np

    return {"total": batch.state("total", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1])}


# name → an application with one operator, called "it", given what it begins with
KINDS = {
    "count": lambda rows, initial: rows.count("topic", name="it", initial=initial),
    "two keys": lambda rows, initial: rows.count(["place", "topic"], name="it", initial=initial),
    "aggregate": lambda rows, initial: rows.aggregate(
        "topic", rows="count", total="sum(n)", most="max(n)", least="min(place)", name="it", initial=initial
    ),
    "process": lambda rows, initial: rows.process(
        "place", note, state=Seen, order_by="n", name="it", initial=initial
    ),
    "order": lambda rows, initial: rows.keyed("topic", Rises(), name="it", initial=initial),
    "columns": lambda rows, initial: rows.process_batch(
        "topic", totals, state={"total": "long"}, name="it", initial=initial
    ),
    "duplicates": lambda rows, initial: rows.deduplicate("topic", name="it", initial=initial),
}


def application(kind, initial=None):
    return KINDS[kind](weir.source(POSTS), initial)


def state_after(kind, batches, checkpoint=None, **settings):
    with start(application(kind), checkpoint, servers=2, **settings) as query:
        for batch in batches:
            query.feed(batch)
        return query.state("it")


def surviving(app, checkpoint, fault, batches, **settings):
    """Run batches on a checkpoint; the driver dies at a point, once, and is started again."""
    left = [fault]

    def watch(point, batch):
        if f"{point}:{batch}" in left:
            left.clear()
            raise Crash

    query = None
    with watching(watch):
        for number, batch in enumerate(batches):
            while True:
                try:
                    query = query or start(app(), checkpoint, **settings)
                    query.feed(batch, number=number)
                    break
                except Crash:
                    query = None
    assert not left, f"never came to {fault}"
    return query


@pytest.mark.parametrize("form", ["rows", "state"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_goes_on_from_the_state_of_another_as_if_it_had_seen_its_rows(tmp_path, kind, form):
    old = str(tmp_path / "old")
    rows = state_after(kind, HISTORY, old)
    if kind == "duplicates":
        rows = rows.select(["topic"])
    initial = rows if form == "rows" else weir.State(old, "it")
    with start(application(kind, initial), str(tmp_path / "new"), servers=3) as query:
        assert rows_of(query.state("it")) == rows_of(state_after(kind, HISTORY))
        for batch in COMING:
            query.feed(batch)
        assert rows_of(query.state("it")) == rows_of(state_after(kind, [*HISTORY, *COMING]))
        assert query.recent_progress[0].batch == 1
    assert inspect(str(tmp_path / "new"))["health"]["ok"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("kind", "servers"), [("count", 3), ("process", 1)])
def test_it_is_there_exactly_once_wherever_the_driver_dies(tmp_path, point, kind, servers):
    initial = state_after(kind, HISTORY)
    checkpoint = str(tmp_path / "ckpt")
    query = surviving(lambda: application(kind, initial), checkpoint, point, COMING, servers=servers)
    assert rows_of(query.state("it")) == rows_of(state_after(kind, [*HISTORY, *COMING]))
    query.stop()
    with start(
        application(kind, initial), checkpoint, servers=servers + 1
    ) as query:  # a restart does not take it again
        query.feed(HISTORY[0])
        assert rows_of(query.state("it")) == rows_of(state_after(kind, [*HISTORY, *COMING, HISTORY[0]]))
    assert inspect(checkpoint)["health"]["ok"]


@pytest.mark.parametrize(
    "routing",
    [
        weir.Hash(),
        weir.Locality(period=1, forecast=None),
        weir.PartialKey(),
        weir.Consistent(),
        weir.Table.of({f"topic {t}": t % 2 for t in range(60)}),
    ],
)
@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_with_every_grouping_and_execution(tmp_path, routing, execution):
    initial = state_after("count", HISTORY)
    settings = {"servers": 3, "routing": routing, "execution": execution}
    with start(application("count", initial), str(tmp_path / "ckpt"), **settings) as query:
        for batch in COMING:
            query.feed(batch)
        query.scale_out(1)
        query.feed(HISTORY[0])
        assert rows_of(query.state("it")) == rows_of(state_after("count", [*HISTORY, *COMING, HISTORY[0]]))
    homes_of(str(tmp_path / "ckpt"), "it")


def test_a_new_operator_of_a_query_that_has_run_begins_with_state(tmp_path):
    checkpoint, rows = str(tmp_path / "ckpt"), weir.source(POSTS)
    places = rows.count("place", name="places")
    with start(places, checkpoint, servers=3, sink=lambda *_: None) as query:
        query.feed(HISTORY[0])
        query.feed(HISTORY[1])
    topics = rows.count("topic", name="topics", initial=state_after("count", HISTORY[:2]))
    for _ in range(2):
        with start(
            weir.Application(places, topics), checkpoint, servers=3, sink={"places": lambda *_: None}
        ) as query:
            query.feed(HISTORY[2], number=2)
    assert rows_of(query.state("topics")) == rows_of(state_after("count", HISTORY))
    with start(places, servers=2) as truth:
        for batch in HISTORY:
            truth.feed(batch)
        assert rows_of(query.state("places")) == rows_of(truth.state("places"))
    assert inspect(checkpoint)["health"]["ok"]


def test_parquet_lists_and_a_lookup(tmp_path):
    pq.write_table(state_after("count", HISTORY), tmp_path / "counts.parquet")
    with start(application("count", tmp_path / "counts.parquet"), servers=2) as query:
        query.feed(COMING[0])
        assert rows_of(query.state("it")) == rows_of(state_after("count", [*HISTORY, COMING[0]]))
    orders, prices = (
        weir.source("item string, n long", "orders"),
        weir.source("item string, price decimal(9,2)", "prices"),
    )
    given = [
        {"item": "tea", "price": decimal.Decimal("2.50")},
        {"item": "nuts", "price": decimal.Decimal("4.00")},
    ]
    with start(orders.lookup(prices, "item", name="priced", initial=given), servers=2) as query:
        query.feed(
            {
                "orders": [{"item": "tea", "n": 1}],
                "prices": [{"item": "nuts", "price": decimal.Decimal("5.00")}],
            }
        )
        query.feed({"orders": [{"item": "nuts", "n": 2}]})
        priced = {row["item"]: float(row["price"]) for row in query.output("priced").to_pylist()}
    assert priced == {"tea": 2.5, "nuts": 5.0}


def test_keys_that_have_passed_do_not_pass_again(tmp_path):
    given = [{"topic": "topic 1"}, {"topic": "topic 2"}]
    with start(application("duplicates", given), servers=2) as query:
        query.feed([{"place": "x", "topic": f"topic {i}", "n": 1} for i in range(4)])
        assert sorted(query.output("it")["topic"].to_pylist()) == ["topic 0", "topic 3"]
    rows = weir.source("id string, at timestamp")
    timed = rows.deduplicate(
        "id", within="1 h", time="at", name="it", initial=[{"id": "a", "passed_at": NOON}]
    )
    with start(timed, servers=2) as query:
        query.feed([{"id": i, "at": NOON + dt.timedelta(minutes=30)} for i in "ab"])
        assert query.output("it")["id"].to_pylist() == ["b"]


def test_keys_expire_as_if_they_had_been_touched_at_the_start_or_as_where_they_come_from(tmp_path):
    now = [1_700_000_000_000_000]
    counts = weir.source(POSTS).count("topic", name="it", ttl="10 s")
    settings = {"servers": 2, "clock": lambda: now[0]}
    with start(counts, str(tmp_path / "old"), **settings) as query:
        query.feed(HISTORY[0])
        rows = query.state("it")
    now[0] += 6_000_000
    for initial, left in ((rows, rows.num_rows), (weir.State(str(tmp_path / "old"), "it"), 0)):
        with start(
            weir.source(POSTS).count("topic", name="it", ttl="10 s", initial=initial), **settings
        ) as query:
            at = now[0]
            now[0] += 5_000_000
            query.feed([])
            assert query.state("it").num_rows == left
            now[0] += 6_000_000
            query.feed([])
            assert query.state("it").num_rows == 0
            now[0] = at


def test_open_windows_and_timers_come_with_the_state_of_another_checkpoint(tmp_path):
    def app(initial=None):
        window = weir.tumbling("time", "1 minute")
        return weir.source("place string, time timestamp").count(
            "place", name="it", window=window, initial=initial
        )

    rows = [
        [{"place": "FR", "time": NOON + dt.timedelta(seconds=20 * i + s)} for s in (0, 1)] for i in range(9)
    ]
    with start(app(), str(tmp_path / "old"), servers=3) as query:
        for batch in rows[:4]:
            query.feed(batch)
        before = query.output("it").to_pylist()
    with start(app(weir.State(str(tmp_path / "old"), "it")), servers=2) as query:
        for batch in rows[4:]:
            query.feed(batch)
        query.finish()
        after = query.output("it").to_pylist()
    assert [row["count"] for row in [*before, *after]] == [6, 6, 6]


@pytest.mark.parametrize(
    ("kind", "initial", "says"),
    [
        ("count", [{"topic": "a"}], "no column 'count'; it takes topic, count, and there are topic"),
        ("count", [{"topic": "a", "count": 1, "n": 1}], "column 'n' says nothing about its state"),
        ("count", [{"topic": "a", "count": "many"}], "column 'count' is string, not int64"),
        ("count", [{"topic": None, "count": 1}], "1 rows have no key: 'topic' is null there"),
        ("count", [{"topic": "a", "count": 1}] * 2, "1 keys come more than once, {'topic': 'a'} for one"),
        ("count", 7, "initial=7: expected a DataFrame, an Arrow table"),
        ("count", "no/such/folder", "no/such/folder: cannot be read as Parquet"),
        (
            "process",
            [{"place": "a", "rows": "x"}],
            "the state of {'place': 'a'} is no Seen: Expected `int`, got `str`",
        ),
        (
            "process",
            [{"place": "a", "row": 1}],
            "column 'row' says nothing about its state; did you mean 'rows'",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(tmp_path, kind, initial, says):
    with pytest.raises(TopologyError) as raised:
        start(application(kind, initial), str(tmp_path / "ckpt"), servers=2)
    assert says in str(raised.value)
    assert "'it'" in str(raised.value)
    if initial != 7:
        assert not (tmp_path / "ckpt" / "commits").exists()
        with start(application(kind), str(tmp_path / "ckpt"), servers=2) as query:
            query.feed(HISTORY[0])


def test_a_value_that_does_not_say_what_it_goes_on_from_is_refused_but_its_state_is_taken(tmp_path):
    def app(initial=None):
        return weir.source(POSTS).aggregate("topic", average="mean(n)", name="it", initial=initial)

    with pytest.raises(
        TopologyError, match=r"average=mean\(n\): its value does not say .* average.sum, average.count"
    ):
        start(app([{"topic": "a", "average": 2.0}]), servers=2)
    with start(app([{"topic": "a", "average.sum": 6.0, "average.count": 3}]), servers=2) as query:
        query.feed([{"place": "x", "topic": "a", "n": 10}])
        assert query.state("it").to_pylist() == [{"topic": "a", "average": 4.0}]


def test_state_of_another_checkpoint_must_be_of_the_same_kind(tmp_path):
    old = str(tmp_path / "old")
    state_after("count", HISTORY, old)
    for initial, error, says in (
        (weir.State(old, "its"), CheckpointError, "did you mean 'it'"),
        (weir.State(old, "it", batch=77), CheckpointError, "Retained are batches 0, 1, 2"),
        (weir.State(str(tmp_path / "none"), "it"), CheckpointError, "no batch has been committed"),
    ):
        with pytest.raises(error, match=says):
            start(application("count", initial), servers=2)
    with pytest.raises(CheckpointMismatch, match="defined in another way there"):
        start(application("aggregate", weir.State(old, "it")), servers=2)
    with pytest.raises(CheckpointMismatch, match="another key there"):
        start(application("two keys", weir.State(old, "it")), servers=2)
    with start(application("count", weir.State(old, "it", batch=0)), servers=2) as query:
        assert rows_of(query.state("it")) == rows_of(state_after("count", HISTORY[:1]))


def test_rows_of_windows_and_joins_are_refused(tmp_path):
    rows = weir.source("place string, time timestamp")
    windowed = rows.count(
        "place", window=weir.tumbling("time", "1 minute"), initial=[{"place": "a", "count": 1}]
    )
    with pytest.raises(TopologyError, match="rows cannot say what open windows hold"):
        start(windowed, servers=2)
    one, other = weir.source("k string, a long", "one"), weir.source("k string, b long", "other")
    with pytest.raises(TopologyError, match="the rows of a Join do not say what it keeps"):
        start(one.join(other, "k", name="j", initial=[{"k": "a"}]), servers=2)


def test_a_dataframe_on_spark(spark, tmp_path):
    folder = write_batches(tmp_path / "in", COMING)
    old = state_after("count", HISTORY)
    frame = spark.createDataFrame(old.to_pandas())
    rows = weir.source(stream(spark, folder))
    app = rows.count("topic", name="it", initial=frame)
    for _ in range(2):
        query = app.start(str(tmp_path / "ckpt"), servers=2, trigger={"availableNow": True}, execution="jobs")
        query.await_termination()
    assert rows_of(query.state("it")) == rows_of(state_after("count", [*HISTORY, *COMING]))
    again = weir.source(spark.read.schema(POSTS).parquet(folder)).count(
        "topic", name="it", initial=weir.read_state(str(tmp_path / "ckpt"), "it", spark, batch=0)
    )
    run = again.run(str(tmp_path / "run"), servers=2)
    assert rows_of(run.state("it")) == rows_of(query.state("it"))
    assert counted(spark, folder, "topic") != rows_of(query.state("it"))


def test_two_declarations_with_states_of_their_own_are_refused():
    rows = weir.source(POSTS)
    one, other = (rows.count("topic", initial=pa.table({"topic": ["a"], "count": [n]})) for n in (1, 2))
    with pytest.raises(TopologyError, match="declared twice"):
        weir.Application(one, other)
