"""Requests to scale: what is asked for, what is decided, and how a request reaches a query in another process.

Such a request is a document in the checkpoint (``requests/ID``), and is answered by another (``answers/ID``).
Documents are never replaced, so exactly one of "accepted" and "withdrawn" is the answer: a caller who has given up
can be sure that nothing happens any more.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weir.elasticity.decision import Decision, Situation, Strategy, text
from weir.elasticity.stela import Stela
from weir.engine.checkpoint import DECISION, DONE, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.steering.load import situation
from weir.errors import CheckpointError, EngineError, did_you_mean
from weir.state.storage import Storage

RECONFIGURE = "reconfigure"  # asks for other homes of keys instead of other servers
SLOT_WAIT = 60.0  # seconds that executors get to come


@dataclass(frozen=True)
class Request:
    """What somebody asked for."""

    operation: str  # "out", "in" or "reconfigure"
    machines: int = 1
    hosts: tuple[str, ...] = ()
    strategy: str | Strategy = "stela"
    timeout: float = SLOT_WAIT
    share_slots: bool = False
    release: bool = True
    whole_hosts: bool = False  # ``machines`` counts hosts, with all their servers


def decide(request: Request, now: Situation, hosts: Sequence[str] = ()) -> Decision:
    """Return the decision on a request: a pure function of the situation. ``hosts`` has the host of each server."""
    strategy = Stela() if request.strategy == "stela" else request.strategy
    if not isinstance(strategy, Strategy):
        raise EngineError(
            f"no scaling strategy {strategy!r}: {did_you_mean(str(strategy), ['stela'])}, or an object such as "
            "weir_evaluation.stela.rivals.Gain()"
        )
    if not now.rates:
        raise EngineError("no batch has been measured yet, so there is nothing to decide by; wait for one")
    n = len(now.placement.machines)
    if request.whole_hosts and len(hosts) != n:
        raise EngineError("where servers live is not known before a batch has ended; wait for one")
    if request.operation == "out":
        if request.machines < 1:
            raise EngineError(f"scaling out adds at least one server, got {request.machines}")
        each = math.ceil(n / len(set(hosts))) if request.whole_hosts else 1
        return strategy.scale_out(now, list(range(n, n + request.machines * each)))
    leaving = request.hosts
    for host in leaving:
        if host not in hosts:
            raise EngineError(f"no server lives on host {host!r}; {did_you_mean(host, sorted(set(hosts)))}")
    if request.whole_hosts and not leaving:
        chosen = strategy.scale_in(now.by_host(hosts), request.machines)
        leaving = tuple(str(host) for host in chosen.machines)
    if not leaving:
        return strategy.scale_in(now, request.machines)
    return strategy.scale_in(now, machines=[i for i in range(n) if hosts[i] in leaving])


def predict(commit: Commit, request: Request) -> dict[str, Any]:
    """Return what a query would decide on a request if the load of its last batch were the present one."""
    progress = commit.progress
    if progress is None or not progress.load.rates:
        raise EngineError(
            f"batch {commit.batch}, the last one, had no rows, so there is nothing to decide by"
        )
    now = situation(progress.load)
    decision = decide(request, now, [server.host for server in progress.servers])
    return {
        "state": "dry run",
        "operation": request.operation,
        "from": len(decision.before.machines),
        "to": len(decision.after.machines),
        "steps": [[step.operator, step.source, step.target, step.why] for step in decision.steps],
        "text": text(decision, now),
    }


def submit(storage: Storage, request: Request) -> str:
    """Leave a request for the query that runs on a checkpoint; return its name, to wait for."""
    name = f"{int(time.time() * 1000):015d}-{uuid.uuid4().hex[:8]}"
    storage.write_document(CheckpointLayout.request(name), "request", asdict(request))
    return name


def await_answer(storage: Storage, name: str, timeout: float) -> dict[str, Any]:
    """Wait for what became of a request; give it up if no batch takes it up in time."""
    end = time.monotonic() + timeout
    taken_up, decided, done = (CheckpointLayout.answer(name, what) for what in ("", DECISION, DONE))
    accepted = False
    while True:
        if storage.exists(done):
            answer: dict[str, Any] = storage.read_document(done, "answer")
            if storage.exists(decided):
                answer["text"] = storage.read_document(decided, "answer")["text"]
            return answer
        accepted = accepted or storage.exists(taken_up)
        if time.monotonic() > end:
            if not accepted:
                try:
                    storage.write_document(taken_up, "answer", {"state": "withdrawn"})
                except CheckpointError:
                    accepted = True  # a batch took it up in this very moment
                    end += timeout
                    continue
                storage.delete(CheckpointLayout.request(name))
                raise EngineError(
                    f"no batch began within {timeout:g} s, so the request was withdrawn and nothing has changed. Is "
                    "the query running, and does its source have data?"
                )
            raise EngineError(
                f"the request was taken up, but its batch has not ended after {timeout:g} s; `weir inspect` will "
                "show the new servers when it has"
            )
        time.sleep(0.2)
