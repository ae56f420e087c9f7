"""A source hands the same work over again to a query with other settings: each file and message is read once."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import CheckpointMismatch
from weir.faults import watching
from weir.testing import Crash, start

SCHEMA = "k string, v long"


@pytest.fixture
def files(tmp_path):
    """Ten files of two rows each."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(10):
        pq.write_table(pa.table({"k": ["a", "b"], "v": [1, 2]}), folder / f"{number}.parquet")
    return sorted(folder.iterdir())


def app(files, name="files", most=2):
    """Return an application that reads so many of the files in a batch at most; None: any number."""
    limit = None if most is None else most * files[0].stat().st_size
    rows = weir.files(
        None, str(files[0].parent), name=name, schema=SCHEMA, by="file", max_bytes_per_batch=limit
    )
    return rows.keyed("k", weir.Count(), name="n")


def die(query, fault, files, number=0):
    point, _, batch = fault.partition(":")
    query._faults.append((point, int(batch)))
    with watching(query._watch), pytest.raises(Crash):
        query._driver.batch(query._rows(files), number)


def check(query, times):
    assert {row["k"]: row["count"] for row in query.state("n").to_pylist()} == {"a": times, "b": times}


@pytest.mark.parametrize("most", [None, 1, 3, 100])
@pytest.mark.parametrize("other", [{"servers": 2}, {"servers": 3}, {"servers": 2, "target_batch": "1000 s"}])
def test_files_that_are_left_of_a_round_are_read_by_a_start_with_other_limits(files, checkpoint, most, other):
    die(start(app(files), checkpoint, servers=2), "commit-written:1", files)
    with start(app(files, most=most), checkpoint, **other) as query:
        query.feed(files, number=0)
        check(query, 10)
        query.feed(files[:1], number=1)
        check(query, 11)


def test_nor_are_they_forgotten_by_a_start_under_another_name(files, checkpoint):
    die(start(app(files), checkpoint, servers=2), "commit-written:1", files)
    query = start(app(files, "others"), checkpoint, servers=2)
    with pytest.raises(CheckpointMismatch, match="'files'.* 4 of 10 files"):
        query.feed(files, number=0)
    with start(app(files), checkpoint, servers=2) as query:
        query.feed(files, number=0)
    with start(app(files, "others"), checkpoint, servers=2) as query:
        query.feed(files[:1], number=1)
        check(query, 11)


def test_a_round_that_was_read_to_its_end_comes_again_with_another_limit(files, checkpoint):
    die(start(app(files), checkpoint, servers=2), "commit-written:4", files)
    with start(app(files, most=None), checkpoint, servers=2) as query:
        query.feed(files, number=0)
        query.feed(files[:1], number=1)
        check(query, 11)


def test_topics_under_another_name_are_not_read_from_their_start(brokers, checkpoint):
    topic, other = brokers.topic(1), brokers.topic(1)

    def read(topic, name):
        return weir.kafka(brokers.servers, topic, SCHEMA, name=name).keyed("k", weir.Count(), name="n")

    brokers.send(topic, [{"k": "a", "v": 1}] * 7)
    brokers.send(other, [{"k": "b", "v": 1}] * 5)
    with start(read(topic, "old"), checkpoint, servers=2) as query:
        query.feed()
    query = start(read(topic, "new"), checkpoint, servers=2)
    with pytest.raises(CheckpointMismatch, match=r"'old', .* is gone, and 'new' is new.*forget=.*positions"):
        query.feed()
    with pytest.raises(CheckpointMismatch):  # positions are no state
        start(read(topic, "new"), checkpoint, servers=2, drop_state=["old"]).feed()
    with start(read(other, "new"), checkpoint, servers=2, forget={"positions": ["old"]}) as query:
        query.feed()
        assert {r["k"]: r["count"] for r in query.state("n").to_pylist()} == Counter(a=7, b=5)
    with start(read(other, "new"), checkpoint, servers=2) as query:  # it is known by now
        query.feed()
