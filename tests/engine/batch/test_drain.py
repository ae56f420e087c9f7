"""A query that is about to be stopped lets the batch under way end, begins none, and goes on from there later."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.engine.batch.driver import Drained
from weir.events import BatchCommitted
from weir.testing import start


def test_the_batch_under_way_ends_and_no_other_begins(checkpoint):
    reached, gate, delivered = threading.Event(), threading.Event(), []

    def sink(rows, batch):
        reached.set()
        assert gate.wait(60)
        delivered.append(batch)

    app = weir.source("place string").count("place", name="places")
    with start(app, checkpoint, servers=1, sink=sink) as query:
        feeding = threading.Thread(target=query.feed, args=([{"place": "FR"}],))
        feeding.start()
        assert reached.wait(60)
        assert query._driver.drain(0) is False
        gate.set()
        assert query._driver.drain(60) is True
        feeding.join()
        assert (query.progress.batch, delivered) == (0, [0])
        with pytest.raises(Drained):
            query.feed([{"place": "FR"}])
        assert query.tick() is False
        query.restart()
        query.feed([{"place": "FR"}])
        assert query.state("places").to_pylist() == [{"place": "FR", "count": 2}]


def test_what_is_left_of_a_round_comes_with_the_next_start(checkpoint, tmp_path):
    paths = [str(tmp_path / f"p={i}" / "rows.parquet") for i in range(6)]
    for path in paths:
        (tmp_path / path).parent.mkdir()
        pq.write_table(pa.table({"place": ["FR", "US"]}), path)
    app = weir.files(None, str(tmp_path), schema="place string", max_bytes_per_batch=1).count(
        "place", name="places"
    )
    query = start(app, checkpoint, servers=2)
    batches = []

    def drain_in_the_second(event):
        if isinstance(event, BatchCommitted):
            batches.append(event.progress.batch)
            if event.progress.batch == 1:
                query._driver.drain(0)

    query.add_listener(drain_in_the_second)
    with pytest.raises(Drained):
        query.feed(paths)
    assert batches == [0, 1]
    query.restart()
    query.feed(paths, number=0)  # as Spark does: it does not know that a part of the round is done
    assert batches == [*range(6)]
    assert {row["place"]: row["count"] for row in query.state("places").to_pylist()} == {"FR": 6, "US": 6}
    query.stop()
