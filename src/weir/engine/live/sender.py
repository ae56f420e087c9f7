"""Sends frames without holding up who sends them.

A frame goes out at once as far as its connection takes it; no thread is woken for what is small. What a slow link does
not take yet waits, and a thread of that connection sends it on: a server works while its rows leave, and a slow peer
does not hold up what goes to others. All that waits has one bound; who would exceed it waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

import pyarrow as pa

from weir.engine.documents import EdgeReport, TaskReport
from weir.engine.exchange import wire
from weir.engine.live.transport import ROWS, Connection, Frame, Pieces
from weir.engine.metrics.traffic import Distances, places_of
from weir.engine.task.batch_context import BatchContext

BOUND = 64 << 20  # bytes


class Sender:
    """Sends to several connections, to each in order; one thread may use it.

    When a connection fails, who sends or drains next gets the error; ``lost`` is called with the connection's number
    and the error at once, for somebody who waits for something else.
    """

    def __init__(
        self,
        connections: Mapping[int, Connection],
        lost: Callable[[int, OSError], None] | None = None,
        bound: int | None = None,
    ) -> None:
        self._connections, self._lost, self._bound = connections, lost, BOUND if bound is None else bound
        self._changed = threading.Condition()
        # by connection, with sizes; what is being sent stays in front until all of it has gone
        self._waiting: dict[int, deque[tuple[int, Pieces]]] = {}
        self._bytes = 0
        self._error: OSError | None = None
        self._closed = False

    def send(self, number: int, frame: Frame) -> None:
        """Send a frame, or keep it to be sent; wait while too much is kept."""
        connection, queue = self._connections[number], self._waiting.get(number)
        pieces = connection.pieces(frame)
        if not queue:
            left = connection.offer(pieces)
            if left is None:
                return
            pieces = left
        size = frame.size
        with self._changed:
            self._wait_for(lambda: not self._bytes or self._bytes + size <= self._bound)
            if queue is None:
                queue = self._waiting[number] = deque()
                target = (number, connection, queue)
                threading.Thread(target=self._go_on, args=target, daemon=True, name="weir-sender").start()
            queue.append((size, pieces))
            self._bytes += size
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all has been sent."""
        with self._changed:
            self._wait_for(lambda: not any(self._waiting.values()))

    def close(self) -> None:
        """End the threads; connections that are still sending must be closed by who owns them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: condition() or self._error is not None)
        if self._error is not None:
            raise self._error

    def _go_on(self, number: int, connection: Connection, queue: deque[tuple[int, Pieces]]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._closed or number not in self._connections)
                if self._closed or not queue:
                    return
            size, pieces = queue[0]
            try:
                connection.push(pieces)
            except OSError as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                if self._lost is not None and not self._closed:
                    self._lost(number, error)
                return
            with self._changed:
                queue.popleft()
                self._bytes -= size
                self._changed.notify_all()


BLOB_BYTES = 4 << 20

Send = Callable[[int, Frame], None]


class DirectOutbox:
    """Sends rows and states at once; counts them by distance, since the plan knows where live servers are."""

    def __init__(self, job: BatchContext, report: TaskReport, send: Send) -> None:
        self.posted: wire.Tallies = {}
        self._topology, self._report, self._send = job.topology, report, send
        places = places_of(job.plan.network)
        hosts = [place.host for place in places] or [report.host] * job.plan.servers
        self._peers = [wire.sender_name(server, host) for server, host in enumerate(hosts)]
        self._distances = Distances(places, report.server, report.host)

    def longest(self, server: int) -> int:
        return BLOB_BYTES

    def put(self, server: int, kind: int, edge: int, payload: pa.Buffer, source_time: int, rows: int) -> None:
        wire.add_tally(self.posted, (kind, edge), server, rows)
        topology, peer = self._topology, self._peers[server]
        if kind == wire.DATA:
            step = topology.by_name[topology.edges[edge].target].level
            arrived = self._report.edges.setdefault(edge, EdgeReport()).arrived
            self._distances.count(arrived, peer, rows, payload.size)
        else:
            step = topology.nodes[edge].state_level
            if topology.nodes[edge].splits:
                self._distances.count(self._report.partials, peer, rows, payload.size)
        self._send(server, Frame(ROWS, kind, step, edge, rows, source_time, payload))
