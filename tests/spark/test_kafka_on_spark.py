"""Topics on Spark: its trigger sees new messages, servers read them, and sinks of all kinds get the results."""

from __future__ import annotations

import time

import deltalake
import psycopg
import pyarrow.parquet as pq
import pytest

import weir
from support import NOW, counts, posts, rows_of, write_parts
from weir.sinks import Delta, Parquet, Postgres

SCHEMA = "place string, topic string, n long"


def fill(brokers, topic, table):
    rows = table.to_pylist()
    for partition in range(2):
        brokers.send(topic, rows[partition::2], partition)


@pytest.mark.long
def test_topics_are_read_by_servers_in_batches_of_their_own_and_delivered(
    spark, brokers, postgres, tmp_path, checkpoint
):
    topic, tables = brokers.topic(2), [posts(500, 1), posts(300, 2)]
    source = weir.kafka(brokers.servers, topic, SCHEMA, max_rows_per_batch=300)
    app = source.keyed("place", weir.Count(emit="rows"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )
    sinks = [Parquet(str(tmp_path / "out")), Postgres(postgres, "spark_topics", keys=["topic"])]
    for table in tables:
        fill(brokers, topic, table)
        query = app.start(
            checkpoint, servers=2, sink={"topics": [*sinks, lambda rows, batch: None]}, trigger=NOW
        )
        query.await_termination()
    assert [p.rows for p in query.recent_progress] == [200, 300]  # the last of the first start, and one more
    assert rows_of(query.state("places")) == counts(tables, "place")
    truth = counts(tables, "topic")
    with psycopg.connect(postgres) as database:
        assert sorted(database.execute("SELECT topic, count FROM spark_topics")) == truth
    updates = pq.read_table(tmp_path / "out").select(["topic", "count"]).to_pylist()
    assert (
        sorted({row["topic"]: row["count"] for row in sorted(updates, key=lambda r: r["count"])}.items())
        == truth
    )


def test_a_stream_of_messages_is_noticed_and_joins_files(spark, brokers, tmp_path, checkpoint):
    topic, table = brokers.topic(2), posts(200, 3)
    folder = write_parts(tmp_path / "data", 2)
    files = weir.files(spark.readStream, folder, schema=SCHEMA)
    app = weir.kafka(brokers.servers, topic, SCHEMA).union(files).keyed("place", weir.Count(), name="places")
    sink = Delta(str(tmp_path / "delta"), keys=["place"])
    query = app.start(checkpoint, servers=2, sink=sink, target_batch="20 s")
    try:
        query.process_all_available()
        fill(brokers, topic, table)
        query.process_all_available()
        expected = counts([table, pq.read_table(folder)], "place")
        assert rows_of(query.state("places")) == expected
        assert {name: about["lag"] for name, about in query.progress.sources.items()} == {
            "kafka": 0,
            "files": 0,
        }
    finally:
        query.stop()
    rows = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
    assert sorted((row["place"], row["count"]) for row in rows) == expected


def test_messages_that_come_meanwhile_wait_for_no_trigger(spark, brokers, checkpoint):
    topic, sizes = brokers.topic(1), [40, 30, 20]

    def send(rows=None, batch=None):
        if sizes:
            brokers.send(topic, [{"place": "a", "topic": "b", "n": 1}] * sizes.pop(0))

    send()
    app = weir.kafka(brokers.servers, topic, SCHEMA).count("place", name="places")
    query = app.start(checkpoint, servers=2, sink=send)
    try:
        until = time.monotonic() + 60
        while sum(p.rows for p in query.recent_progress) < 90:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert [p.rows for p in query.recent_progress] == [40, 30, 20]
        assert query._driver.ledger.last.handed_over == 0  # all in Spark's first batch
        query.process_all_available()
        assert rows_of(query.state("places")) == [("a", 90)]
    finally:
        assert query.stop()


def test_a_bounded_run_reads_what_is_there_in_batches_that_aim_at_a_time(
    spark, brokers, postgres, checkpoint, tmp_path
):
    topic, table = brokers.topic(2), posts(400, 4)
    fill(brokers, topic, table)
    app = weir.kafka(brokers.servers, topic, SCHEMA, max_rows_per_batch=250).keyed("place", weir.Count())
    sink = Delta(str(tmp_path / "delta"), servers_from=0)
    copied = Postgres(postgres, "spark_parts", keys=["place"], servers_from=0)
    query = app.run(checkpoint, servers=2, target_batch="10 s", sink=[sink, copied])
    assert rows_of(query.state("place")) == counts([table], "place")
    assert [p.rows for p in query.recent_progress] == [250, 150, 0]
    updates = deltalake.DeltaTable(sink.path).to_pyarrow_table().to_pylist()
    last = {row["place"]: row["count"] for row in sorted(updates, key=lambda row: row["count"])}
    assert sorted(last.items()) == counts([table], "place")
    with psycopg.connect(postgres) as database:
        assert sorted(database.execute("SELECT place, count FROM spark_parts")) == counts([table], "place")
    with pytest.raises(weir.WeirError, match="a run has ended here"):
        app.run(checkpoint, servers=2)
