"""Batches without rows: Spark hands over batches only when there is something new, but windows close and timers go off.

A thread looks whether Spark has asked its sources and found nothing. Then, if time is up for something in the saved
state, it lets the driver run a batch without rows, between two of Spark's. It shares the driver's lock with them.
"""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from weir.durations import microseconds
from weir.engine.batch.driver import Driver
from weir.graph.model import Topology

POLL = 0.25  # seconds between two looks
ENDS_BY_ITSELF = ("availableNow", "once")  # triggers of queries that stop when they have read what there is


class Ticker:
    """Lets a driver run batches without rows while Spark's query waits for data."""

    def __init__(
        self, driver: Driver, stream: Any, context: SparkContext, trigger: Mapping[str, Any] | None
    ) -> None:
        self._driver, self._stream, self._context = driver, stream, context
        # between two triggers nobody asks the sources: rows may have come since
        self._waited = microseconds((trigger or {}).get("processingTime", 0))
        self._group = f"weir-tick-{uuid.uuid4().hex[:8]}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        self._thread.start()

    @staticmethod
    def is_needed(topology: Topology, trigger: Mapping[str, Any] | None) -> bool:
        """Return whether anything in an application's state can come due while no rows come."""
        return any(node.wakes for node in topology.stateful) and not any(
            (trigger or {}).get(name) for name in ENDS_BY_ITSELF
        )

    def stop(self) -> None:
        """Stop looking; a batch that is under way is cancelled, and counts for nothing."""
        self._stopping.set()
        if self._thread is threading.current_thread():
            return
        self._context.cancelJobGroup(self._group)
        self._thread.join()

    def _run(self) -> None:
        self._context.setJobGroup(self._group, "weir: a batch without rows", interruptOnCancel=True)
        while not self._stopping.wait(POLL):
            try:
                if not self._stream.isActive:
                    return
                status = self._stream.status
            except (Py4JError, OSError):
                return  # Spark itself has been stopped
            # it has asked its sources, found nothing, and is not asking again right now
            if not status["isDataAvailable"] and status["message"].startswith("Waiting"):
                try:
                    self._driver.tick(self._waited)
                except Exception as error:
                    self._failed(error)
                    return

    def _failed(self, error: Exception) -> None:
        if self._stopping.is_set():
            return  # cancelled: the next start does it
        if self._driver.error is None:
            self._driver.fail(error)
        traceback.clear_frames(error.__traceback__)
        self._stream.stop()
