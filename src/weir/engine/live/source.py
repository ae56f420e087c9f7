"""A source task whose rows go straight to live servers, or wait in it until their batch is planned."""

from __future__ import annotations

import selectors
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from weir.engine.exchange.wire import Answers
from weir.engine.live.control import Control, followed
from weir.engine.live.inbox import LIMIT
from weir.engine.live.sender import DirectOutbox, Send, Sender
from weir.engine.live.transport import COUNTED, END, Address, Connection, Frame, Generation, Hello, connect
from weir.engine.metrics.latency import Busy, now
from weir.engine.task.batch_context import BatchContext, host_name
from weir.engine.task.look_ahead import Ahead, summary
from weir.engine.task.reports import answers
from weir.engine.task.routers import Routers
from weir.engine.task.runtime import OperatorRuntime, new_report
from weir.errors import LiveFailed
from weir.faults import reach

Timed = tuple[pa.RecordBatch, int]  # rows, and when they left their source, in µs


def timed(batches: Iterable[pa.RecordBatch]) -> Iterator[Timed]:
    """Yield batches that have some rows, and when they came."""
    for batch in batches:
        if batch.num_rows:
            yield batch, now()


class HeldRows:
    """Batches of one schema; those beyond ``limit`` bytes are written to a file of ``folder``, which has no name.

    >>> held = HeldRows(limit=0)
    >>> held.put(pa.record_batch({"n": [1, 2]}), 7)
    >>> [(batch.to_pydict(), came) for batch, came in held.take()], held.spilled > 0
    ([({'n': [1, 2]}, 7)], True)
    """

    def __init__(self, folder: str | None = None, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._rows: deque[Timed] = deque()
        self._times: deque[int] = deque()  # of the batches in the file
        self._file: Any = None
        self._writer: Any = None
        self.bytes = self.spilled = 0

    def put(self, batch: pa.RecordBatch, source_time: int) -> None:
        """Hold a batch. Raises an OSError if the disk is full."""
        if self._writer is None and self.bytes + batch.nbytes <= self._limit:
            self._rows.append((batch, source_time))
            self.bytes += batch.nbytes
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self._times.append(source_time)
        self.spilled += batch.nbytes

    def take(self) -> Iterator[Timed]:
        """Yield all batches, once; each is forgotten then."""
        while self._rows:
            yield self._rows.popleft()
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            with self._file, pa.ipc.open_stream(self._file) as batches:
                for batch in batches:
                    yield batch, self._times.popleft()

    def close(self) -> None:
        """Forget what is left, and the file."""
        self._rows.clear()
        if self._file is not None:
            self._file.close()


def feed(
    job: BatchContext,
    task: int,
    batches: Iterable[Timed],
    send: Send,
    listener: LoadListener | None = None,
) -> Answers:
    """Route the rows of a source task, by pieces where routers follow load; return the task's report."""
    report, routers = new_report(None, [0], host_name()), Routers(job, None, task)
    route = None if listener is None else Control(job, routers, listener.listen).route
    runtime = OperatorRuntime(job, report, DirectOutbox(job, report, send), routers, None, route)
    for batch, source_time in batches:
        with Busy(report):
            runtime.receive_source(batch, source_time)
    return answers(report, runtime.close(last=False))


class LoadListener:
    """Takes in news of the servers' load, which come on the connections on which they get rows."""

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._selector, self._connections = selectors.DefaultSelector(), connections
        for number, connection in connections.items():
            self._selector.register(connection, selectors.EVENT_READ, number)

    def listen(self, seconds: float) -> list[Frame]:
        """Return news; if there are none, wait for some."""
        frames: list[Frame] = []
        while ready := self._ready(0.0 if frames else seconds):
            for number, connection in ready:
                frame = connection.receive()
                if frame is None:
                    raise LiveFailed(f"server {number} ended the connection")
                frames.append(frame)
        return frames

    def _ready(self, seconds: float) -> list[tuple[int, Connection]]:
        there = [(number, one) for number, one in self._connections.items() if one.pending]
        return there or [(key.data, self._connections[key.data]) for key, _ in self._selector.select(seconds)]

    def close(self) -> None:
        self._selector.close()


def push(
    job: BatchContext,
    task: int,
    batches: Iterable[Timed],
    generation: Generation,
    servers: list[Address],
) -> Answers:
    """Run a source task: send its rows to live servers, return its report.

    Only the first attempt of a task may do this: servers keep what they have got.
    """
    connections: dict[int, Connection] = {}
    sender = Sender(connections)
    try:
        for number, address in enumerate(servers):
            connections[number] = connect(
                address, generation, Hello("source", task, generation.name, job.plan.batch)
            )
        listener = LoadListener(connections) if followed(job.topology) else None
        said = feed(job, task, batches, sender.send, listener)
        for number in connections:
            sender.send(number, Frame(END))
        sender.drain()
        if listener is not None:  # with words unread, closing would take back rows that are still under way
            listener.close()
            for connection in connections.values():
                connection.end()
        return said
    except OSError as error:
        raise LiveFailed(f"source task {task} lost a server: {error}") from None
    finally:
        sender.close()
        for connection in connections.values():
            connection.close()


def push_when_planned(
    task: int,
    batch: int,
    batches: Iterable[pa.RecordBatch],
    counting: tuple[Ahead, int],
    generation: Generation,
    driver: Address,
    decode: Callable[[bytes], BatchContext],
    folder: str | None = None,
    limit: int = LIMIT,
) -> Answers:
    """Run a source task that counts its rows before their batch is planned, and holds them until it is.

    ``counting`` is how, and how many tasks there are. The driver hears what was counted, and answers with the batch's
    job, as servers get it, and where they are.
    """
    ahead, tasks = counting
    connection = connect(driver, generation, Hello("source", task, generation.name, batch))
    held, counter = HeldRows(folder, limit), ahead.counter(tasks)
    try:
        try:
            for rows, came in timed(batches):
                ahead.count(counter, rows)
                held.put(rows, came)
        except OSError as error:  # a full disk, for instance
            raise LiveFailed(f"source task {task} can't hold its rows: {error}") from None
        reach("rows-held", batch * 100)
        try:
            connection.send(COUNTED, summary(counter))
            frame = connection.receive()
        except OSError as error:
            raise LiveFailed(f"source task {task} lost the driver: {error}") from None
        if frame is None:
            raise LiveFailed(f"the driver gave up batch {batch} before source task {task} heard of its plan")
        job, servers = msgspec.msgpack.decode(frame.data, type=tuple[bytes, list[Address]])
        return push(decode(job), task, held.take(), generation, servers)
    finally:
        held.close()
        connection.close()
