"""Scaling a running query: requests from here, from another terminal and from :class:`weir.Autoscale`.

A request is decided on at once, from the rates measured so far, and takes effect with the next batch. Only one
waits at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from weir.elasticity.autoscale import Autoscale
from weir.elasticity.decision import Decision
from weir.elasticity.explain import text
from weir.engine.metrics.load import Load
from weir.engine.requests import ANSWERS, REQUESTS, Request, decide
from weir.engine.rescale import check
from weir.errors import CheckpointError, EngineError, WeirError
from weir.spark.executors import ensure_slots, executors, holders, release
from weir.spark.homes import Homes
from weir.state.storage import Storage


@dataclass
class Pending:
    """A decision that waits for the next batch."""

    request: Request
    decision: Decision
    answer: str | None = None  # the request's document, if it came from another process
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Scaler:
    """Takes requests for one query and hands them to its batches, one at a time."""

    def __init__(
        self, storage: Storage, load: Load, session: SparkSession, autoscale: Autoscale | None
    ) -> None:
        self.storage, self.load, self.session, self.autoscale = storage, load, session, autoscale
        self.hosts: list[str] = []
        self.pending: Pending | None = None
        self.history: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._preparing = False

    def ask(self, request: Request, *, dry_run: bool = False) -> Pending:
        """Decides, makes sure of the slots, and lets the next batch carry it out."""
        pending = Pending(request, decide(request, self.load.situation(), self.hosts))
        return pending if dry_run else self._queue(pending)

    def ask_for(self, decision: Decision) -> Pending:
        """Lets the next batch carry out a decision that was made elsewhere; servers share the slots there are."""
        if decision.before != self.load.situation().placement:
            raise EngineError("the decision is about another placement than the query has now")
        request = Request(decision.operation, len(decision.machines), share_slots=True)
        return self._queue(Pending(request, decision))

    def _queue(self, pending: Pending) -> Pending:
        request = pending.request
        check(self.load.topology)
        with self._lock:
            if self.pending is not None or self._preparing:
                raise EngineError("the query is about to scale already; wait for the next batch")
            self._preparing = True
        try:
            if request.operation == "out" and not request.share_slots:
                ensure_slots(self.session, len(pending.decision.after.machines), request.timeout)
            self.pending = pending
        finally:
            self._preparing = False
        return pending

    def withdraw(self, pending: Pending) -> bool:
        """Takes a request back that no batch has taken up yet; whether it could."""
        with self._lock:
            if self.pending is not pending:
                return False
            self.pending = None
            return True

    # ------------------------------------------------------------------ at batch boundaries

    def next(self) -> Pending | None:
        """What the batch that is being planned has to carry out."""
        self._read_requests()
        with self._lock:
            pending, self.pending = self.pending, None
        return pending

    def refused(self, pending: Pending, error: Exception) -> None:
        """No plan could be made of it."""
        pending.error = error
        self._tell(pending.answer, {"state": "refused", "error": str(error)})
        pending.done.set()

    def committed(
        self, pending: Pending | None, homes: Homes, hosts: list[str], about: dict[str, Any]
    ) -> None:
        """The batch has happened: machines that are no longer needed may go."""
        lived, self.hosts = self.hosts, hosts
        if pending is None:
            return
        about = {**about, "operation": pending.decision.operation, "strategy": pending.decision.strategy}
        self.history.append(about)
        if pending.decision.operation == "in" and pending.request.release and executors(self.session):
            by_host = pending.request.hosts or pending.request.whole_hosts
            named = {lived[int(m)] for m in pending.decision.machines} if by_host else None
            about["released"] = release(self.session, homes.n, holders(self.session, homes.rdd), named)
        self._tell(pending.answer, {"state": "done", **about})
        pending.done.set()

    def watch(self) -> None:
        """Lets the automatic mode look at the batch that has just ended."""
        if self.autoscale is None or self.pending is not None or self._preparing:
            return
        change = self.autoscale.watch(
            len(set(self.hosts)) if self.autoscale.whole_hosts else self.load.topology.servers,
            lag=self.load.lag,
            congested=len(self.load.congested()),
            utilisation=self.load.utilisation,
        )
        if not change:
            return
        self._aside(self._scale_by, change)

    def _scale_by(self, change: int) -> None:
        operation = "out" if change > 0 else "in"
        try:
            whole_hosts = self.autoscale is not None and self.autoscale.whole_hosts
            self.ask(Request(operation, abs(change), whole_hosts=whole_hosts))
        except WeirError as error:  # too few slots: the stream goes on as it is, and it is said
            self.history.append({"operation": operation, "machines": abs(change), "refused": str(error)})

    def _aside(self, work: Callable[..., None], *about: Any) -> None:
        # executors may take a minute to come, and the stream is not to wait for them
        threading.Thread(target=work, args=about, name="weir-scaler", daemon=True).start()

    # ------------------------------------------------------------------ requests from other processes

    def _read_requests(self) -> None:
        for name in self.storage.names(REQUESTS):
            if name.endswith(".tmp") or self.storage.exists(f"{ANSWERS}/{name}"):
                continue
            try:
                asked = self.storage.read_document(f"{REQUESTS}/{name}", "request")
                self.storage.write_document(f"{ANSWERS}/{name}", "answer", {"state": "accepted"})
            except CheckpointError:
                continue  # withdrawn in this very moment
            self._forget_old(name)
            self._aside(self._serve, name, Request(**{**asked, "hosts": tuple(asked["hosts"])}))

    def _serve(self, name: str, request: Request) -> None:
        try:
            now = self.load.situation()
            pending = Pending(request, decide(request, now, self.hosts), answer=name)
            shown = {"text": text(pending.decision, now)}
            self.storage.write_document(f"{ANSWERS}/{name}-decision", "answer", shown)
            self._queue(pending)
        except WeirError as error:
            self._tell(name, {"state": "refused", "error": str(error)})

    def _tell(self, name: str | None, body: dict[str, Any]) -> None:
        if name is not None:
            self.storage.write_document(f"{ANSWERS}/{name}-done", "answer", body)
            self.storage.delete(f"{REQUESTS}/{name}")

    def _forget_old(self, name: str) -> None:
        day = 86_400_000
        for old in self.storage.names(ANSWERS):
            if int(old.split("-")[0]) < int(name.split("-")[0]) - day:
                self.storage.delete(f"{ANSWERS}/{old}")
