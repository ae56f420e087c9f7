"""Batches whose keys source tasks count, holding their rows until the plan is there; also where somebody dies."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import weir
from support import counts, rows_of, stream, write_batches
from truth import eventually
from weir.engine.live.coordinator import LiveCoordinator

pytestmark = pytest.mark.usefixtures("few_starts")

SOURCE = "place string, topic string"
TASKS = 2


def batch(seed, rows):
    """Topics that are all new in every batch, each of one place: only who looks ahead can place them in time."""
    place = np.random.default_rng(seed).integers(24, size=rows)
    topics = [f"{seed}/{p}/{i % 5}" for i, p in enumerate(place)]
    return pa.table({"place": pa.array([f"place {p}" for p in place]), "topic": pa.array(topics)})


class Stream:
    """Batches of one file each, which two source tasks read behind a shuffle, unless the driver does so."""

    def __init__(self, spark, folder, checkpoint, change=lambda rows: rows, behind=lambda topics: topics):
        self.folder, self.batches = folder, []
        folder.mkdir()
        rows = change(stream(spark, folder, SOURCE).repartition(TASKS))
        places = weir.source(rows).count("place", name="places", emit="rows")
        app = behind(places.count("topic", name="topics", emit="rows"))
        routing = weir.Locality(period=None, look_ahead=True, forecast=None)
        self.query = app.start(checkpoint, servers=2, routing=routing, execution="live")

    def feed(self, rows=30_000):
        seed = len(self.batches)
        self.batches.append(batch(seed, rows))
        write_batches(self.folder, self.batches[-1:])
        self.query.process_all_available()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.query.stop()

    def check(self):
        for name, column in (("places", "place"), ("topics", "topic")):
            assert rows_of(self.query.state(name)) == counts(self.batches, column)
        return [p.execution for p in self.query.recent_progress]

    @property
    def locality(self):
        return self.query.progress.edges["places → topics"].locality


def test_source_tasks_count_hold_and_push(spark, tmp_path, checkpoint, monkeypatch):
    held = []
    real = LiveCoordinator.counts
    monkeypatch.setattr(
        LiveCoordinator, "counts", lambda self, tasks, stuck: held.append(tasks) or real(self, tasks, stuck)
    )
    with Stream(spark, tmp_path / "posts", checkpoint) as posts:
        for number in range(4):
            posts.feed(100 if number == 0 else 30_000)
            if number == 1:
                posts.query.reconfigure(wait=True)
        assert set(posts.check()) == {"live"}
        assert posts.locality > 0.9
        assert not posts.query.progress.routing.counting
        assert len(held) >= 2
        assert max(held) == 2


@pytest.mark.parametrize("who", ["a server", "a source task"])
def test_who_dies_ends_the_generation_and_the_batch_runs_as_jobs(spark, tmp_path, checkpoint, who):
    folder, marker = tmp_path / "posts", str(tmp_path / "died")

    def dies_once(batches):
        for part in batches:
            if len(list(folder.glob("*.parquet"))) == 3 and not os.path.exists(marker):
                os.close(os.open(marker, os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)
            yield part

    if who == "a server":
        behind = {
            "behind": lambda topics: topics.map_batches(
                lambda b: next(dies_once([b])), routing=weir.Shuffle()
            )
        }
    else:
        behind = {"change": lambda rows: rows.mapInArrow(dies_once, SOURCE)}
    with Stream(spark, folder, checkpoint, **behind) as posts:
        for number in range(5):
            posts.feed()
            if number == 0:
                posts.query.reconfigure(wait=True)
        assert posts.check() == ["live", "live", "jobs", "live", "live"]
        died = posts.query.recent_progress[2]
        assert died.ran_again
        # a dead source task has counted nothing; before a server died, all had been counted
        assert died.routing.counting == (who == "a source task")
        assert posts.locality > 0.9


def test_a_batch_whose_source_tasks_do_not_fit_at_once_is_planned_without_their_counts(
    spark, tmp_path, checkpoint
):
    free = tmp_path / "free"

    def wait(batches):
        while not free.exists():
            time.sleep(0.05)
        yield from batches

    other = spark.range(0, 1, 1, 1).mapInArrow(wait, "id long")
    with Stream(spark, tmp_path / "posts", checkpoint) as posts:
        posts.feed()
        busy = threading.Thread(target=other.collect)
        busy.start()
        try:
            eventually(lambda: len(spark.sparkContext.statusTracker().getActiveStageIds()) > 1)
            posts.feed()
        finally:
            free.touch()
            busy.join()
        posts.feed()
        assert posts.check() == ["live"] * 3
        assert [p.routing.counting for p in posts.query.recent_progress] == [False, True, False]
