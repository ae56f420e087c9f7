"""Scaling a running query: requests from here, from another terminal and from :class:`weir.Autoscale`.

A request is decided on at once, from the rates measured so far, and takes effect with the next batch. Only one
waits at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from weir.elasticity.autoscale import Autoscale
from weir.elasticity.decision import Decision, text
from weir.engine.checkpoint import ANSWERS, DECISION, DONE, REQUESTS, CheckpointLayout
from weir.engine.progress import Scaling
from weir.engine.steering.load import Load
from weir.engine.steering.requests import RECONFIGURE, Request, decide
from weir.engine.steering.rescale import check
from weir.errors import CheckpointError, EngineError, WeirError
from weir.state.storage import Storage


@dataclass
class Pending:
    """A decision that waits for the next batch."""

    request: Request
    decision: Decision
    why: str  # the decision in plain text
    answer: str | None = None  # the request's document, if it came from another process
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Machines(Protocol):
    """Whoever gives servers the room to run."""

    def ensure_slots(self, servers: int, new: int, timeout: float) -> None:
        """Make sure that so many servers can run at once, of which ``new`` are to come, or raise an EngineError."""

    def release(self, hosts: set[str] | None) -> list[str] | None:
        """Give back what servers no longer need; the names of executors, None where there are none."""


class Scaler:
    """Takes requests for one query and hands them to its batches, one at a time."""

    def __init__(
        self,
        storage: Storage,
        load: Load,
        machines: Machines,
        autoscale: Autoscale | None,
        reconfigure: Callable[[], None] | None = None,
    ) -> None:
        self.storage, self.load, self.machines = storage, load, machines
        self._reconfigure = reconfigure  # None where homes are not learnt
        self._news: list[Scaling] = []  # refusals that no commit tells of yet
        self._watcher = None if autoscale is None else autoscale.watcher()
        self.hosts: list[str] = []
        self.pending: Pending | None = None
        self.history: list[Scaling] = []
        self._lock = threading.Lock()
        self._preparing = False

    def ask(self, request: Request, *, dry_run: bool = False) -> Pending:
        """Decide, make sure of the slots, and let the next batch carry it out."""
        now = self.load.situation()
        decision = decide(request, now, self.hosts)
        pending = Pending(request, decision, text(decision, now))
        return pending if dry_run else self._queue(pending)

    def ask_for(self, decision: Decision, timeout: float, share_slots: bool) -> Pending:
        """Let the next batch carry out a decision that was made elsewhere."""
        if decision.before != self.load.situation().placement:
            raise EngineError("the decision is about another placement than the query has now")
        request = Request(
            decision.operation, len(decision.machines), timeout=timeout, share_slots=share_slots
        )
        return self._queue(Pending(request, decision, text(decision, self.load.situation())))

    def _queue(self, pending: Pending) -> Pending:
        request = pending.request
        check(self.load.topology, pending.decision)
        with self._lock:
            if self.pending is not None or self._preparing:
                raise EngineError("the query is about to scale already; wait for the next batch")
            self._preparing = True
        try:
            before, after = pending.decision.before.machines, pending.decision.after.machines
            new = len(set(after) - set(before))
            if new and not request.share_slots:
                self.machines.ensure_slots(len(after), new, request.timeout)
            self.pending = pending
        finally:
            self._preparing = False
        return pending

    def withdraw(self, pending: Pending) -> bool:
        """Take a request back that no batch has taken up yet; return whether it could."""
        with self._lock:
            if self.pending is not pending:
                return False
            self.pending = None
            return True

    def next(self) -> Pending | None:
        """Return what the batch that is being planned has to carry out."""
        self._read_requests()
        with self._lock:
            pending, self.pending = self.pending, None
        return pending

    def news(self, pending: Pending | None, scaled: Mapping[str, int] | None) -> list[Scaling]:
        """Return what the commit of a batch tells: the change that it makes, and what was refused since the last."""
        news, self._news = self._news, []
        if pending is not None or scaled:  # without a request, it was planned before a restart
            change = _scaling(pending, scaled)
            change.why = None if pending is None else pending.why
            news.append(change)
        return news

    def _refuse(self, operation: str, servers: int, error: Exception) -> None:
        told = Scaling(operation=operation, servers=servers, refused=str(error))
        self.history.append(told)
        self._news.append(told)

    def refused(self, pending: Pending, error: Exception) -> None:
        """No plan could be made of it."""
        pending.error = error
        self._news.append(Scaling(operation=pending.decision.operation, refused=str(error)))
        self._tell(pending.answer, {"state": "refused", "error": str(error)})
        pending.done.set()

    def committed(self, pending: Pending | None, hosts: list[str], scaled: Mapping[str, int] | None) -> None:
        """Hear that a batch has happened: machines that are no longer needed may go.

        ``hosts`` has the host of each server in it, ``scaled`` what its change of servers did.
        """
        hosts_before, self.hosts = self.hosts, hosts
        if pending is None:
            return
        about = _scaling(pending, scaled)
        self.history.append(about)
        if pending.decision.operation == "in" and pending.request.release:
            by_host = pending.request.hosts or pending.request.whole_hosts
            named = {hosts_before[int(m)] for m in pending.decision.machines} if by_host else None
            about.released = self.machines.release(named)
        self._tell(pending.answer, {"state": "done", **about.to_dict()})
        pending.done.set()

    def watch(self) -> None:
        """Let the automatic mode look at the batch that has just ended."""
        if self._watcher is None or self.pending is not None or self._preparing:
            return
        whole_hosts = self._watcher.config.whole_hosts
        change = self._watcher.watch(
            len(set(self.hosts)) if whole_hosts else self.load.topology.servers,
            lag=self.load.lag,
            congested=len(self.load.congested()),
            utilisation=self.load.utilisation,
        )
        if not change:
            return
        self._in_background(self._scale_by, change, whole_hosts)

    def _scale_by(self, change: int, whole_hosts: bool) -> None:
        operation = "out" if change > 0 else "in"
        try:
            self.ask(Request(operation, abs(change), whole_hosts=whole_hosts))
        except WeirError as error:  # too few slots: the stream goes on as it is, and it is said
            self._refuse(operation, abs(change), error)

    def _in_background(self, work: Callable[..., None], *about: Any) -> None:
        # executors may take a minute to come, and the stream is not to wait for them
        threading.Thread(target=work, args=about, name="weir-scaler", daemon=True).start()

    def _read_requests(self) -> None:
        for name in self.storage.names(REQUESTS):
            if name.endswith(".tmp") or self.storage.exists(CheckpointLayout.answer(name)):
                continue
            try:
                asked = self.storage.read_document(CheckpointLayout.request(name), "request")
                self.storage.write_document(CheckpointLayout.answer(name), "answer", {"state": "accepted"})
            except CheckpointError:
                continue  # withdrawn in this very moment
            self._forget_old(name)
            request = Request(**{**asked, "hosts": tuple(asked["hosts"])})
            if request.operation == RECONFIGURE:
                self._ask_to_reconfigure(name)
            else:
                self._in_background(self._serve, name, request)

    def _ask_to_reconfigure(self, name: str) -> None:
        if self._reconfigure is None:
            error = (
                "the query was started without routing=weir.Locality(…), so there is nothing to reconfigure"
            )
            self._tell(name, {"state": "refused", "error": error})
        else:
            self._reconfigure()
            self._tell(name, {"state": "done", "operation": RECONFIGURE})

    def _serve(self, name: str, request: Request) -> None:
        try:
            now = self.load.situation()
            decision = decide(request, now, self.hosts)
            pending = Pending(request, decision, text(decision, now), answer=name)
            self.storage.write_document(
                CheckpointLayout.answer(name, DECISION), "answer", {"text": pending.why}
            )
            self._queue(pending)
        except WeirError as error:
            self._refuse(request.operation, request.machines, error)
            self._tell(name, {"state": "refused", "error": str(error)})

    def _tell(self, name: str | None, body: dict[str, Any]) -> None:
        if name is not None:
            self.storage.write_document(CheckpointLayout.answer(name, DONE), "answer", body)
            self.storage.delete(CheckpointLayout.request(name))

    def _forget_old(self, name: str) -> None:
        day = 86_400_000
        for old in self.storage.names(ANSWERS):
            if int(old.split("-")[0]) < int(name.split("-")[0]) - day:
                self.storage.delete(CheckpointLayout.answer(old))


def _scaling(pending: Pending | None, scaled: Mapping[str, int] | None) -> Scaling:
    change = msgspec.convert(scaled or {}, Scaling)
    if pending is not None:
        change.operation, change.strategy = pending.decision.operation, pending.decision.strategy
    return change
