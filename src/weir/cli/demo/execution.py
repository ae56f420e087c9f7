"""Run the demo's application: routed by hash at first, then with homes that are learnt."""

from __future__ import annotations

import contextlib
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import weir
from weir.cli.demo.application import KEYS, SCHEMA, application
from weir.engine.batch.driver import COMPILING
from weir.engine.batch.ledger import latest_commit
from weir.engine.metrics.progress import Progress
from weir.errors import EngineError
from weir.state.storage import Storage
from weir.watch.page_server import PageServer

WAITING, POSTS, CHECKPOINT = "waiting", "posts", "checkpoint"  # folders of the demo
LEARN_FROM = 3  # batches, before homes are computed
_SHOWN = ("batch", "rows", "rows_local", "rows_exchanged", "bytes_exchanged", "locality", "table_version")


class BatchContext:
    """The application on a folder of files that are given to it batch by batch.

    The stream's files are in the subfolder ``waiting`` of the folder ``work``; after ``seconds`` the stream ends,
    even if there are files left. ``batches`` is what the demo shows of each batch so far, ``trending`` the alarms.
    With ``page``, the page that shows it is served while this process lives.
    """

    def __init__(self, spark: Any, work: Path, servers: int, seconds: float, *, page: bool = False) -> None:
        self.spark, self.work, self.servers = spark, work, servers
        self.seconds, self.end = seconds, time.perf_counter() + seconds
        self.batches: list[dict[str, Any]] = []
        self.trending: list[dict[str, Any]] = []
        self.page: str | None = None  # the link to the page, once it is served
        self.doing = ""  # what the stream waits for
        self._wants_page = page

    def run(self, batches: int, by_hash: int, update: Callable[[], None]) -> dict[str, Any]:
        """Run ``by_hash`` batches by hash, and the others from the same checkpoint with ``weir.Locality``.

        Of the others, the first few are there to learn from; the rest come once homes have been learnt. ``update`` is
        called some times a second while the stream runs.
        """
        learns = by_hash < batches
        if by_hash:
            with self._query(weir.Hash()) as query:
                self._process(query, by_hash, update)
        if learns and time.perf_counter() < self.end:
            with self._query(weir.Locality(period=5)) as query:
                self._process(query, by_hash + min(LEARN_FROM, batches - by_hash - 1), update)
                self.doing = "learning which places and topics belong together"
                self._await_homes(query, update)
                self.doing = ""
                self._process(query, batches, update)
            self._check_learnt(query)
        if not self.batches:
            raise EngineError(
                f"no batch was finished within {self.seconds:.0f} s; give the demo more --seconds"
            )
        return {
            "servers": self.servers,
            "rows": sum(batch["rows"] for batch in self.batches),
            "summary": _summary(self.batches),
            "batches": self.batches,
            "trending": self.trending,
        }

    def compare(self) -> dict[str, Any]:
        """Compare the operators' final counts with plain Spark's over the same files."""
        from weir.spark.state import state_frame

        storage = Storage(str(self.work / CHECKPOINT))
        # one commit for both sides: a batch that was cancelled at the end may still be on its way
        commit = latest_commit(storage)
        assert commit is not None
        files = [str(self.work / POSTS / f"{number:05d}.parquet") for number in range(commit.batch + 1)]
        posts = self.spark.read.schema(SCHEMA).parquet(*files)
        result: dict[str, Any] = {"equal": True, "rows": posts.count()}
        for name, key in KEYS.items():
            state = {r[key]: r["posts"] for r in state_frame(self.spark, storage, commit, name).collect()}
            plain = {r[key]: r["count"] for r in posts.groupBy(key).count().collect()}
            result[name] = len(state)
            result["equal"] = result["equal"] and state == plain
        return result

    @contextlib.contextmanager
    def _query(self, routing: Any) -> Iterator[Any]:
        """Run the application on the files that are offered."""
        folder = self.work / POSTS
        folder.mkdir(exist_ok=True)
        posts = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
        query = application(posts).start(
            str(self.work / CHECKPOINT),
            servers=self.servers,
            routing=routing,
            sink=lambda frame, batch: self.trending.extend(row.asDict() for row in frame.collect()),
            execution="auto",
        )
        self._serve()
        try:
            yield query
        finally:
            query.stop()

    def _process(self, query: Any, files: int, update: Callable[[], None]) -> None:
        """Offer files until there are ``files``, and wait until the query has processed them, or the time is up."""
        self._offer(files)
        while len(self.batches) < files and time.perf_counter() < self.end:
            self.doing = query.status["message"] if query.status["message"] == COMPILING else ""
            latest = self.batches[-1]["batch"] if self.batches else -1
            self.batches += [_brief(p) for p in query.recent_progress if p.batch > latest]
            update()
            if not query.is_active:
                query.await_termination()  # raises the query's error
            time.sleep(0.1)

    def _await_homes(self, query: Any, update: Callable[[], None]) -> None:
        """Wait until homes are computed from what the stream has shown so far, or the time is up."""
        computing = threading.Thread(target=query.reconfigure, kwargs={"wait": True}, daemon=True)
        computing.start()
        while computing.is_alive() and time.perf_counter() < self.end:
            update()
            computing.join(0.1)

    def _check_learnt(self, query: Any) -> None:
        """Raise an EngineError if no learnt homes came into force: the demo would show nothing."""
        if any(batch["table_version"] for batch in self.batches):
            return
        if time.perf_counter() >= self.end:
            raise EngineError(
                f"no homes were learnt within {self.seconds:.0f} s; give the demo more --seconds"
            )
        refused = [d.get("error") or "it would not have paid" for d in query.decisions if not d["adopted"]]
        raise EngineError(
            "no homes were learnt from the stream, so there is nothing to show"
            + (f": {refused[-1]}" if refused else "; give the demo more --rows or --batches")
        )

    def _serve(self) -> None:
        """Serve the page as soon as there is a checkpoint, until the program ends."""
        if self._wants_page and self.page is None:
            try:
                self.page = PageServer(str(self.work / CHECKPOINT)).start().url
            except EngineError as error:  # the demo is about the stream
                self._wants_page = False
                logging.getLogger("weir.cli").warning("no page: %s", error)

    def _offer(self, files: int) -> None:
        """Move files to the folder that the stream reads, until it has ``files``."""
        folder = self.work / POSTS
        missing = files - len(list(folder.iterdir()))
        for file in sorted((self.work / WAITING).iterdir())[:missing]:
            file.rename(folder / file.name)


def _brief(progress: Progress) -> dict[str, Any]:
    """Return what the demo shows of a batch."""
    seconds = progress.seconds.batch or progress.seconds.plan + progress.seconds.job
    return {
        **{name: progress[name] for name in _SHOWN},
        "rows_per_s": progress.rows / seconds,
        "imbalance": {name: operator.imbalance for name, operator in progress.operators.items()},
        "moved_keys": progress.get("moved_keys", 0),
        "seconds": seconds,
    }


def _summary(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return averages over the batches routed by hash alone, and over those with a learnt table."""
    return {
        "hash": _mean([batch for batch in batches if not batch["table_version"]]),
        "learnt": _mean([batch for batch in batches if batch["table_version"]]),
        "rows_per_s": statistics.median(batch["rows_per_s"] for batch in batches),
    }


def _mean(batches: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not batches:
        return None
    rows = sum(batch["rows"] for batch in batches)
    operators = batches[0]["imbalance"]
    return {
        "batches": len(batches),
        "locality": statistics.mean(batch["locality"] for batch in batches),
        "imbalance": {
            name: statistics.mean(batch["imbalance"][name] for batch in batches) for name in operators
        },
        "bytes_exchanged_per_row": sum(batch["bytes_exchanged"] for batch in batches) / rows,
        "rows_per_s": statistics.median(batch["rows_per_s"] for batch in batches),
        "moved_keys": sum(batch["moved_keys"] for batch in batches),
    }
