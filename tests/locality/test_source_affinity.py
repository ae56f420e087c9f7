"""Files written by key: the first hop becomes as local as the data allow."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import weir
from support import rows_of
from weir.cli.main import main
from weir.columns import to_schema
from weir.flow import Stream
from weir.graph.declare import LISTED, Source, operator_step
from weir.operators.read import LISTING, PARTITION, Read
from weir.testing import run, start

SERVERS, PARTS, ROWS, STRAYS = 3, 9, 250, 0.1
SCHEMA = "sensor string, room string, v long"
HOP = "files → sensors"


def rooms_and_sensors(rng, part, rows=ROWS):
    """Return the rows of a file: sensors of its group, and some strays; and the group of each row."""
    group = np.where(rng.random(rows) < STRAYS, rng.integers(0, PARTS, rows), part)
    sensor = group + PARTS * rng.integers(0, 8, rows)
    return group, pa.table(
        {
            "sensor": pa.array([f"s{s}" for s in sensor]),
            "room": pa.array([f"the room with the number {g}" for g in group]),
            "v": pa.array(rng.integers(0, 100, rows)),
        }
    )


class Folder:
    """Files in a folder per group of sensors, listed batch by batch as Spark would list them."""

    def __init__(self, path, batches):
        rng = np.random.default_rng(3)
        self.path, self.tables, self.listings, apart = str(path), [], [], []
        for batch in range(batches):
            listed = []
            for part in range(PARTS):
                group, table = rooms_and_sensors(rng, part)
                file = path / f"group={part}" / f"{batch}.parquet"
                file.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(table, file)
                info = os.stat(file)
                modified = datetime.fromtimestamp(info.st_mtime_ns // 1_000_000 / 1000, UTC)
                listed.append((f"file:{file}", f"group={part}", info.st_size, modified))
                self.tables.append(table)
                apart.append((group % SERVERS != part % SERVERS).mean())
            rows = [dict(zip(LISTING.names, row, strict=True)) for row in listed]
            self.listings.append(pa.Table.from_pylist(rows, schema=LISTING))
        self.apart = float(np.mean(apart))  # the share of rows that have to leave their server

    def read(self, place=None):
        """Return what ``weir.files`` returns, with a source that is fed with listings."""
        source = Source(f"files{LISTED}", schema=LISTING)
        read = Read(to_schema(SCHEMA), base=f"file:{self.path}")
        return Stream(
            (operator_step((source,), read, kind="files", name="files", key=(PARTITION,), routing=place),)
        )

    def check(self, query, batches=None):
        """Compare a query's state with what the files of the first batches hold."""
        tables = self.tables if batches is None else self.tables[: PARTS * batches]
        rows = [row for table in tables for row in table.to_pylist()]
        totals = Counter()
        for row in rows:
            totals[row["room"]] += row["v"]
        assert rows_of(query.state("sensors")) == sorted(Counter(r["sensor"] for r in rows).items())
        assert rows_of(query.state("rooms")) == sorted(totals.items())


def sensors_and_rooms(files):
    return files.keyed("sensor", weir.Count(emit="rows"), name="sensors").keyed(
        "room", weir.Aggregate(total="sum(v)"), name="rooms"
    )


@pytest.mark.parametrize("place", ["given", None])
def test_the_first_hop_loses_the_share_that_the_data_allow(tmp_path, checkpoint, place, capsys):
    folder = Folder(tmp_path / "data", 5)
    given = weir.Table.of({f"group={p}": p % SERVERS for p in range(PARTS)}) if place else None
    app = sensors_and_rooms(folder.read(given))
    query = start(app, checkpoint, servers=SERVERS, routing=weir.Locality(period=None))
    for batch in range(4):
        query.feed(folder.listings[batch])
        if batch == 1:
            query.reconfigure(wait=True)
    folder.check(query, 4)
    first, *_, last = [p.edges[HOP] for p in query.recent_progress]
    rows = PARTS * ROWS
    assert first.local + first.remote == last.local + last.remote == rows
    allowed = 1 - folder.apart * rows / first.remote
    assert 1 - last.remote / first.remote > 0.95 * allowed
    assert 1 - last.bytes / first.bytes > 0.9 * allowed
    # and it is told: by the query, and of the checkpoint
    assert f"edge {HOP}: LAR" in query.describe()
    assert f"{last.locality:.0%} stayed on their server" in query.describe()
    assert main(["inspect", checkpoint, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["edges"][HOP] == last.to_dict()
    assert ("files" in told["tables"]) == (place is None)
    assert main(["inspect", checkpoint]) == 0
    assert HOP in capsys.readouterr().out
    if place is None:
        assert len(query.routing_table("files")) == PARTS
        # what was learnt about partitions may be given up at a restart
        query.restart(sensors_and_rooms(folder.read(weir.Hash())))
        query.feed(folder.listings[4])
        folder.check(query)
        assert query.progress.batch == 4
        with pytest.raises(weir.errors.EngineError, match="not routed by a learnt table"):
            query.routing_table("files")


def test_servers_come_and_go_while_files_are_read(tmp_path, checkpoint):
    folder = Folder(tmp_path / "data", 4)
    routing = weir.Locality(period=1, forecast=None)
    query = start(sensors_and_rooms(folder.read()), checkpoint, servers=2, routing=routing)
    for batch, listing in enumerate(folder.listings):
        query.feed(listing)
        if batch == 0:
            query.scale_out(1)
        if batch == 2:
            query.scale_in(2)
    folder.check(query)
    assert [len(p.servers) for p in query.recent_progress] == [2, 3, 3, 1]
    assert [p.rows for p in query.recent_progress] == [PARTS * ROWS] * 4
    assert query.progress.edges[HOP].locality == 1.0  # on one server


def test_pairs_are_learnt_through_a_flat_map_that_tells_where_rows_come_from(tmp_path):
    folder = Folder(tmp_path / "data", 1)
    pairs = {}
    for name, parents in (("silent", None), ("telling", "row")):

        def twice(batch):
            rows = np.repeat(np.arange(batch.num_rows), 2)
            taken = {n: pc.take(batch.column(n), pa.array(rows)) for n in ("room", "v")}
            return {**taken, "row": rows}

        app = (
            folder.read()
            .keyed("sensor", weir.Count(emit="rows"), name="sensors")
            .map_batches(twice, "room string, v long", parents=parents)
            .keyed("room", weir.Aggregate(total="sum(v)"), name="rooms")
        )
        query = run(app, folder.listings, servers=SERVERS, routing=weir.Locality())
        learner = query._driver.learner
        edge = (learner.names.index("sensors"), learner.names.index("rooms"))
        pairs[name] = learner.manager.snapshot().recent[edge].total
    assert pairs == {"silent": 0, "telling": 2 * PARTS * ROWS}
