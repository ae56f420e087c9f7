"""Write the checkpoints of version 0.1.0 that ``test_old_checkpoints.py`` continues.

Run it with that version installed; it needs Spark, and writes one ``data/NAME.tar.xz`` per story::

    git worktree add ../weir-0.1 493008d && make -C ../weir-0.1 setup
    PYTHONPATH=../weir-0.1/src ../weir-0.1/.venv/bin/python tests/recovery/old_checkpoints.py

The rows (:func:`posts`) and the names of the stories are shared with the test; the applications are written in the
words of version 0.1.0, and once more in the test as they are written today.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
SCHEMA = "place string, topic string, n long, at timestamp"
START = datetime(2024, 1, 1, tzinfo=UTC)

# the story, and how many of its batches version 0.1.0 has committed; "planned…" dies when the next one is planned
STORIES = {
    "hash": 4,
    "locality": 4,
    "scaled": 4,
    "scaled_locality": 4,
    "partial_key": 5,
    "feedback": 4,
    "planned": 3,
    "planned_scaling": 2,
}


def posts(batch: int) -> list[dict[str, Any]]:
    """Return the rows of a batch; those of batch b all happen in hour b."""
    rng = random.Random(batch)
    rows = []
    for _ in range(60):
        place = min(int(rng.expovariate(0.5)), 9)
        topic = place * 3 + rng.randrange(3) if rng.random() < 0.8 else rng.randrange(30)
        at = START + timedelta(hours=batch, minutes=rng.randrange(60))
        rows.append({"place": f"p{place}", "topic": f"t{topic}", "n": rng.randrange(100), "at": at})
    return rows


@dataclass
class Total:
    """The state of a topic."""

    rows: int = 0
    total: int = 0


def application(weir: Any, stream: Any, story: str) -> Any:
    """Return the application of a story, as version 0.1.0 writes it."""

    class Totals(weir.Process):
        state = Total
        output = {"topic": "string", "rows": "long", "total": "long"}

        def process(self, key: str, rows: list[Any], state: Total) -> Any:
            state.rows += len(rows)
            state.total += sum(row.n for row in rows)
            yield key, state.rows, state.total

    hour = weir.tumbling("at", "1 hour")
    source = weir.source(stream)
    if story == "partial_key":
        places = source.keyed(
            "place", weir.Count(emit="rows"), name="places", grouping=weir.PartialKey(), aggregate_every=3
        )
        sums = weir.Aggregate(total="sum(n)", most="max(n)")
        return places.keyed("topic", sums, name="topics", grouping=weir.PartialKey())
    if story == "feedback":
        places = source.keyed("place", weir.Count(emit="rows"), name="places", grouping=weir.Consistent())
        sums = weir.Aggregate(total="sum(n)", most="max(n)")
        return places.keyed("topic", sums, name="topics", grouping=weir.Weighted(weir.Hash()))
    places = source.keyed("place", weir.Count(emit="rows"), name="places")
    places.keyed("topic", Totals(), name="topics")
    return places.keyed("place", weir.Aggregate(total="sum(n)"), name="hours", window=hour)


def write(story: str, folder: Path) -> None:
    """Run a story in version 0.1.0; its checkpoint is below the folder, also if it dies."""
    import threading

    import pyarrow as pa
    import pyarrow.parquet as pq

    import weir
    from weir.spark.session import embedded

    posted = folder / "posts"
    posted.mkdir()
    batches = STORIES[story] + story.startswith("planned")
    for batch in range(batches):
        path = posted / f"{batch}.parquet"
        pq.write_table(pa.Table.from_pylist(posts(batch)), path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark reads files in order of age
    spark = embedded("local[2]", **{"spark.sql.session.timeZone": "UTC"})
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(posted))
    learns = story in ("locality", "scaled_locality", "planned")
    query, started = None, threading.Event()

    def sink(frame: Any, batch: int) -> None:
        started.wait(60)
        if learns:
            query.reconfigure(wait=True)  # so that keys move in the next batch
        if "scal" in story and batch == 1:
            query.scale_out(2, share_slots=True)

    routing = weir.Locality(period=1, forecast=None) if learns else None
    last = "topics" if story in ("partial_key", "feedback") else "hours"
    query = application(weir, stream, story).start(
        str(folder / "checkpoint"),
        servers=2 if "scal" in story else 3,
        routing=routing,
        sink={last: sink},
        trigger={"availableNow": True},
    )
    started.set()
    query.await_termination()
    spark.stop()


def main() -> None:
    """Write all stories, each in a process of its own."""
    for story in STORIES:
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ)
            if story.startswith("planned"):
                env["WEIR_FAULT"] = f"plan-written:{STORIES[story]}"
            ended = subprocess.run([sys.executable, __file__, story, folder], env=env, check=False)
            assert (ended.returncode == 0) != story.startswith("planned"), story
            with tarfile.open(DATA / f"{story}.tar.xz", "w:xz") as archive:
                # Spark's record of the source names files that are gone
                archive.add(
                    Path(folder) / "checkpoint",
                    arcname=".",
                    filter=lambda info: None if info.name.startswith("./source") else info,
                )
        print(story, (DATA / f"{story}.tar.xz").stat().st_size, "bytes")


if __name__ == "__main__":
    if sys.argv[1:]:
        write(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
