"""A stream that goes on from a run: files on Spark, and topics."""

from __future__ import annotations

from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_back_fill import ROWS
from test_back_fill import SCHEMA as VISITS

import weir
import weir.testing
from support import NOW, counts, posts, rows_of, write_batches
from weir.errors import CheckpointMismatch
from weir.testing import start


def test_on_spark_files_and_windows_go_on(spark, tmp_path):
    table = [pa.Table.from_pylist(batch, weir.source(VISITS).ends[0].schema) for batch in ROWS]
    folder, ckpt = tmp_path / "in", str(tmp_path / "ckpt")
    write_batches(folder, table[:5])

    def app(reader):
        rows = weir.files(reader, str(folder), schema=VISITS, name="posts", by="file")
        window = weir.tumbling("time", "1 minute")
        return rows.count("place", name="pages", window=window).sink(str(tmp_path / "out"))

    app(spark.read).run(ckpt, servers=2, keep_open=True)
    with pytest.raises(CheckpointMismatch, match="belongs to a streaming run, this is a bounded one"):
        app(spark.read).run(ckpt, servers=2, keep_open=True)
    write_batches(folder, table[5:])
    for _ in range(2):
        query = app(spark.readStream).start(ckpt, servers=2, trigger=NOW, execution="jobs")
        query.await_termination()
    told = pq.read_table(tmp_path / "out").to_pylist()
    still_open = [row.asDict() for row in query.state("pages").collect()]
    with start(
        weir.source(VISITS).count("place", name="pages", window=weir.tumbling("time", "1 minute")), servers=2
    ) as truth:
        for batch in table:
            truth.feed(batch)
        truth.finish()
        whole = truth.output("pages").to_pylist()

    def windows(rows):
        return sorted((row["place"], row["window_start"].minute, row["count"]) for row in rows)

    assert told
    assert windows([*told, *still_open]) == windows(whole)


@pytest.mark.parametrize("point", ["commit-written:1", "commit-replaced:2"])
def test_a_stream_goes_on_at_the_offsets_that_a_run_or_a_fork_has_left(brokers, tmp_path, point):
    topic, tables = brokers.topic(2), [posts(200, seed) for seed in range(3)]
    app = counted(
        weir.kafka(brokers.servers, topic, "place string, topic string, n long", max_rows_per_batch=90)
    )
    fill(brokers, topic, tables[0])
    past = weir.testing.run(app, [None], str(tmp_path / "ckpt"), servers=2, keep_open=True, faults=[point])
    assert past.pending_faults == []
    fill(brokers, topic, tables[1])
    with weir.testing.start(app, str(tmp_path / "ckpt"), servers=3) as query:
        query.feed()
        check(query, tables[:2])
        weir.fork(str(tmp_path / "ckpt"), str(tmp_path / "fork"))
        fill(brokers, topic, tables[2])
        query.feed()
        check(query, tables)
    with weir.testing.start(app, str(tmp_path / "fork"), servers=2) as query:
        query.feed()
        check(query, tables)


def counted(stream):
    return stream.count("place", name="places", emit="rows").count("topic", name="topics")


def fill(brokers, topic, table):
    rows = table.to_pylist()
    for partition in range(2):
        brokers.send(topic, [r for r in rows if crc32(r["place"].encode()) % 2 == partition], partition)


def check(query, tables):
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
