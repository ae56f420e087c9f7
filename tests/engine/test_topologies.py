"""Applications on real Spark, each compared with what plain Spark says about the same input."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import POSTS, counted, posts, rows_of, stream, write_batches

TOPICS = weir.Table.of({f"topic {t}": (t // 10) % 3 for t in range(200)})
PLACES = weir.Table.of({f"place {p}": p % 3 for p in range(20)})


@pytest.fixture
def folder(tmp_path):
    return write_batches(tmp_path / "posts", [posts(3000, seed) for seed in range(3)])


def two_counts(spark, folder, places=None, topics=None):
    return (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places", routing=places)
        .keyed("topic", weir.Count(), name="topics", routing=topics)
    )


NOW = {"availableNow": True}


@pytest.mark.parametrize(
    ("places", "topics"),
    [
        (None, None),
        (PLACES, TOPICS),
        (PLACES, weir.routing.WorstCase(TOPICS)),
        (weir.Shuffle(), weir.Shuffle()),
        (weir.Hash(), weir.Shuffle()),
    ],
    ids=["hash", "table", "worst", "shuffled partials", "hash then partials"],
)
def test_two_counts_equal_plain_spark_whatever_the_grouping(spark, folder, checkpoint, places, topics):
    query = two_counts(spark, folder, places, topics).start(checkpoint, servers=3, trigger=NOW)
    query.await_termination()
    assert rows_of(query.state("places")) == counted(spark, folder, "place")
    assert rows_of(query.state("topics")) == counted(spark, folder, "topic")
    assert len(query.recent_progress) == 3
    assert query.progress["state_keys"]["topics"] == len(counted(spark, folder, "topic"))


def test_a_fitting_table_keeps_rows_on_their_server_and_its_worst_case_none(spark, folder, tmp_path):
    locality = {}
    for name, topics in {"hash": None, "table": TOPICS, "worst": weir.routing.WorstCase(TOPICS)}.items():
        query = two_counts(spark, folder, PLACES, topics).start(str(tmp_path / name), servers=3, trigger=NOW)
        query.await_termination()
        edge = query.progress["edges"]["places → topics"]
        assert edge["local"] + edge["remote"] == query.progress["rows"] == 3000
        locality[name] = edge["locality"]
    assert locality["table"] > 0.7
    assert locality["hash"] == pytest.approx(1 / 3, abs=0.15)
    assert locality["worst"] < 0.2


def test_a_bounded_run_and_the_sinks(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", [posts(2000, 5)])
    frame = spark.read.schema(POSTS).parquet(folder)
    got = []
    app = (
        weir.source(frame)
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", weir.Count(), name="topics")
    )
    sinks = {"topics": lambda f, batch: got.append((batch, rows_of(f))), "places": str(tmp_path / "out")}
    query = app.run(checkpoint, servers=2, sink=sinks)
    assert got == [(0, counted(spark, folder, "topic"))]
    written = spark.read.parquet(str(tmp_path / "out")).select("place", "count")
    assert rows_of(written) == counted(spark, folder, "place")
    # a second run of the same checkpoint finds everything done and delivers nothing twice
    again = app.run(checkpoint, servers=2, sink=sinks)
    assert len(got) == 1
    assert rows_of(again.state("topics")) == rows_of(query.state("topics"))


def test_state_is_readable_from_elsewhere_by_path(spark, folder, checkpoint):
    query = two_counts(spark, folder).start(checkpoint, servers=2, trigger=NOW)
    query.await_termination()
    assert rows_of(weir.read_state(checkpoint, "topics")) == counted(spark, folder, "topic")
    with pytest.raises(weir.errors.EngineError, match="did you mean 'topics'"):
        weir.read_state(checkpoint, "topcs")


def test_a_dag_with_two_sources_a_branch_a_union_and_two_sinks(spark, tmp_path, checkpoint):
    one = write_batches(tmp_path / "one", [posts(1500, 1), posts(1500, 2)])
    two = write_batches(tmp_path / "two", [posts(1500, 3), posts(1500, 4)])
    posted = weir.source(stream(spark, one, POSTS), "web")
    big = weir.source(stream(spark, two, POSTS), "app").filter_batches(
        lambda b: pc.greater(b.column("n"), 500), name="big"
    )
    places = posted.union(big).keyed("place", weir.Count(), name="places")
    topics = places.keyed("topic", weir.Aggregate(total="sum(n)", top="max(place)"), name="topics")
    counted_pairs = posted.keyed(["place", "topic"], weir.Count(), name="pairs", parallelism=2)
    app = weir.Application(topics, counted_pairs)
    ends = {"topics": {}, "pairs": {}}
    sinks = {
        "topics": lambda f, b: ends["topics"].update({r["topic"]: tuple(r) for r in f.collect()}),
        "pairs": lambda f, b: ends["pairs"].update({(r[0], r[1]): tuple(r) for r in f.collect()}),
    }
    query = app.start(checkpoint, servers=3, trigger=NOW, sink=sinks)
    query.await_termination()

    web = spark.read.schema(POSTS).parquet(one)
    both = web.union(spark.read.schema(POSTS).parquet(two).where("n > 500"))
    both.createOrReplaceTempView("both_posts")
    expected = rows_of(spark.sql("select topic, sum(n), max(place) from both_posts group by topic"))
    pairs = rows_of(web.groupBy("place", "topic").count())
    assert rows_of(query.state("places")) == rows_of(both.groupBy("place").count())
    assert rows_of(query.state("topics")) == expected
    assert rows_of(query.state("pairs")) == pairs
    assert sorted(ends["topics"].values(), key=repr) == expected
    assert sorted(ends["pairs"].values(), key=repr) == pairs


def test_maps_flat_maps_and_shuffle_between_keyed_operators(spark, folder, checkpoint):
    def words(batch):
        return {
            "word": pa.concat_arrays([batch.column("topic"), pc.utf8_upper(batch.column("topic"))]),
            "n": pa.concat_arrays([batch.column("n")] * 2),
        }

    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .map_batches(words, "word string, n long", name="words", routing=weir.Shuffle())
        .filter_batches(lambda b: pc.greater(b.column("n"), 10))
        .keyed("word", weir.Count(), name="counts")
    )
    query = app.start(checkpoint, servers=3, trigger=NOW)
    query.await_termination()
    frame = spark.read.schema(POSTS).parquet(folder).where("n > 10")
    frame.createOrReplaceTempView("posts_view")
    expected = spark.sql(
        "select w, count(*) from (select explode(array(topic, upper(topic))) w from posts_view) group by w"
    )
    assert rows_of(query.state("counts")) == rows_of(expected)
    assert query.progress["operators"]["words"]["imbalance"] < 1.02


def test_every_type_of_key(spark, tmp_path, checkpoint):
    n = 400
    table = pa.table(
        {
            "s": pa.array([f"k{i % 7}" if i % 11 else None for i in range(n)]),
            "i": pa.array([i % 5 - 2 for i in range(n)], pa.int32()),
            "l": pa.array([(i % 6) * 10**12 for i in range(n)]),
            "d": pa.array([dt.date(2020, 1, 1 + i % 9) for i in range(n)]),
            "t": pa.array(
                [dt.datetime(2020, 1, 1, i % 8, tzinfo=dt.UTC) for i in range(n)], pa.timestamp("us", "UTC")
            ),
            "b": pa.array([i % 2 == 0 for i in range(n)]),
            "y": pa.array([bytes([i % 4]) for i in range(n)]),
        }
    )
    folder = write_batches(tmp_path / "data", [table])
    frame = spark.read.parquet(folder)
    stage = weir.source(frame)
    keys = [["i"], ["l"], ["d"], ["t"], ["b"], ["y"], ["s"], ["s", "d", "b", "y", "i"]]
    for number, key in enumerate(keys):
        stage = stage.keyed(key, weir.Count(), name=f"op{number}")
    query = stage.run(checkpoint, servers=3)
    for number, key in enumerate(keys):
        expected = frame.where("s is not null") if "s" in key else frame
        assert rows_of(query.state(f"op{number}")) == rows_of(expected.groupBy(*key).count()), key
    assert query.progress["operators"]["op6"]["null_keys"] == table["s"].null_count


def test_all_aggregates(spark, folder, checkpoint):
    frame = spark.read.schema(POSTS).parquet(folder)
    aggregate = weir.Aggregate(
        rows="count", some="count(n)", total="sum(n)", low="min(n)", high="max(topic)", mean="mean(n)",
        different="approx_distinct(topic)",
    )  # fmt: skip
    query = weir.source(frame).keyed("place", aggregate, name="p").run(checkpoint, servers=2)
    frame.createOrReplaceTempView("agg_posts")
    expected = spark.sql(
        "select place, count(*), count(n), sum(n), min(n), max(topic), avg(n), count(distinct topic) "
        "from agg_posts group by place"
    ).collect()
    got = {r["place"]: tuple(r) for r in query.state("p").collect()}
    assert len(got) == len(expected)
    for row in expected:
        ours = got[row[0]]
        assert ours[:6] == tuple(row)[:6]
        assert ours[6] == pytest.approx(row[6])
        assert abs(ours[7] - row[7]) <= max(2, 0.15 * row[7])


def test_placement_and_parallelism_are_kept_to(spark, folder, checkpoint):
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places", placement=[2])
        .map_batches(lambda b: b, name="same", placement=[0, 1])
        .keyed("topic", weir.Count(), name="topics", parallelism=2)
    )
    query = app.start(checkpoint, servers=4, trigger=NOW)
    query.await_termination()
    rows = [s["rows"] for s in query.progress["servers"]]
    assert rows[3] == 0
    assert rows[2] == 3000
    assert rows_of(query.state("topics")) == counted(spark, folder, "topic")


def test_the_users_session_is_left_as_it_was(spark, folder, checkpoint):
    before = {r["key"]: r["value"] for r in spark.sql("SET").collect()}
    active = type(spark).getActiveSession()._jsparkSession
    frame = spark.read.schema(POSTS).parquet(folder)
    weir.source(frame).keyed("place", weir.Count()).run(checkpoint + "1", servers=2)
    two_counts(spark, folder).start(checkpoint + "2", servers=2, trigger=NOW).await_termination()
    assert {r["key"]: r["value"] for r in spark.sql("SET").collect()} == before
    assert type(spark).getActiveSession()._jsparkSession == active


def test_explain_status_and_wrong_use(spark, folder, checkpoint, capsys):
    app = two_counts(spark, folder)
    query = app.start(checkpoint, servers=2, trigger=NOW)
    query.await_termination()
    query.explain()
    shown = capsys.readouterr().out
    assert "places ─KG→ topics" in shown
    assert "2 exchanges per batch" in shown
    assert query.status["active"] is False
    assert query.exception() is None
    with pytest.raises(weir.errors.EngineError, match="did you mean 'topics'"):
        query.state("topic")
    with pytest.raises(weir.errors.TopologyError, match=r"use start\(…\) for streaming"):
        app.run(checkpoint + "x", servers=2)
    bounded = weir.source(spark.read.schema(POSTS).parquet(folder)).keyed("place", weir.Count())
    with pytest.raises(weir.errors.TopologyError, match=r"use run\(…\) for bounded"):
        bounded.start(checkpoint + "x", servers=2)
    with pytest.raises(weir.errors.TopologyError, match="must be a Spark DataFrame"):
        weir.source([1, 2, 3])
    with pytest.raises(weir.errors.TopologyError, match="sink for unknown operator 'topic'"):
        app.start(checkpoint + "y", servers=2, sink={"topic": print})
