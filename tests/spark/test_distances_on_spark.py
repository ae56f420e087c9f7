"""Rows and bytes by distance, latency markers and times per server, on Spark."""

from __future__ import annotations

import time

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, write_batches


def add_up(progress):
    return sum(c["rows"] for c in progress.distance.values())


def test_rows_by_distance_add_up_and_markers_tell_how_old_rows_are(spark, tmp_path, checkpoint):
    tables = [posts(3000, seed) for seed in range(2)]
    folder = write_batches(tmp_path / "posts", tables)
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(emit="rows"), name="places")
        .map_batches(lambda b: b, name="spread", routing=weir.Shuffle())
        .keyed("topic", weir.Count(), name="topics")
    )
    began = time.time()
    query = app.start(checkpoint, servers=3, sink=lambda f, b: None, trigger=NOW, execution="jobs")
    query.await_termination()
    took = time.time() - began
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    for progress in query.recent_progress:
        distance, came = progress.distance, progress.entered["source → places"]["node"]
        assert progress.rows_local + progress.rows_exchanged == 2 * 3000
        assert came["rows"] == progress.rows == 3000
        assert add_up(progress) == 3 * 3000
        # in memory, or through the one host that there is
        assert distance["process"] == {"rows": progress.rows_local, "bytes": 0}
        assert distance["node"]["rows"] == progress.rows_exchanged + came["rows"]
        assert distance["node"]["bytes"] == progress.bytes_exchanged + came["bytes"] > came["bytes"] > 0
        assert distance["rack"]["rows"] == distance["any"]["rows"] == 0
        for edge in progress.edges.values():
            assert sum(c["rows"] for c in edge.distance.values()) == 3000
        ages = {name: op.latency for name, op in progress.operators.items()}
        assert all(0 < age["p50"] <= age["p95"] <= age["p99"] for age in ages.values())
        assert ages["places"]["p50"] <= ages["topics"]["p99"]
        assert ages["topics"]["p50"] <= progress.sinks["topics"]["p99"] * 1.1
        # older than the query nothing can be, by the clock that markers are read from (a bucket is 9 % wide)
        assert progress.sinks["topics"]["p99"] < took * 1.1
        assert sum(s.rows for s in progress.servers) == 3 * 3000
