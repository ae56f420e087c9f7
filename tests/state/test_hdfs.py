"""HDFS itself, of Hadoop's mini cluster: documents with one writer, whole applications, and files that servers read."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from support import dicts
from weir.engine.inspect.inspection import inspect
from weir.errors import CheckpointError
from weir.operators.read import columns_of, open_path, read_file
from weir.state.storage import Storage
from weir.testing import start
from weir_evaluation import jars
from weir_evaluation.hadoop import Hadoop


@pytest.fixture(scope="module")
def hadoop() -> Iterator[Hadoop]:
    try:
        cluster = Hadoop()
    except jars.NoJars as why:
        pytest.skip(str(why))
    with cluster:
        yield cluster


@pytest.fixture
def place(hadoop: Hadoop) -> str:
    """A folder that is not there yet."""
    return f"{hadoop.uri}/{uuid.uuid4().hex}"


def test_documents_and_files_are_kept(place):
    storage = Storage(place)
    storage.write_document("plans/1", "plan", {"batch": 1})
    with pytest.raises(CheckpointError, match="plans/1: already written by another run"):
        storage.write_document("plans/1", "plan", {"batch": 1})
    assert storage.read_document("plans/1", "plan") == {"batch": 1}
    storage.write("state/a/1", b"0123456789")
    assert [p.to_pybytes() for p in storage.read_ranges("state/a/1", [(2, 4), (8, 10)])] == [b"23", b"89"]
    with pytest.raises(CheckpointError, match="bytes 8 to 12 are missing"):
        storage.read_ranges("state/a/1", [(8, 12)])
    assert sorted(storage.names("")) == ["plans", "state"]
    assert sorted(storage.files("")) == ["plans/1", "state/a/1"]


def test_of_many_writers_of_a_document_one_succeeds(place):
    storage, wrote, together = Storage(place), [], threading.Barrier(8)

    def write(number):
        together.wait()
        try:
            storage._files.create("claim", str(number).encode())
        except FileExistsError:
            return
        wrote.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == 1
    assert storage._files.read("claim").to_pybytes() == str(wrote[0]).encode()
    assert storage._files.names("") == ["claim"]


@pytest.mark.long
def test_an_application_goes_on_after_faults_restarts_and_a_fork(place):
    words = weir.source("word string, topic string")
    app = words.keyed("word", weir.Count(emit="rows")).keyed("topic", weir.Count())
    rows = [[{"word": f"w{i * n % 61}", "topic": f"t{i % 7}"} for i in range(200)] for n in range(1, 6)]
    faults = ["plan-written:1", "commit-written:2", "step-started:301", "sink-delivered:4"]

    def read(query, name):
        return {row[name]: row["count"] for row in dicts(query.state(name))}

    def truth(name, batches):
        return Counter(row[name] for batch in batches for row in batch)

    with start(app, place, servers=2, retain=2, faults=faults) as query:
        for batch in rows[:3]:
            query.feed(batch)
        query.restart()
        for batch in rows[3:4]:
            query.feed(batch)
        assert read(query, "word") == truth("word", rows[:4])
        assert query._driver.ledger.clean() > 0
    assert inspect(place, verify=True)["health"]["ok"]
    weir.fork(place, f"{place}-fork")
    for checkpoint in (place, f"{place}-fork"):
        with start(app, checkpoint, servers=3) as query:
            query.feed(rows[4])
            assert read(query, "topic") == truth("topic", rows)


def test_servers_read_files_and_refuse_one_that_was_changed(place):
    name = f"{place}/posts/day=7/a.parquet"
    system, path = open_path(name)
    system.create_dir(path.rpartition("/")[0])
    table = pa.table({"place": ["FR", "US"]})
    pq.write_table(table, path, filesystem=system)
    assert columns_of(f"{place}/posts", "parquet").names == ["place"]
    info = system.get_file_info(path)
    wanted = pa.schema([("place", pa.string()), ("day", pa.int32())])
    listed = {"size": info.size, "modified": info.mtime_ns // 1000}
    assert pa.Table.from_batches(read_file(name, "parquet", wanted, **listed)).to_pylist() == [
        {"place": "FR", "day": 7},
        {"place": "US", "day": 7},
    ]
    with pytest.raises(weir.errors.SourceError, match="was changed after it was listed"):
        list(read_file(name, "parquet", wanted, size=info.size, modified=0))
