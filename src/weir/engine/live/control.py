"""Control within a batch: a source task's routers hear every tenth of a second how servers are doing.

Rows are routed piece by piece, and a source does not give away more than servers work on in a moment: what has been
routed can't be routed any better. The same groupings and routers take in what they hear as between batches.

A live batch only ever runs again as a whole, so routes may depend on when something was heard. What routers know in the
end is part of the commit.

Servers say how many rows their operators have taken, how many wait, and how long they have worked. The driver gathers
that, and passes it on to the source tasks, each through one server: far less than if all sent to all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from weir.engine.documents import TaskReport
from weir.engine.live.transport import Frame
from weir.engine.task.batch_context import BatchContext, Pace
from weir.engine.task.reports import pace
from weir.engine.task.routers import Routers
from weir.graph.model import Edge, Node, Topology
from weir.locality.capacity import slowed
from weir.routing.base import PERIODS, InstanceLoad, Instances
from weir.rows import Rows

SOON = 0.01  # seconds after which a server that has nothing to do may report again
TELLING = 0.1  # seconds of work of an instance before which its speed may be chance


def every(servers: int) -> float:
    """Return the seconds between two reports of a server, and between two periods of control: more for many servers."""
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
    """What the driver passes on: of each operator, for each instance, how old its last report is, and the report."""

    batch: int
    sources: int
    operators: dict[int, list[tuple[float, OperatorLoad] | None]]  # None: none yet


def server_slowed(cluster: ClusterLoad, job: BatchContext) -> bool:
    """Return whether some server is much slower than in the last batch, by what the others are."""
    if cluster.batch != job.plan.batch:
        return False
    for index, heard in cluster.operators.items():
        before = job.pace.seconds.get(job.topology.nodes[index].name)
        known = [None if one is None or one[1].busy < TELLING else one[1] for one in heard]
        now = [np.nan if one is None or not one.taken else one.busy / one.taken for one in known]
        if before is not None and slowed(np.array(now), np.array(before)):
            return True
    return False


class LoadAggregator:
    """Gathers the reports of servers in one batch, and passes them on often enough for control to act on them."""

    def __init__(self, job: BatchContext, tell: Callable[[bytes], None]) -> None:
        self._job, self._every = job, every(job.plan.servers)
        self._tell, self._lock = tell, threading.Lock()  # reports come in several threads
        self._nodes = followed(job.topology)
        self._loads: dict[int, tuple[float, ServerLoad]] = {}
        self._published, self._due = 0.0, np.inf  # when reports were passed on last, and will be next

    def hear(self, server: int, data: bytes, at: float) -> None:
        """Take in the report of a server; pass it on at once if it is time for that, else as soon as it is."""
        load = msgspec.msgpack.decode(data, type=ServerLoad)
        with self._lock:
            if load.batch != self._job.plan.batch:
                return
            self._loads[server] = at, load
            due = self._published + (SOON if load.hungry else self._every)
            if due >= self._due:
                return
            self._due = due
        if due <= at:
            self._publish(due)
        else:
            timer = threading.Timer(due - at, self._publish, [due])
            timer.daemon = True
            timer.start()

    def pace(self, reports: list[TaskReport]) -> Pace:
        """Return how fast the operators that are followed were, for the next batch to begin with."""
        return pace(self._nodes, self._job.topology, self._job.plan, reports)

    def _publish(self, due: float) -> None:
        at = time.perf_counter()
        with self._lock:
            if due > self._due:
                return  # a hungry server was in a greater hurry
            self._published, self._due = at, np.inf
            sources = max(load.sources for _, load in self._loads.values())
            operators = {node.index: [self._of(node, s, at) for s in node.placement] for node in self._nodes}
        self._tell(msgspec.msgpack.encode(ClusterLoad(self._job.plan.batch, sources, operators)))

    def _of(self, node: Node, server: int, at: float) -> tuple[float, OperatorLoad] | None:
        reported, server_load = self._loads.get(server, (at, None))
        load = None if server_load is None else server_load.operators.get(node.index)
        return None if load is None else (at - reported, load)


AHEAD = 2.5  # periods' work that sources have waiting on every server
CALM = (
    2  # times as much where the plan leaves nothing to shares: only a server that becomes slow changes routes
)
LOAD_TIMEOUT = 1.0  # seconds without a report after which a source sends more all the same
FIRST_ROWS = 64  # per server, as long as nothing is known of their speed
FEWEST_ROWS = 4  # per server and period, where shares tell how many each gets

Numbers = NDArray[np.float64]


class Receivers:
    """The instances behind one edge: how they are doing, and what was sent to them from here."""

    def __init__(self, node: Node, job: BatchContext) -> None:
        n = len(node.placement)
        self.node, self._batch = node, job.plan.batch
        self._sources = job.pace.sources
        # seconds per row, lately; not a number: nothing known
        self._pace: Numbers = np.array(job.pace.seconds.get(node.name, [np.nan] * n))
        self._now, self._before = np.zeros((3, n)), np.zeros((3, n))  # taken, waiting, busy
        self._reported: Numbers = np.zeros(n)  # when each reported that
        self._sent, self._sent_before = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._lately: list[tuple[float, NDArray[np.int64]]] = []  # when, how many rows to each
        self._period, self._began = 0, 0.0

    def hear(self, cluster: ClusterLoad, at: float) -> None:
        """Take in how instances are doing."""
        self._sources = max(1, cluster.sources)
        for number, heard in enumerate(cluster.operators[self.node.index]):
            if heard is not None:
                age, load = heard
                self._reported[number] = at - age
                self._now[:, number] = load.taken, load.waiting, load.busy
        taken, _, busy = self._now - self._before
        ever, spent = self._now[0], self._now[2]
        lately = np.where(taken > 0, busy / np.maximum(1, taken), spent / np.maximum(1, ever))
        self._pace = np.where(ever > 0, np.maximum(1e-9, lately), self._pace)
        oldest = self._reported.min()
        self._lately = [sent for sent in self._lately if sent[0] > oldest]

    def note(self, instances: Instances) -> None:
        """Note where rows are being sent."""
        rows = np.bincount(instances, minlength=len(self._sent))
        self._lately.append((time.perf_counter(), rows))
        self._sent += rows

    def _queues(self) -> Numbers:
        """Return the rows that waited at each when it reported, and those sent since; other sources send as many."""
        queues: Numbers = self._now[1].copy()
        for when, rows in self._lately:
            queues += np.where(self._reported < when, rows * self._sources, 0)
        return queues

    def _paces(self, queues: Numbers) -> Numbers | None:
        """Return the seconds per row of each; None before all that have rows have shown theirs, and one at least."""
        unknown = np.isnan(self._pace)
        if unknown.all() or (unknown & (queues > 0)).any():
            return None
        return np.where(unknown, np.nanmedian(self._pace), self._pace)

    def room(self, seconds: float) -> tuple[float, float]:
        """Return how many rows to send so that every server has work for so long, and how many that is at most.

        Before their speed is known, that is a handful.
        """
        queues = self._queues()
        paces = self._paces(queues)
        if paces is None:
            most = float(FIRST_ROWS * len(queues))
            return most - float(queues.sum()), most
        done = np.where(self._reported > 0, time.perf_counter() - self._reported, 0.0) / paces
        lacking = np.maximum(0.0, seconds / paces - np.maximum(0.0, queues - done))
        return float(lacking.sum()) / self._sources, float((seconds / paces).sum()) / self._sources

    def period(self, shares: Sequence[int] | None = None) -> InstanceLoad | None:
        """Return the load since this was last returned; None if it is too soon, or if too little is known.

        What instances were sent from here counts, not what they did: as long as rows wait everywhere, all are busy all
        the time. All are equally far from a source, so each source's rows should be balanced by themselves. Of few
        rows, who has more is chance: where shares decide, these count.
        """
        at, queues, sent = time.perf_counter(), self._queues(), self._sent - self._sent_before
        paces, fewest = self._paces(queues), FIRST_ROWS if shares is None else FEWEST_ROWS
        if paces is None or at - self._began < every(len(sent)) or sent.sum() < fewest * len(sent):
            return None
        self._began, self._before, self._sent_before = at, self._now.copy(), self._sent.copy()
        self._period += 1
        number = self._batch * PERIODS + self._period
        rows = sent.astype(np.float64) if shares is None else sent.sum() * np.array(shares) / sum(shares)
        return InstanceLoad(number, rows, rows * paces, rows * queues * paces)


class Control:
    """Lets the routers of a source task follow the load of servers while a batch runs.

    ``listen(seconds)`` returns frames with loads that have come; if there are none, it waits for some.
    """

    def __init__(self, job: BatchContext, routers: Routers, listen: Callable[[float], list[Frame]]) -> None:
        self._job, self._routers, self._listen = job, routers, listen
        self._followed = {e.index for e in job.topology.edges if is_followed(e, job.topology)}
        self._receivers: dict[int, Receivers] = {}  # by edge

    def route(self, edge: Edge, node: Node, rows: Rows) -> Iterator[tuple[Rows, Instances]]:
        """Yield rows, a piece at a time where routers follow load, and the instance to which each goes."""
        if edge.index not in self._followed:
            yield from self._routers.route(edge, node, rows)
            return
        if edge.index not in self._receivers:
            self._receivers[edge.index] = Receivers(node, self._job)
        receivers, router, start = self._receivers[edge.index], self._routers.router(edge, node), 0
        while start < len(rows):
            calm = CALM if self._routers.grouping(node).order_free else 1
            size = max(FIRST_ROWS, int(self._room(receivers, start, len(rows), calm)))
            load = receivers.period(router.shares() if router.shares_decide else None)
            feedback = None if load is None else self._routers.grouping(node).feedback(load)
            if feedback is not None:
                router.listen(feedback)
            piece = rows.slice(start, start + size)
            instances = self._routers.choose(edge, node, piece.hash(node.key))
            receivers.note(instances)
            yield piece, instances
            start += size

    def _room(self, receivers: Receivers, start: int, end: int, calm: int) -> float:
        """Return how many rows to send next, once half of what servers should have before them is lacking there.

        If nothing is heard for long, it is as many as before.
        """
        seconds = calm * AHEAD * every(len(receivers.node.placement))
        limit, pause = max(LOAD_TIMEOUT, 2 * seconds), 0.0
        until = time.perf_counter() + limit
        while True:
            for frame in self._listen(pause):
                self._hear(frame)
                until = time.perf_counter() + limit
            room, most = receivers.room(seconds)
            if room >= min(end - start, max(FIRST_ROWS, most / 2)):
                return room
            if time.perf_counter() > until:
                return max(room, start)
            pause = seconds / 8

    def _hear(self, frame: Frame) -> None:
        cluster = msgspec.msgpack.decode(frame.data, type=ClusterLoad)
        if cluster.batch == self._job.plan.batch:
            for receivers in self._receivers.values():
                receivers.hear(cluster, frame.arrived)
            if server_slowed(cluster, self._job):
                self._routers.server_slowed()
