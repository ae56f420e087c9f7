"""A source task whose rows go straight to live servers."""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from weir.engine.live.control import Control
from weir.engine.live.loads import followed, is_followed
from weir.engine.live.outbox import DirectOutbox, Send
from weir.engine.live.sender import Sender
from weir.engine.live.transport import END, Address, Connection, Frame, Generation, Hello, connect
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.server import Server
from weir.errors import LiveFailed
from weir.graph.model import Edge
from weir.routing.base import Instances
from weir.rows import Rows


class LiveSource(Server):
    """Routes the rows of a source; by pieces where routers follow load and can hear of it."""

    arrival_order = True
    control: Control | None = None

    def _route(self, edge: Edge, rows: Rows) -> None:
        if self.control is None or not is_followed(edge, self.topology):
            super()._route(edge, rows)
            return
        for piece in self.control.pieces(edge, self.topology.by_name[edge.target], rows):
            super()._route(edge, piece)

    def _dispatch(self, edge: Edge, rows: Rows, instances: Instances) -> None:
        if self.control is not None:
            self.control.note(edge, instances)
        super()._dispatch(edge, rows, instances)


def feed(
    job: BatchContext,
    task: int,
    batches: Iterable[pa.RecordBatch],
    send: Send,
    listener: LoadListener | None = None,
) -> Iterator[pa.RecordBatch]:
    """Route the rows of a source task, hand them to ``send``, and yield the task's report."""
    source = LiveSource(job, 0, -1, task)
    source.outbox = DirectOutbox(source, send)
    if listener is not None:
        source.control = Control(job, source.routers, listener.listen)
    yield from source.run(batches)


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
) -> Iterator[pa.RecordBatch]:
    """Run a source task: send its rows to live servers, yield its report.

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
        yield from feed(job, task, batches, sender.send, listener)
        for number in connections:
            sender.send(number, Frame(END))
        sender.drain()
        if listener is not None:  # with words unread, closing would take back rows that are still under way
            listener.close()
            for connection in connections.values():
                connection.end()
    except OSError as error:
        raise LiveFailed(f"source task {task} lost a server: {error}") from None
    finally:
        sender.close()
        for connection in connections.values():
            connection.close()
