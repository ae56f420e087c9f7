"""Whole applications with their checkpoint in an object store."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import weir
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.inspect.inspection import inspect
from weir.errors import CheckpointError
from weir.state.storage import Storage
from weir.testing import start


def application():
    words = weir.source("word string, topic string")
    return words.keyed("word", weir.Count(emit="rows")).keyed("topic", weir.Count())


def batches(seed, n=6):
    rng = np.random.default_rng(seed)
    return [
        [{"word": f"w{w}", "topic": f"t{w % 7}"} for w in rng.integers(0, 60, 200).tolist()] for _ in range(n)
    ]


def counts(rows, column):
    return dict(Counter(row[column] for batch in rows for row in batch))


def read(query, name):
    return {row[name]: row["count"] for row in query.state(name).to_pylist()}


def test_an_application_restarts_and_survives_faults(bucket, reliable, monkeypatch):
    rows = batches(1)
    faults = ["plan-written:1", "commit-written:2", "step-started:301", "sink-delivered:4"]
    with start(application(), bucket, servers=2, retain=2, storage_options=reliable, faults=faults) as query:
        assert query.checkpoint == bucket
        for batch in rows[:3]:
            query.feed(batch)
        query.restart()
        for batch in rows[3:]:
            query.feed(batch)
        assert read(query, "word") == counts(rows, "word")
        assert read(query, "topic") == counts(rows, "topic")
        assert query._driver.ledger.clean() > 0
    assert len(Storage(bucket, reliable).names("commits")) == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(reliable["endpoint"]))
    for key in ("access_key_id", "secret_access_key", "region"):
        monkeypatch.setenv(f"AWS_{key.upper()}", str(reliable[key]))
    seen = inspect(bucket, verify=True)
    assert seen["health"]["ok"]
    assert (seen["checkpoint"], seen["batch"]) == (bucket, 5)
    with start(application(), bucket, servers=3, storage_options=reliable) as query:  # laid out anew
        query.feed(rows[0])
        assert read(query, "topic") == counts([*rows, rows[0]], "topic")


def test_servers_change_while_it_runs(bucket, reliable):
    rows = batches(2)
    with start(application(), bucket, servers=2, storage_options=reliable, hosts=["a", "b"]) as query:
        for number, batch in enumerate(rows):
            if number == 2:
                query.scale_out(1)
            query.feed(batch)
        assert read(query, "word") == counts(rows, "word")


@pytest.mark.parametrize("seed", range(2))
def test_requests_that_fail_at_random_change_no_result(bucket, unreliable, reliable, seed, monkeypatch):
    """What fails for good stops the query, as a crash would; started again, it goes on to the same result."""
    monkeypatch.setattr("weir.state.object_files.PAUSE", 0.01)
    proxy, options = unreliable(rate=0.03, seed=seed)
    proxy.outages = (90, 30)
    rows, stops = batches(3 + seed, 4), []
    while len(stops) < 30:
        last = CheckpointLayout(Storage(bucket, reliable)).latest_commit()
        try:
            with start(application(), bucket, servers=2, storage_options=options) as query:
                for batch in rows[0 if last is None else last.batch + 1 :]:
                    query.feed(batch)
            break
        except CheckpointError as error:
            stops.append(str(error))
    assert 0 < len(stops) < 30
    assert all("could not be" in stop for stop in stops)
    with start(application(), bucket, servers=2, storage_options=reliable) as query:
        assert read(query, "word") == counts(rows, "word")
        assert read(query, "topic") == counts(rows, "topic")


def test_two_drivers_on_one_checkpoint_do_not_both_commit(bucket, reliable):
    rows = batches(9)
    with start(application(), bucket, servers=2, storage_options=reliable) as one:
        one.feed(rows[0])
        with start(application(), bucket, servers=2, storage_options=reliable) as other:
            with pytest.raises(CheckpointError, match="another driver"):
                one.feed(rows[1])
            other.feed(rows[2])
            with pytest.raises(CheckpointError, match="another driver"):
                one.feed(rows[3])
            assert read(other, "word") == counts([rows[0], rows[2]], "word")


def test_a_fork_is_copied_by_the_store_and_outlives_what_the_first_query_deletes(
    bucket, reliable, monkeypatch
):
    rows, green = batches(2, 14), f"{bucket}-green"
    with start(application(), bucket, servers=2, retain=1, storage_options=reliable) as query:
        query.feed(rows[0])
        with monkeypatch.context() as patch:  # no byte of state comes here
            patch.setattr("weir.state.storage.Storage.write", no_state(Storage.write))
            assert weir.fork(bucket, green, storage_options=reliable) == 0
        for batch in rows[1:]:
            query.feed(batch)
        query._driver.ledger.clean()
    with start(application(), green, servers=2, storage_options=reliable) as forked:
        forked.feed(rows[1])
        assert read(forked, "topic") == counts(rows[:2], "topic")


def no_state(write):
    def refuse(storage, name, data):
        assert not name.startswith("state/")
        write(storage, name, data)

    return refuse
