"""One server that stays: it takes rows as they arrive, through all steps of a batch, and sends rows on meanwhile.

The same :class:`~weir.engine.task.runtime.OperatorRuntime` as in step jobs, with the same plan, state and reports.

A step has ended on a server when all source tasks, or all other servers, have said that they send no more for it. Each
says so on the connection on which it has sent its rows, so none can come after.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from weir.engine.exchange import wire
from weir.engine.exchange.wire import Answers
from weir.engine.live.control import (
    CALM,
    SOON,
    ClusterLoad,
    OperatorLoad,
    ServerLoad,
    every,
    followed,
    server_slowed,
)
from weir.engine.live.inbox import NOTHING, Inbox
from weir.engine.live.sender import DirectOutbox, Send
from weir.engine.metrics.latency import Busy, Groups
from weir.engine.task.batch_context import BatchContext, host_name
from weir.engine.task.reports import answers
from weir.engine.task.routers import Routers
from weir.engine.task.runtime import OperatorRuntime, new_report
from weir.faults import reach
from weir.graph.model import Node
from weir.logs import about
from weir.operators.instance import Instance, OperatorReport

# Seconds of work after which a server looks at what else has come. Each time a function is called anew for every key
# that has rows: with 0.05 that took a tenth of the time where a key has a row or two in that time.
MOMENT = 0.125
FEW_ROWS = 16  # that it works on before it knows how long they take
# Seconds per row below which it is not worth while to begin before all rows have come: a key's state would be packed
# and unpacked again and again.
CHEAP = 50e-6


class LiveBatch:
    """Runs one batch on one server, all steps of it.

    ``end`` tells the other servers that a step gets no more rows from here, ``tell`` the driver how this one is doing.
    """

    def __init__(
        self,
        job: BatchContext,
        server: int,
        inbox: Inbox,
        send: Send,
        end: Callable[[int], None],
        tell: Callable[[bytes], None],
    ) -> None:
        self._job, self._topology, self._server = job, job.topology, server
        self._inbox, self._end, self._tell = inbox, end, tell
        self._report = new_report(server, list(range(1, job.topology.steps + 1)), host_name())
        outbox = DirectOutbox(job, self._report, send)
        self._routers = Routers(job, server)
        self._runtime = OperatorRuntime(job, self._report, outbox, self._routers, None)
        self._followed = followed(job.topology)
        self._worked: dict[str, tuple[int, float]] = {}  # on what was put by: rows, seconds
        self._reported, self._last_load, self._every = 0.0, b"", every(job.plan.servers)
        # states to open before their rows come, if there is time; not those that must be fetched
        stateful = job.topology.stateful if job.storage.is_local else []
        keeper = self._runtime.keeper
        self._unopened = [n for n in stateful if server in n.placement and keeper.has_state(n)]
        self._later: deque[Callable[[], object]] = deque()  # what nobody waits for

    def run(self) -> Answers:
        """Take rows until none can come any more; return report and statistics for the driver."""
        runtime, topology = self._runtime, self._topology
        about.set({"batch": self._job.plan.batch, "server": self._server})
        with Busy(self._report):
            runtime.keeper.change_owners()
            runtime.keeper.merge_segments()
        runtime.receive_listing()
        self._read()
        for step in range(1, topology.steps + 1):
            self._take_all(step)
            ended = time.perf_counter()  # who waits for others has time: it is not congested
            with Busy(self._report):
                for node in topology.nodes:
                    if step in (node.level, node.state_level):
                        self._finish(node, step, ended)
            # at its end, when something could be sent twice
            reach("step-started", self._job.plan.batch * 100 + step)
            if step < topology.steps:
                self._end(step + 1)
        self._unopened = []
        while self._catch_up():
            pass
        stats = runtime.close(last=True)
        for (kind, edge), rows in self._inbox.longest.items():
            name = topology.edges[edge].target if kind == wire.DATA else topology.nodes[edge].name
            self._report.operators.setdefault(name, OperatorReport()).queued += rows
        self._report.spilled_bytes = self._inbox.spilled
        return answers(self._report, stats)

    def _take_all(self, step: int) -> None:
        """Take rows until none can come for a step; work meanwhile on those that were put by."""
        while True:
            self._report_load(self._every)
            self._hear()
            frame = self._inbox.take(step, wait=False)
            if frame is NOTHING and self._catch_up():
                continue
            if frame is NOTHING:
                self._work_ahead(idle=True)
                self._report_load(SOON, hungry=True)
                frame = self._inbox.take(step)
            if frame is None:
                return
            assert frame.payload is not None
            with Busy(self._report):
                self._runtime.receive(frame.kind, frame.edge, frame.payload, frame.source_time, frame.arrived)
            self._read()
            while self._work_ahead():
                self._report_load(self._every)

    def _read(self) -> None:
        """Read the files whose names have come."""
        for _ in self._runtime.read():
            pass

    def _finish(self, node: Node, step: int, ended: float) -> None:
        """Let an operator end a step; later, if nobody waits for it: nothing leaves it then.

        State is written when there is time, if nothing reads it in this batch: no server waits for another's disk.
        """
        runtime, final = self._runtime, step == node.state_level
        instance = runtime.instances.get((node.name, step))
        quiet = not self._topology.out_edges[node.name] or (instance is not None and instance.ends_quietly)
        if quiet and final:
            self._later.append(lambda: runtime.save(node, runtime.finish(node, step, ended)))
            return
        saving = partial(runtime.save, node, runtime.finish(node, step, ended))
        if node.level == node.state_level:
            self._later.append(saving)
        else:
            saving()

    def _catch_up(self) -> bool:
        """Do one thing that nobody waits for, as there is nothing else to do; return whether there was one."""
        if not self._unopened and not self._later:
            return False
        with Busy(self._report):
            if self._unopened:
                self._runtime.keeper.view(self._unopened.pop(0))
            else:
                self._later.popleft()()
        return True

    def _work_ahead(self, idle: bool = False) -> bool:
        """Work for a moment on rows that were put by, where load is followed, if there is enough for one.

        Who has nothing else to do tries fewer, too: sources wait until all that have rows have shown how fast they are.
        """
        for node in self._followed:
            instance = self._runtime.instances.get((node.name, node.level))
            if instance is not None and instance.waiting:
                pace = self._pace(node)
                few = min(FEW_ROWS, instance.waiting) if idle else FEW_ROWS
                moment = MOMENT * (CALM if self._routers.grouping(node).order_free else 1)
                most = few if pace is None else max(1, int(moment / max(pace, CHEAP)))
                if instance.waiting >= most and (pace is None or pace > CHEAP):
                    with Busy(self._report):
                        self._work(node, instance, most)
                    return True
        return False

    def _work(self, node: Node, instance: Instance, most: int) -> None:
        unserved, before = self._runtime.unserved, instance.report.busy
        groups, unserved[node.name] = _first(unserved[node.name], most)
        rows, seconds = self._worked.get(node.name, (0, 0.0))
        self._runtime.serve(node, instance, instance.work(most), groups)
        self._worked[node.name] = rows + most, seconds + instance.report.busy - before

    def _pace(self, node: Node) -> float | None:
        """Return how long an operator that puts rows by takes for each, in this batch or the last; None if unknown."""
        rows, seconds = self._worked.get(node.name, (0, 0.0))
        if rows >= 4 * FEW_ROWS or seconds > MOMENT / 10:  # beside which a call's own costs are nothing
            return seconds / rows
        last = self._job.pace.seconds.get(node.name)
        pace = math.nan if last is None else last[node.instance_on[self._server]]
        return None if math.isnan(pace) else pace

    def _hear(self) -> None:
        """Take in how all servers are doing: one that has become slow gets fewer rows from here, too."""
        frame, self._inbox.cluster_load = self._inbox.cluster_load, None
        if frame is None or not self._followed:
            return
        if server_slowed(msgspec.msgpack.decode(frame.data, type=ClusterLoad), self._job):
            self._routers.server_slowed()

    def _report_load(self, pause: float, hungry: bool = False) -> None:
        """Say how operators here are doing, if that has changed, and not so soon again."""
        at = time.perf_counter()
        if not self._followed or at - self._reported < pause:
            return
        operators = {
            node.index: self._operator_load(node) for node in self._followed if self._server in node.placement
        }
        load = ServerLoad(self._job.plan.batch, self._inbox.feeding, hungry, operators)
        data = msgspec.msgpack.encode(load)
        if data != self._last_load:
            self._reported, self._last_load = at, data
            self._tell(data)

    def _operator_load(self, node: Node) -> OperatorLoad:
        report, put_by = self._runtime.counts.get((node.name, node.level), OperatorReport()), 0
        instance, busy = self._runtime.instances.get((node.name, node.level)), report.busy
        if instance is not None and instance.waiting:
            pace = self._pace(node)
            if pace is None or pace > CHEAP:
                put_by = instance.waiting
            else:  # what is quickly done counts as done, or sources would wait for it
                busy = report.rows_in * pace
        edges = [edge.index for edge in self._topology.edges if edge.target == node.name]
        return OperatorLoad(report.rows_in - put_by, self._inbox.waiting(edges) + put_by, busy)


def _first(groups: Groups, rows: int) -> tuple[Groups, Groups]:
    """Return the groups of the first so many rows, and the rest."""
    taken: Groups = []
    for at, (source_time, count, came) in enumerate(groups):
        if count > rows:
            if rows:
                taken.append((source_time, rows, came))
            return taken, [(source_time, count - rows, came), *groups[at + 1 :]]
        taken.append((source_time, count, came))
        rows -= count
    return taken, []
