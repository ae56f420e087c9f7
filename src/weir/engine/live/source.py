"""A source task whose rows go straight to live servers."""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Mapping

import pyarrow as pa

from weir.engine.exchange.wire import Answers
from weir.engine.live.control import Control, followed
from weir.engine.live.sender import DirectOutbox, Send, Sender
from weir.engine.live.transport import END, Address, Connection, Frame, Generation, Hello, connect
from weir.engine.metrics.latency import Busy
from weir.engine.task.batch_context import BatchContext, host_name
from weir.engine.task.reports import answers
from weir.engine.task.routers import Routers
from weir.engine.task.runtime import OperatorRuntime, new_report
from weir.errors import LiveFailed


def feed(
    job: BatchContext,
    task: int,
    batches: Iterable[pa.RecordBatch],
    send: Send,
    listener: LoadListener | None = None,
) -> Answers:
    """Route the rows of a source task, by pieces where routers follow load; return the task's report."""
    report, routers = new_report(None, [0], host_name()), Routers(job, None, task)
    route = None if listener is None else Control(job, routers, listener.listen).route
    runtime = OperatorRuntime(job, report, DirectOutbox(job, report, send), routers, None, route)
    for batch in batches:
        if batch.num_rows:
            with Busy(report):
                runtime.receive_source(batch)
    return answers(report, runtime.close(last=False))


class LoadListener:
    """Takes in news of the servers' load, which come on the connections on which they get rows."""

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._selector = selectors.DefaultSelector()
        for number, connection in connections.items():
            self._selector.register(connection, selectors.EVENT_READ, number)

    def listen(self, seconds: float) -> list[Frame]:
        """Return news; if there are none, wait for some."""
        frames: list[Frame] = []
        while ready := self._selector.select(0.0 if frames else seconds):
            for key, _ in ready:
                frame = key.fileobj.receive()  # type: ignore[union-attr]
                if frame is None:
                    raise LiveFailed(f"server {key.data} ended the connection")
                frames.append(frame)
        return frames

    def close(self) -> None:
        self._selector.close()


def push(
    job: BatchContext,
    task: int,
    batches: Iterable[pa.RecordBatch],
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
