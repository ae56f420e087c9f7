"""What live servers say of their load while a batch runs, for source tasks, whose routers follow it.

Servers say how many rows their operators have taken, how many wait, and how long they have worked. The driver gathers
that, and tells it to the source tasks, each through one server: far less than if all told all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np

from weir.engine.documents import TaskReport
from weir.engine.task.batch_context import BatchContext, Pace
from weir.engine.task.reports import pace
from weir.graph.model import Edge, Node, Topology

SOON = 0.01  # seconds after which a server that has nothing to do may speak again


def every(servers: int) -> float:
    """Return the seconds between two words of a server, and between two periods of control: more for many servers."""
    return 0.1 * max(1.0, servers / 32)


def is_followed(edge: Edge, topology: Topology) -> bool:
    """Return whether an edge leads from a source, by routers that follow load, to an operator that works at once.

    Between servers load is followed from batch to batch only. Towards the end of a batch few of them still send, and
    to those that they prefer: what these get then says nothing about the shares that all should have.
    """
    if not (edge.crosses and edge.grouping.follows_load) or topology.by_name[edge.target].waits:
        return False
    sender = edge.source
    while sender not in topology.sources:  # operators may work at the source
        leading = [
            before.source for before in topology.edges if before.target == sender and not before.crosses
        ]
        if not leading or not topology.runs_at_source(topology.by_name[sender]):
            return False
        sender = leading[0]
    return True


def followed(topology: Topology) -> list[Node]:
    """Return the operators that rows reach over such edges."""
    targets = {edge.target for edge in topology.edges if is_followed(edge, topology)}
    return [node for node in topology.nodes if node.name in targets]


class OperatorLoad(msgspec.Struct, array_like=True, gc=False):
    """An operator on a server, since the batch began."""

    taken: int = 0  # rows that it has worked on
    waiting: int = 0  # rows that have arrived and wait
    busy: float = 0.0  # seconds


class ServerLoad(msgspec.Struct, array_like=True):
    """What a server says of its operators."""

    batch: int
    sources: int  # source tasks that send to it
    hungry: bool  # whether it has nothing to do
    operators: dict[int, OperatorLoad]  # by their index


class ClusterLoad(msgspec.Struct, array_like=True):
    """What the driver tells: of each operator, for each instance, seconds since it was heard of and how it was."""

    batch: int
    sources: int
    operators: dict[int, list[tuple[float, OperatorLoad] | None]]  # None: not heard of yet


class LoadAggregator:
    """Gathers the words of servers in one batch, and tells news often enough for control to act on them."""

    def __init__(self, job: BatchContext, tell: Callable[[bytes], None]) -> None:
        self._job, self._every = job, every(job.plan.servers)
        self._tell, self._lock = tell, threading.Lock()  # words come in several threads
        self._nodes = followed(job.topology)
        self._words: dict[int, tuple[float, ServerLoad]] = {}
        self._told, self._due = 0.0, np.inf  # when news was told last, and when some will be

    def hear(self, server: int, data: bytes, at: float) -> None:
        """Take in the word of a server, and tell news if it is time for that, or as soon as it is."""
        word = msgspec.msgpack.decode(data, type=ServerLoad)
        with self._lock:
            if word.batch != self._job.plan.batch:
                return
            self._words[server] = at, word
            due = self._told + (SOON if word.hungry else self._every)
            if due >= self._due:
                return
            self._due = due
        if due <= at:
            self._tell_news(due)
        else:
            timer = threading.Timer(due - at, self._tell_news, [due])
            timer.daemon = True
            timer.start()

    def pace(self, reports: list[TaskReport]) -> Pace:
        """Return how fast the operators that are followed were, for the next batch to begin with."""
        return pace(self._nodes, self._job.topology, self._job.plan, reports)

    def _tell_news(self, due: float) -> None:
        at = time.perf_counter()
        with self._lock:
            if due > self._due:
                return  # a hungry server was in a greater hurry
            self._told, self._due = at, np.inf
            sources = max(word.sources for _, word in self._words.values())
            operators = {node.index: [self._of(node, s, at) for s in node.placement] for node in self._nodes}
        self._tell(msgspec.msgpack.encode(ClusterLoad(self._job.plan.batch, sources, operators)))

    def _of(self, node: Node, server: int, at: float) -> tuple[float, OperatorLoad] | None:
        heard, word = self._words.get(server, (at, None))
        standing = None if word is None else word.operators.get(node.index)
        return None if standing is None else (at - heard, standing)
