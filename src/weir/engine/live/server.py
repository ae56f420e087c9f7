"""One server that stays: it takes rows as they arrive, through all steps of a batch, and sends rows on meanwhile.

The same :class:`~weir.engine.server.Server` as in step jobs, with the same plan, state and reports. Two things differ.
A copy of an operator lives from the first row to the last step in which rows can reach it, so nothing is packed to wait
for the next step. And since a live batch only ever runs again as a whole, routers may take rows in any order.

A step has ended on a server when all source tasks, or all other servers, have said that they send no more for it. Each
says so on the connection on which it has sent its rows, so none can come after. Where servers change, there is a step 0
before: states go to their new homes, and are there before the first row is taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa

from weir.engine.documents import EdgeReport, TaskReport
from weir.engine.exchange import wire
from weir.engine.job import Job
from weir.engine.live.inbox import LIMIT, Inbox
from weir.engine.live.sender import Sender
from weir.engine.live.transport import (
    ALIVE,
    ANSWER,
    END,
    FAILED,
    HANDSHAKE_SECONDS,
    JOB,
    PEERS,
    QUIT,
    ROWS,
    SOURCES,
    Address,
    Connection,
    Frame,
    Hello,
    Life,
    Listener,
    connect,
)
from weir.engine.metrics.latency import Busy
from weir.engine.rescale import Mover, leaving
from weir.engine.server import Server
from weir.engine.whereabouts import places_of
from weir.errors import LiveFailed
from weir.faults import reach
from weir.graph.model import Node
from weir.operators.instance import Instance, OperatorReport

BEAT = 2.0  # seconds between two signs of life to the driver
BLOB_BYTES = 4 << 20

Answers = list[tuple[int, bytes]]  # kind, payload: reports and statistics
Send = Callable[[int, Frame], None]


class DirectOutbox(wire.Outbox):
    """Sends rows and states at once; keeps reports and statistics, which go to the driver."""

    def __init__(self, server: Server, send: Send) -> None:
        super().__init__(server.job.slots)
        self._server, self._topology, self._send = server, server.topology, send
        self._hosts = [p.host for p in places_of(server.plan.network)]

    def longest(self, server: int) -> int:
        return BLOB_BYTES

    def put(
        self, server: int, kind: int, edge: int, payload: pa.Buffer | bytes, born: int = 0, rows: int = 0
    ) -> None:
        if kind not in wire.LEFT:
            super().put(server, kind, edge, payload, born, rows)
            return
        wire.add_tally(self.posted, (kind, edge), server, rows)
        self._count(server, kind, edge, rows, len(payload))
        topology = self._topology
        if kind == wire.DATA:
            step = topology.by_name[topology.edges[edge].target].level
        elif kind == wire.STATE:
            step = 0  # before any other
        else:  # a server that goes leaves partial states to be kept on, not to be merged yet
            step = topology.nodes[edge].state_level if self._server.step else topology.nodes[edge].level
        self._send(server, Frame(ROWS, kind, step, edge, rows, born, pa.py_buffer(payload)))

    def _count(self, server: int, kind: int, edge: int, rows: int, size: int) -> None:
        """Count rows by distance as they leave: live servers stay where they are, so the plan knows where."""
        me, distances = self._server, self._server.distances
        peer = wire.sender_name(server, self._hosts[server] if self._hosts else distances.host)
        if kind == wire.DATA:
            distances.count(me.report.edges.setdefault(edge, EdgeReport()).arrived, peer, rows, size)
        elif kind == wire.PARTIAL and me.step and self._topology.nodes[edge].splits:
            distances.count(me.report.partials, peer, rows, size)

    def full(self) -> bool:
        return False

    def answers(self) -> Answers:
        """Return what is for the driver."""
        return [(kind, bytes(memoryview(payload))) for _, kind, _, _, payload in self._rows]


class LiveServer(Server):
    """Runs one batch on one server, all steps of it."""

    as_they_come = True

    def __init__(self, job: Job, server: int, inbox: Inbox, send: Send, end: Callable[[int], None]) -> None:
        super().__init__(job, 1, server)
        self.outbox: DirectOutbox = DirectOutbox(self, send)
        self.inbox, self._send, self._end = inbox, send, end
        self._unsaved: list[tuple[int, Node, Instance]] = []
        self.reports = [self.report]  # one per step; all but the counts of operators are in the first
        host, process = self.report.host, self.report.process
        for step in range(2, job.topology.steps + 1):
            self.reports.append(TaskReport(server=server, step=step, host=host, process=process))

    def run_batch(self) -> Answers:
        """Take rows until none can come any more; return reports and statistics for the driver."""
        steps = self.topology.steps
        moves = self._exchange_states() if self.plan.origin is not None else []
        with Busy(self.report):
            self.keeper.change_owners(self.report)
            self.keeper.merge_segments()
        self.routers.hand_out(self._deliver)
        for _ in self._read():  # what the plan says is to be read here
            pass
        for step in range(1, steps + 1):
            self.step = step
            while (frame := self.inbox.take(step)) is not None:
                self._take(frame)
            self.began = time.perf_counter()  # who waits for others has time: it is not congested
            with Busy(self.report):
                for node in self.topology.nodes:
                    if step in (node.level, node.state_level):
                        self._finish_operator(node)
            # at its end, when something could be sent twice
            reach("step-started", self.plan.batch * 100 + step)
            if step < steps:
                self._end(step + 1)
        with Busy(self.report):
            for step, node, instance in self._unsaved:
                self.step = step
                super()._save(node, instance)
            self._write()
        self.step = 1
        for (kind, edge), rows in self.inbox.longest.items():
            name = self.topology.edges[edge].target if kind == wire.DATA else self.topology.nodes[edge].name
            self._operator(self.topology.by_name[name]).queued += rows
        self.report.spilled_bytes = self.inbox.spilled
        self.last, self.carried = True, [*moves, *self.reports[1:]]
        self._send_reports()
        return self.outbox.answers()

    def _exchange_states(self) -> list[TaskReport]:
        """Send states to their new homes, as servers change, and take in what comes here; return reports of that.

        Each server does it for what it was before, and one of them for each server that goes.
        """
        reports = []
        for old in leaving(self.job, self.server):
            mover = Mover(self.job, old)
            mover.outbox = DirectOutbox(mover, self._send)
            with Busy(self.report):
                for _ in mover.leave():
                    pass
            reports.append(self.keeper.hear(mover.report))
        self._end(0)
        while (frame := self.inbox.take(0)) is not None:
            self._take(frame)
        return reports

    def _take(self, frame: Frame) -> None:
        assert frame.payload is not None
        now, self.began = self.step, frame.arrived
        with Busy(self.report):
            if frame.kind == wire.PARTIAL:
                self.step = frame.step  # for the copy that merges, which may have to wait for its own step
            self._receive_blob(frame.kind, frame.edge, frame.born, frame.payload)
            self.step = now
        for _ in self._read():  # files whose names have come
            pass

    def _save(self, node: Node, instance: Instance) -> None:
        """Write state when the batch is through, if nothing reads it before: no server waits for another's disk."""
        if node.level == node.state_level:
            self._unsaved.append((self.step, node, instance))
        else:
            super()._save(node, instance)

    def _step_of(self, node: Node) -> int:
        return min(max(self.step, node.level), node.state_level)

    def _operator(self, node: Node) -> OperatorReport:
        return self.reports[max(1, self._step_of(node)) - 1].operators.setdefault(node.name, OperatorReport())


class _LiveSource(Server):
    """A source task whose rows go straight to the servers."""

    as_they_come = True


def feed(job: Job, task: int, batches: Iterable[pa.RecordBatch], send: Send) -> Iterator[pa.RecordBatch]:
    """Route the rows of a source task, hand them to ``send``, and yield the task's report."""
    source = _LiveSource(job, 0, -1, task)
    source.outbox = DirectOutbox(source, send)
    yield from source.run(batches)


def push(
    job: Job, task: int, batches: Iterable[pa.RecordBatch], life: Life, servers: list[Address]
) -> Iterator[pa.RecordBatch]:
    """Run a source task: send its rows to live servers, yield its report.

    Only the first attempt of a task may do this: servers keep what they have got.
    """
    connections: dict[int, Connection] = {}
    sender = Sender(connections)
    try:
        for number, address in enumerate(servers):
            connections[number] = connect(address, life, Hello("source", task, life.name, job.plan.batch))
        yield from feed(job, task, batches, sender.send)
        for number in connections:
            sender.send(number, Frame(END))
        sender.drain()
    except OSError as error:
        raise LiveFailed(f"source task {task} lost a server: {error}") from None
    finally:
        sender.close()
        for connection in connections.values():
            connection.close()


class _PeerLost(LiveFailed):
    """A server or a source task has ended its connection: somebody else may know why."""


class Resident:
    """A server from its first batch to its last: its connections, and the loop that runs one batch after the other.

    ``decode`` turns what the driver sends into a job. Rows beyond ``limit`` bytes wait in files of ``folder``.
    """

    def __init__(
        self,
        number: int,
        driver: Address,
        life: Life,
        decode: Callable[[bytes], Job],
        folder: str | None = None,
        limit: int = LIMIT,
        beat: float = BEAT,
    ) -> None:
        self.number, self.life, self._decode = number, life, decode
        self.inbox = Inbox(life.servers, folder, limit)
        self._peers: dict[int, Connection] = {}
        self._sender = Sender(self._peers, self._lose)
        self._stopped, self._dismissed = threading.Event(), threading.Event()

        def hello(host: str) -> Hello:
            # other servers reach this one at the address from which it reaches the driver, and at no other
            self._listener = Listener(host, life, self._welcome)
            return Hello("server", number, life.name, listens=self._listener.address)

        self._control = connect(driver, life, hello)
        self._beat = beat
        for target in (self._obey, self._live):
            threading.Thread(target=target, daemon=True, name=f"weir-{target.__name__}").start()

    def run(self) -> None:
        """Run batches until the driver says that there are no more, or something fails; then the driver is told."""
        try:
            while (frame := self.inbox.next_job()) is not None:
                server = LiveServer(
                    self._decode(frame.data), self.number, self.inbox, self._send, self._end_step
                )
                answers = server.run_batch()
                self.inbox.reset()
                self._control.send(ANSWER, msgspec.msgpack.encode(answers), born=frame.born)
        except Exception as error:
            if isinstance(error, _PeerLost):
                self._dismissed.wait(0.5)  # the peer that is lost knows better why, and so comes first
            text = f"server {self.number}: {type(error).__name__}: {error}"
            try:
                self._control.send(FAILED, text.encode())
            except OSError:
                return
        finally:
            self.close()

    def close(self) -> None:
        """End all connections."""
        self._stopped.set()
        self._listener.close()
        self._sender.close()
        for connection in [*self._peers.values(), self._control]:
            connection.close()

    def _send(self, server: int, frame: Frame) -> None:
        if server == self.number:
            self.inbox.put(frame._replace(arrived=time.perf_counter()))
            return
        try:
            self._sender.send(server, frame)
        except OSError as error:
            raise _PeerLost(f"another server is gone: {error}") from None

    def _lose(self, server: int, error: OSError) -> None:
        self.inbox.fail(_PeerLost(f"server {server} is gone: {error}"))

    def _end_step(self, step: int) -> None:
        for number in self._peers:
            self._send(number, Frame(END, step=step))

    # ------------------------------------------------------------------ threads

    def _obey(self) -> None:
        """Do what the driver says."""
        try:
            while (frame := self._control.receive()) is not None:
                if frame.what == JOB:
                    self.inbox.announce(frame)
                elif frame.what == SOURCES:
                    self.inbox.all_sources(frame.rows)
                elif frame.what == ROWS:  # of a small batch, whose only source is the driver
                    self.inbox.put(frame)
                elif frame.what == END:
                    self.inbox.begin_source(0, self.inbox.batch, 0.0)
                    self.inbox.end_source(0)
                elif frame.what == PEERS:
                    self._meet(msgspec.msgpack.decode(frame.data, type=list[Address]))
                elif frame.what == QUIT:
                    self.inbox.announce(None)
            error = LiveFailed("the driver has ended the connection")
        except (OSError, LiveFailed) as failure:
            error = LiveFailed(f"the driver is gone: {failure}")
        self._dismissed.set()
        self.inbox.fail(error)

    def _meet(self, addresses: list[Address]) -> None:
        for number, address in enumerate(addresses):
            if number != self.number:
                hello = Hello("peer", self.number, self.life.name)
                try:
                    self._peers[number] = connect(address, self.life, hello)
                except LiveFailed as error:
                    self.inbox.fail(_PeerLost(f"server {number} is gone: {error}"))
                    return

    def _live(self) -> None:
        """Send signs of life: also while an operator is at work."""
        while not self._stopped.wait(self._beat):
            try:
                self._control.send(ALIVE)
            except OSError:
                return

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        """Read what another server or a source task sends."""
        source = hello.role == "source"
        who = f"source task {hello.number}" if source else f"server {hello.number}"
        try:
            if source:
                self.inbox.begin_source(hello.number, hello.batch, HANDSHAKE_SECONDS)
            while (frame := connection.receive(self.inbox.room)) is not None:
                if frame.what == ROWS:
                    self.inbox.put(frame)
                    if source:
                        self.inbox.wait_for_room()
                elif source:
                    self.inbox.end_source(hello.number)
                    return
                else:
                    self.inbox.end(frame.step)
            raise _PeerLost(f"{who} went away before its end")
        except (OSError, LiveFailed) as error:
            if not self._stopped.is_set() and not (source and hello.batch != self.inbox.batch):
                if isinstance(error, ConnectionError):
                    error = _PeerLost(f"{who}: {error}")
                elif isinstance(error, OSError):  # a full disk, for instance
                    error = LiveFailed(f"what {who} sent can't be kept: {error}")
                self.inbox.fail(error)
