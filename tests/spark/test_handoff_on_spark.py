"""Rows that are left on a host instead of sent: the same results, and a batch that lacks some runs again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, two_counts, write_batches
from weir.engine.exchange.host_handoff import AT_LEAST
from weir.spark.session import encrypts_files

LONG_POSTS = f"{POSTS}, body string"


def long_posts(batches):
    """Return posts with a body that makes them long."""
    digits = np.random.default_rng(0).bytes(1500 * 600).hex()
    body = pa.array(digits[i * 1200 : (i + 1) * 1200] for i in range(1500))
    return [posts(1500, seed).append_column("body", body) for seed in range(batches)]


def test_long_rows_stay_on_their_host(spark, tmp_path, checkpoint, monkeypatch):
    tables = long_posts(2)
    folder = write_batches(tmp_path / "posts", tables)
    for handoff, encrypted in ((True, False), (False, False), (True, True)):
        monkeypatch.setattr("weir.spark.query.encrypts_files", lambda session, on=encrypted: on)
        app = two_counts(stream(spark, folder, LONG_POSTS))
        folder_of_query = f"{checkpoint}-{handoff}-{encrypted}"
        query = app.start(
            folder_of_query, host_handoff=handoff, servers=3, trigger=NOW, prune=False, execution="jobs"
        )
        query.await_termination()
        for progress in query.recent_progress:
            left, sent = progress.bytes_left_on_host, progress.bytes_exchanged
            assert sent > 3 * AT_LEAST
            if handoff and not encrypted:
                assert 1.8 * sent < left <= 4 * sent  # those from the source are left as well
            else:
                assert left == 0
            assert progress.ran_again is None
        assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_whether_spark_encrypts_what_it_writes(spark):
    assert not encrypts_files(spark)
    for said, is_on in (("true", True), ("TRUE ", True), ("false", False)):
        conf = {"spark.io.encryption.enabled": said}
        assert (
            encrypts_files(SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda c=conf: c))) == is_on
        )


def test_a_batch_runs_again_when_rows_are_gone(spark, tmp_path, checkpoint):
    tables = long_posts(4)
    folder = write_batches(tmp_path / "posts", tables)

    def vandalise(batch):
        """In the second batch, removes all that was left for others, again and again."""
        for home in Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0]).glob("weir-*"):
            if (home / "1").exists():
                shutil.rmtree(home, ignore_errors=True)
        return batch

    app = (
        two_counts(stream(spark, folder, LONG_POSTS))
        .map_batches(vandalise, name="vandal")
        .keyed("place", weir.Count(), name="again")
    )
    query = app.start(checkpoint, servers=3, trigger=NOW, prune=False, execution="jobs")
    query.await_termination()
    first, second, *later = query.recent_progress
    assert first.bytes_left_on_host > 0
    assert "can't be read" in second.ran_again
    assert second.bytes_left_on_host == 0
    assert [p.bytes_left_on_host for p in later] == [0, 0], "not for a while"
    for name, column in (("places", "place"), ("topics", "topic"), ("again", "place")):
        assert rows_of(query.state(name)) == counts(tables, column)
