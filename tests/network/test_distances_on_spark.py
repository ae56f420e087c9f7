"""Rows and bytes by distance, latency markers and times per server, on real Spark."""

from __future__ import annotations

import pytest

import weir
from support import POSTS, counted, posts, rows_of, stream, write_batches

NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_batches(tmp_path_factory.mktemp("near") / "posts", [posts(3000, seed) for seed in range(2)])


def add_up(progress):
    return sum(c["rows"] for name, c in progress["distance"].items() if name != "source")


def test_rows_by_distance_add_up_to_all_rows(spark, folder, checkpoint):
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .map_batches(lambda b: b, name="spread", routing=weir.Shuffle())
        .keyed("topic", weir.Count(), name="topics")
    )
    query = app.start(checkpoint, servers=3, sink=lambda f, b: None, trigger=NOW)
    query.await_termination()
    assert rows_of(query.state("topics")) == counted(spark, folder, "topic")
    for progress in query.recent_progress:
        distance = progress["distance"]
        assert add_up(progress) == progress["rows_local"] + progress["rows_exchanged"] == 2 * 3000
        # the first hop is routed in the JVM, whose readers nobody can place
        assert distance["source"]["rows"] == progress["rows"] == 3000
        assert distance["source"]["bytes"] == progress["bytes_in"]
        # in memory, or through the one host that there is
        assert distance["process"] == {"rows": progress["rows_local"], "bytes": 0}
        assert distance["node"]["rows"] == progress["rows_exchanged"]
        assert distance["node"]["bytes"] == progress["bytes_exchanged"] > 0
        assert distance["rack"]["rows"] == distance["any"]["rows"] == 0
        for edge in progress["edges"].values():
            assert sum(c["rows"] for c in edge["distance"].values()) == 3000


def test_source_rows_that_python_routes_have_a_distance(spark, folder, checkpoint):
    app = weir.source(stream(spark, folder, POSTS)).keyed(
        "place", weir.Count(), name="places", routing=weir.PartialKey()
    )
    query = app.start(checkpoint, servers=3, trigger=NOW)
    query.await_termination()
    for progress in query.recent_progress:
        assert progress["distance"]["source"]["rows"] == 0
        assert add_up(progress) == 3000
        partials = progress["partials"]
        sent = partials["process"]["rows"] + partials["node"]["rows"]
        assert sent == progress["operators"]["places"]["pairs"]
        assert partials["process"]["bytes"] == 0 < partials["node"]["bytes"]


def slowly(batch):
    import time

    time.sleep(0.3)
    return batch


def test_markers_tell_how_old_rows_are_at_each_operator_and_at_the_sink(spark, folder, checkpoint):
    app = (
        weir.source(stream(spark, folder, POSTS))
        .keyed("place", weir.Count(), name="places")
        .map_batches(slowly, name="slow", routing=weir.Shuffle())
        .keyed("topic", weir.Count(), name="topics")
    )
    query = app.start(checkpoint, servers=2, sink=lambda f, b: None, trigger=NOW)
    query.await_termination()
    progress = query.progress
    ages = {name: op["latency"] for name, op in progress["operators"].items()}
    assert all(age["p50"] <= age["p95"] <= age["p99"] for age in ages.values())
    assert ages["places"]["p50"] + 0.25 < ages["slow"]["p50"] <= ages["topics"]["p99"]
    assert ages["topics"]["p50"] <= progress["sinks"]["topics"]["p99"] * 1.1
    # older than the whole job nothing can be (a bucket is 9 % wide)
    assert progress["sinks"]["topics"]["p99"] < progress["seconds"]["job"] * 1.1
    slow = progress["operators"]["slow"]
    assert all(wait > 0.14 for wait in slow["waiting"])  # half of the call
    for execution in slow["execution"]:
        assert execution > 0.3 / 3000
    assert sum(s["rows"] for s in progress["servers"]) == 3 * 3000
