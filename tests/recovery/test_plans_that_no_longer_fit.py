"""A batch was planned and never happened: it is carried out as planned where that still fits, else planned anew."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import OperatorError
from weir.faults import watching
from weir.testing import Crash, start

SCHEMA = "k string, v long"
BATCHES = [[{"k": f"k{i % 37}", "v": i + batch} for i in range(200)] for batch in range(4)]
START = dt.datetime(2026, 1, 1)


def counted(query, name="n"):
    return {row["k"]: row["count"] for row in query.state(name).to_pylist()}


def truth(batches):
    return Counter(row["k"] for batch in batches for row in batch)


def seconds(first, last):
    return [{"k": f"k{i % 3}", "t": START + dt.timedelta(seconds=i)} for i in range(first, last)]


def die(query, fault, act):
    """Let the driver die at a point; whoever opens the checkpoint next finds what it left."""
    point, _, batch = fault.partition(":")
    query._faults.append((point, int(batch)))
    with watching(query._watch), pytest.raises(Crash):
        act(query._driver)


def windows():
    return weir.source("k string, t timestamp").keyed(
        "k", weir.Count(), name="w", window=weir.tumbling("t", "10 s")
    )


def test_an_end_that_was_only_planned_has_not_come_when_there_are_more_rows(checkpoint):
    query = start(windows(), checkpoint, servers=2, clock=lambda: 1_767_229_200_000_000)
    query.feed(seconds(0, 30))
    die(query, "plan-written:1", lambda driver: driver.batch(query._rows({}), 1, end_of_input=True))
    again = start(windows(), checkpoint, servers=2, clock=lambda: 1_767_229_200_000_000)
    again.feed(seconds(30, 60))
    assert again._driver.ledger.last.end_of_input is False
    again.feed(seconds(60, 90))
    again.finish()
    assert again.late("w").num_rows == 0
    assert sum(row["count"] for row in again.output("w").to_pylist()) == 90


def test_a_batch_without_rows_that_was_only_planned_does_not_take_the_place_of_the_end(checkpoint):
    now = [1_767_229_200_000_000]
    source = weir.source("k string, t timestamp")
    timed = source.keyed("k", weir.Count(), name="w", window=weir.tumbling("t", "10 s"))
    app = weir.Application(timed)
    query = start(app, checkpoint, servers=2, clock=lambda: now[0])
    query.feed(seconds(0, 35))
    query.feed(seconds(35, 45))
    now[0] += 600_000_000
    die(query, "plan-written:2", lambda driver: driver.tick())
    again = start(app, checkpoint, servers=2, clock=lambda: now[0])
    again.finish()
    assert again._driver.ledger.last.end_of_input
    assert sum(row["count"] for one in (query, again) for row in one.output("w").to_pylist()) == 45


@pytest.mark.parametrize("way", ["scale_in", "scale_out"])
@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_a_batch_that_changes_servers_fails_and_comes_again_to_the_same_driver(way, execution):
    broken = []

    def fragile(row):
        if broken:
            raise ValueError("not now")
        return row.k, row.v

    app = weir.source(SCHEMA).map(fragile, SCHEMA).keyed("k", weir.Count(), name="n")
    with start(app, servers=3, execution=execution) as query:
        query.feed(BATCHES[0])
        query.feed(BATCHES[1])
        getattr(query, way)(1)
        broken.append(True)
        with pytest.raises(OperatorError):
            query.feed(BATCHES[2])
        broken.clear()
        query.feed(BATCHES[2])
        query.feed(BATCHES[3])
        assert query.topology.servers == (2 if way == "scale_in" else 4)
        assert counted(query) == truth(BATCHES)


def test_a_side_input_that_the_plan_does_not_name_is_read(checkpoint):
    def plain(row):
        return row.k, 0

    def priced(row, prices):
        return row.k, prices["a"].p

    def app(function, **side):
        rows = weir.source(SCHEMA).map(function, SCHEMA, **side)
        return rows.keyed("k", weir.Aggregate(total="sum(v)"), name="n")

    query = start(app(plain), checkpoint, servers=2)
    query.feed(BATCHES[0])
    die(query, "plan-written:1", lambda driver: driver.batch(query._rows(BATCHES[1]), 1))
    side = weir.SideInput(lambda: [{"k": "a", "p": 1}], key="k")
    again = start(app(priced, side=side), checkpoint, servers=2)
    again.feed(BATCHES[1])
    assert sum(row["total"] for row in again.state("n").to_pylist()) == len(BATCHES[1])


def test_files_of_a_plan_are_not_read_beside_those_that_the_source_hands_over(tmp_path, checkpoint):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        pq.write_table(pa.table({"k": ["a", "b"], "v": [1, 2]}), folder / f"{number}.parquet")
    files = sorted(folder.iterdir())

    def app(limit=None):
        read = weir.files(None, str(folder), schema=SCHEMA, by="file", max_bytes_per_batch=limit)
        return read.keyed("k", weir.Count(), name="n")

    query = start(app(2 * files[0].stat().st_size), checkpoint, servers=2)
    die(query, "plan-written:0", lambda driver: driver.batch(query._rows(files), 0))
    again = start(app(), checkpoint, servers=2)
    again.feed(files, number=0)
    assert counted(again) == {"a": 6, "b": 6}
