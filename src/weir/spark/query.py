"""A running query on Spark: the handle, and how one is started."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from typing import Any
from weakref import WeakValueDictionary

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.durations import Duration, microseconds
from weir.engine.batch.bootstrap import open_query
from weir.engine.batch.driver import Drained, Driver
from weir.engine.batch.handle import QueryHandle
from weir.errors import CheckpointMismatch, EngineError, TopologyError, WeirError
from weir.graph.declare import Assembly
from weir.options import Options
from weir.spark.failures import Stopped, check_sendable, translated
from weir.spark.live_runner import LiveRunner, free_servers, require_live
from weir.spark.runner import SparkRunner
from weir.spark.session import active_session, encrypts_files, own_session, refuse_connect
from weir.spark.sources import SparkRows, frames_of, started_stream
from weir.spark.state import state_frame
from weir.spark.ticker import Ticker
from weir.state.storage import Storage
from weir.watch.page_server import page_of

logger = logging.getLogger("weir.spark")
_running: WeakValueDictionary[str, Query] = WeakValueDictionary()  # by checkpoint


class Query(QueryHandle):
    """A handle in the manner of Spark's ``StreamingQuery``.

    ``progress`` tells what the last batch did; ``state(name)`` is a DataFrame of an operator's live state.
    """

    def __init__(self, driver: Driver, session: SparkSession) -> None:
        super().__init__(driver)
        self._session = session
        self._stream: Any = None  # Spark's own query; None for bounded sources
        self._ticker: Ticker | None = None
        self._ends_by_itself = False

    @property
    def is_active(self) -> bool:
        """Whether Spark hands it batches."""
        return self._stream is not None and bool(self._stream.isActive)

    @property
    def spark_query(self) -> Any:
        """Spark's own ``StreamingQuery``; None for bounded sources."""
        return self._stream

    def state(self, name: str, batch: int | None = None) -> DataFrame:
        """Return the committed state of an operator as a DataFrame: the last one, or that which a batch left.

        See :func:`weir.read_state` for which batches there are.
        """
        commit = self._commit(name, batch)
        return state_frame(self._session, self._driver.storage, commit, name, self.topology)

    def await_termination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends, or for ``timeout`` seconds; raise what it failed with."""
        done: bool | None = None
        if self._stream is not None:
            try:
                done = self._stream.awaitTermination(timeout) if timeout else self._stream.awaitTermination()
            except PySparkException as error:
                raise self._failure(error) from None
            finally:
                if not self.is_active:
                    self._driver.release()  # so that its slots are free for whoever waited
        self._raise()
        return done

    def process_all_available(self) -> None:
        """Wait until everything that the source has now is processed and committed; for tests."""
        if self._stream is not None:
            try:
                with self._driver.prompt():
                    self._stream.processAllAvailable()
            except PySparkException as error:
                raise self._failure(error) from None
        self._raise()

    def stop(self, grace: Duration = 0) -> bool:
        """Stop; a later start goes on from the last commit.

        A batch under way has as long as ``grace`` to be committed and delivered, e.g. ``"30 s"``; then it is given up,
        and runs again with the next start. Returns whether none was given up.
        """
        ended = self._driver.drain(microseconds(grace) / 1e6)
        self._driver.cancel()
        if self._ticker is not None:
            self._ticker.stop()
        if self.is_active:
            # Spark waits for the batch, and the batch for live servers; these go once Spark knows that it is to stop
            release = threading.Thread(target=self._release, name="weir-stop", daemon=True)
            release.start()
            self._stream.stop()
            release.join()
        if self._page is not None:
            self._page.stop()
        self._driver.stop()
        return ended

    def _release(self) -> None:
        while self.is_active:
            time.sleep(0.01)
        self._driver.release()

    def _failure(self, error: PySparkException) -> Exception:
        failure = self._driver.error or translated(error)
        if self._driver.error is None:
            self._driver.fail(failure)
        return failure

    def _await_end(self) -> None:
        """Let live servers go when Spark's own query has ended, however that came about, and note it."""
        try:
            self._stream.awaitTermination()
        except PySparkException as error:
            self._failure(error)
        except Exception as error:  # the JVM is gone
            logger.info("%s: Spark is gone (%s)", self.checkpoint, type(error).__name__)
        if self._ends_by_itself and not self._driver.stopping:
            self._driver.finish()
        self._driver.end()

    def _raise(self) -> None:
        if self._driver.error is not None:
            raise self._driver.error


def start(parts: Assembly, checkpoint: str, options: Options) -> Query:
    """Start a streaming query; see :meth:`weir.Application.start`."""
    _check_kind(parts, streaming=True)
    _check_alone(checkpoint, options)
    query, rows = _open(parts, checkpoint, "streaming", options)
    driver = query._driver
    _running[query.checkpoint] = query

    started = threading.Event()

    def on_batch(frame: DataFrame, batch: int) -> None:
        started.wait()  # the first batch may come before writer.start has returned
        try:
            driver.compile()
            driver.batch(frame, batch)
        except Drained:
            while (
                query.is_active
            ):  # Spark takes the end of a batch for a failure before it knows that it is to stop
                time.sleep(0.01)
            raise Stopped from None
        except Exception as error:
            if isinstance(error, WeirError) or driver.error is None:
                driver.fail(error)
            traceback.clear_frames(error.__traceback__)
            if driver.stopping:
                raise Stopped from None
            if isinstance(error, WeirError):  # what it says is enough: Spark logs a traceback several times
                raise error.with_traceback(None) from None
            raise

    # an application that reads topics alone, as soon as there is something
    driver.stays = not options.trigger and not parts.frames
    query._ends_by_itself = bool({"availableNow", "once"} & {*(options.trigger or ())})
    location = _source_checkpoint(query, options)
    writer = rows.writeStream.foreachBatch(on_batch).option("checkpointLocation", location)
    if options.trigger:
        writer = writer.trigger(**options.trigger)
    if options.name:
        writer = writer.queryName(options.name)
    query._page = page_of(options.watch, driver.storage)
    query._stream = started_stream(writer) if parts.feeds else writer.start()
    driver.source = str(query._stream.id)
    started.set()
    if Ticker.is_needed(driver.topology, options.trigger):
        query._ticker = Ticker(driver, query._stream, rows.sparkSession.sparkContext, options.trigger)
    threading.Thread(target=query._await_end, name="weir-end", daemon=True).start()
    return query


def run(parts: Assembly, checkpoint: str, options: Options, keep_open: bool = False) -> Query:
    """Run bounded sources to their end; see :meth:`weir.Application.run`."""
    _check_kind(parts, streaming=False)
    query, rows = _open(parts, checkpoint, "bounded", options)
    driver = query._driver
    if driver.finished and not keep_open:
        raise CheckpointMismatch(
            f"{driver.storage.root}: a run has ended here, so this one would do nothing. Read its result with "
            "weir.read_state, or run with an empty checkpoint folder."
        )
    try:
        driver.compile()
        if driver.ledger.last is None or driver.ledger.last.handed_over <= 0:
            driver.batch(rows, 0)
        if keep_open:
            driver.leave_open()
        elif driver.needs_end_of_input:
            driver.batch(rows.limit(0), 1, end_of_input=True)
    except Exception as error:
        driver.fail(error)
        raise
    finally:
        driver.close()
    driver.finish()
    driver.end()
    return query


def _open(parts: Assembly, checkpoint: str, mode: str, options: Options) -> tuple[Query, DataFrame]:
    """Return the handle of a query that has not begun, and the rows of its sources."""
    session = _session(parts)
    # a bounded run has a batch or two, not worth the start of servers that stay
    stays = options.execution == "live" or (options.execution == "auto" and mode == "streaming")
    check_sendable(parts.declared)

    def room(servers: int | None) -> int:
        servers = free_servers(session, stays) if servers is None else servers
        if options.execution == "live":
            require_live(session, servers)
        return servers

    sources = SparkRows(frames_of(parts, session, streaming=mode == "streaming"), parts.feeds)
    jobs = SparkRunner(
        Storage(checkpoint, options.storage_options),
        mode,
        sources,
        room,
        # rows that are left in files would lie there in plain text, where Spark encrypts what it writes
        host_handoff=options.host_handoff and not encrypts_files(session),
        # what runs in the user's own session must not change its settings
        session=own_session(session) if mode == "bounded" else None,
    )
    driver = open_query(parts, options, LiveRunner(jobs) if stays else jobs)
    return Query(driver, session), sources.united(driver.topology)


def running(session: SparkSession) -> list[Query]:
    """Return the queries of this program that run in the Spark of a session."""
    return [
        query
        for query in _running.values()
        if query._session.sparkContext is session.sparkContext and query.is_active
    ]


def _check_alone(checkpoint: str, options: Options) -> None:
    """Refuse a checkpoint that a query of this program runs on: Spark would stop that one without a word."""
    running = _running.get(Storage(checkpoint, options.storage_options).location)
    if running is not None and running.is_active:
        raise EngineError(
            f"{checkpoint}: a query of this program runs on this checkpoint; stop it first, or use another folder"
        )


def _session(parts: Assembly) -> SparkSession:
    """Return the session of the sources; of topics alone, the one that is active."""
    for frame in parts.frames.values():
        return frame.sparkSession
    session = active_session()
    refuse_connect(session, "the active session")
    if session is None:
        raise EngineError(
            "there is no Spark session: create one with SparkSession.builder… before the application starts"
        )
    return session


def _source_checkpoint(query: Query, options: Options) -> str:
    """Return where Spark keeps its offsets: beside our files, also where Hadoop's default is another file system."""
    if options.source_checkpoint is not None:
        return options.source_checkpoint
    scheme = "file:" if query._driver.storage.is_local else ""
    return f"{scheme}{query.checkpoint}/source"


def _check_kind(parts: Assembly, streaming: bool) -> None:
    """Refuse bounded sources where streaming ones are wanted, and the other way round."""
    kinds = {name: frame.isStreaming for name, frame in parts.frames.items()}
    wrong = next((name for name, kind in kinds.items() if kind != streaming), None)
    if wrong is None:
        return
    if len(set(kinds.values())) > 1:
        remedy = "all sources of an application must be of one kind; use spark.readStream for the bounded one"
    elif streaming:
        remedy = "use run(…) for bounded sources, or spark.readStream for a stream"
    else:
        remedy = "use start(…) for streaming sources"
    raise TopologyError(f"source {wrong!r} is {'streaming' if kinds[wrong] else 'bounded'}: {remedy}")
