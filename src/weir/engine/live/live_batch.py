"""One server that stays: it takes rows as they arrive, through all steps of a batch, and sends rows on meanwhile.

The same :class:`~weir.engine.task.server.Server` as in step jobs, with the same plan, state and reports. Two things
differ. A copy of an operator lives from the first row to the last step in which rows can reach it, so nothing is packed
to wait for the next step. And since a live batch only ever runs again as a whole, routers may take rows in any order.

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

from weir.engine.documents import TaskReport
from weir.engine.exchange import wire
from weir.engine.live.inbox import NOTHING, Inbox
from weir.engine.live.loads import SOON, OperatorLoad, ServerLoad, every, followed
from weir.engine.live.outbox import Answers, DirectOutbox, Send
from weir.engine.live.transport import Frame
from weir.engine.metrics.latency import Busy, Groups
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.server import Server
from weir.faults import reach
from weir.graph.model import Node
from weir.operators.instance import Instance, OperatorReport

MOMENT = 0.05  # seconds of work after which a server looks at what else has come
FEW_ROWS = 16  # that it works on before it knows how long they take
# Seconds per row below which it is not worth while to begin before all rows have come: a key's state would be packed
# and unpacked again and again.
CHEAP = 50e-6


class LiveBatch(Server):
    """Runs one batch on one server, all steps of it.

    ``speak`` tells the driver how this server is doing.
    """

    arrival_order = True

    def __init__(
        self,
        job: BatchContext,
        server: int,
        inbox: Inbox,
        send: Send,
        end: Callable[[int], None],
        speak: Callable[[bytes], None],
    ) -> None:
        super().__init__(job, 1, server)
        self._tell = speak
        self._followed = followed(job.topology)
        self._worked: dict[str, tuple[int, float]] = {}  # on what was put by: rows, seconds
        self._spoke, self._word, self._every = 0.0, b"", every(job.plan.servers)
        self.outbox: DirectOutbox = DirectOutbox(self, send)
        self.inbox, self._send, self._end = inbox, send, end
        # states to open before their rows come, if there is time; not those that must be fetched
        stateful = job.topology.stateful if job.storage.is_local else []
        self._unopened = [n for n in stateful if server in n.placement and self.keeper.has_state(n)]
        # what nobody waits for: step, since when it could be done, and how
        self._later: deque[tuple[int, float, Callable[[], object]]] = deque()
        self.reports = [self.report]  # one per step; all but the counts of operators are in the first
        host, process = self.report.host, self.report.process
        for step in range(2, job.topology.steps + 1):
            self.reports.append(TaskReport(server=server, step=step, host=host, process=process))

    def run_batch(self) -> Answers:
        """Take rows until none can come any more; return reports and statistics for the driver."""
        steps = self.topology.steps
        with Busy(self.report):
            self.keeper.change_owners(self.report)
            self.keeper.merge_segments()
        self.routers.hand_out(self._deliver)
        for _ in self._read():  # what the plan says is to be read here
            pass
        for step in range(1, steps + 1):
            self.step = step
            self._take_all(step)
            self.began = time.perf_counter()  # who waits for others has time: it is not congested
            with Busy(self.report):
                for node in self.topology.nodes:
                    if step in (node.level, node.state_level):
                        self._finish_operator(node)
            # at its end, when something could be sent twice
            reach("step-started", self.plan.batch * 100 + step)
            if step < steps:
                self._end(step + 1)
        self._unopened = []
        while self._catch_up():
            pass
        with Busy(self.report):
            self._write()
        self.step = 1
        for (kind, edge), rows in self.inbox.longest.items():
            name = self.topology.edges[edge].target if kind == wire.DATA else self.topology.nodes[edge].name
            self._operator(self.topology.by_name[name]).queued += rows
        self.report.spilled_bytes = self.inbox.spilled
        self.last, self.carried = True, self.reports[1:]
        self._send_reports()
        return self.outbox.answers()

    def _take_all(self, step: int) -> None:
        """Take rows until none can come for a step; work meanwhile on those that were put by."""
        while True:
            self._speak(self._every)
            frame = self.inbox.take(step, wait=False)
            if frame is NOTHING and self._catch_up():
                continue
            if frame is NOTHING:
                self._work_ahead(idle=True)
                self._speak(SOON, hungry=True)
                frame = self.inbox.take(step)
            if frame is None:
                return
            self._take(frame)
            while self._work_ahead():
                self._speak(self._every)

    def _finish_operator(self, node: Node) -> None:
        """Put the end of an operator off if nobody waits for it: nothing leaves it then."""
        instance = self.instances.get((node.name, self._step_of(node)))
        quiet = not self.topology.out_edges[node.name] or (instance is not None and instance.ends_quietly)
        if quiet and self.step == node.state_level:
            self._do_later(partial(super()._finish_operator, node))
        else:
            super()._finish_operator(node)

    def _do_later(self, work: Callable[[], object]) -> None:
        self._later.append((self.step, self.began, work))

    def _catch_up(self) -> bool:
        """Do one thing that nobody waits for, as there is nothing else to do; return whether there was one."""
        if self._unopened:
            with Busy(self.report):
                self.keeper.view(self._unopened.pop(0))
            return True
        if not self._later:
            return False
        now = self.step
        self.step, self.began, work = self._later.popleft()
        with Busy(self.report):
            work()
        self.step = now
        return True

    def _work_ahead(self, idle: bool = False) -> bool:
        """Work for a moment on rows that were put by, where load is followed, if there is enough for one.

        Who has nothing else to do tries fewer, too: sources wait until all that have rows have shown how fast they are.
        """
        for node in self._followed:
            instance = self.instances.get((node.name, node.level))
            if instance is not None and instance.waiting:
                pace = self._pace(node)
                few = min(FEW_ROWS, instance.waiting) if idle else FEW_ROWS
                most = few if pace is None else max(1, int(MOMENT / max(pace, CHEAP)))
                if instance.waiting >= most and (pace is None or pace > CHEAP):
                    with Busy(self.report):
                        self._work(node, instance, most)
                    return True
        return False

    def _work(self, node: Node, instance: Instance, most: int) -> None:
        groups, self.unserved[node.name] = _first(self.unserved[node.name], most)
        self.began, before = 0.0, instance.report.busy  # each row has waited since it came
        rows, seconds = self._worked.get(node.name, (0, 0.0))
        self._serve(node, instance, instance.work(most), groups)
        self._worked[node.name] = rows + most, seconds + instance.report.busy - before

    def _pace(self, node: Node) -> float | None:
        """Return how long an operator that puts rows by takes for each, in this batch or the last; None if unknown."""
        rows, seconds = self._worked.get(node.name, (0, 0.0))
        if rows >= 4 * FEW_ROWS or seconds > MOMENT / 10:  # beside which a call's own costs are nothing
            return seconds / rows
        last = self.job.pace.seconds.get(node.name)
        pace = math.nan if last is None else last[node.instance_on[self.server]]
        return None if math.isnan(pace) else pace

    def _speak(self, pause: float, hungry: bool = False) -> None:
        """Say how operators here are doing, if that has changed, and not so soon again."""
        at = time.perf_counter()
        if not self._followed or at - self._spoke < pause:
            return
        operators = {
            node.index: self._operator_load(node) for node in self._followed if self.server in node.placement
        }
        word = ServerLoad(self.plan.batch, self.inbox.feeding, hungry, operators)
        data = msgspec.msgpack.encode(word)
        if data != self._word:
            self._spoke, self._word = at, data
            self._tell(data)

    def _operator_load(self, node: Node) -> OperatorLoad:
        report, put_by = self.reports[node.level - 1].operators.get(node.name, OperatorReport()), 0
        instance, busy = self.instances.get((node.name, node.level)), report.busy
        if instance is not None and instance.waiting:
            pace = self._pace(node)
            if pace is None or pace > CHEAP:
                put_by = instance.waiting
            else:  # what is quickly done counts as done, or sources would wait for it
                busy = report.rows_in * pace
        edges = [edge.index for edge in self.topology.edges if edge.target == node.name]
        return OperatorLoad(report.rows_in - put_by, self.inbox.waiting(edges) + put_by, busy)

    def _take(self, frame: Frame) -> None:
        assert frame.payload is not None
        now, self.began = self.step, frame.arrived
        with Busy(self.report):
            if frame.kind == wire.PARTIAL:
                self.step = frame.step  # for the copy that merges, which may have to wait for its own step
            self._receive_blob(frame.kind, frame.edge, frame.source_time, frame.payload)
            self.step = now
        for _ in self._read():  # files whose names have come
            pass

    def _save(self, node: Node, instance: Instance) -> None:
        """Write state when there is time, if nothing reads it in this batch: no server waits for another's disk."""
        if node.level == node.state_level:
            self._do_later(partial(super()._save, node, instance))
        else:
            super()._save(node, instance)

    def _step_of(self, node: Node) -> int:
        return min(max(self.step, node.level), node.state_level)

    def _operator(self, node: Node) -> OperatorReport:
        return self.reports[self._step_of(node) - 1].operators.setdefault(node.name, OperatorReport())


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
