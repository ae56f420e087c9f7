"""Where a live server, or a source task, puts what leaves it: rows go out at once."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from weir.engine.documents import EdgeReport
from weir.engine.exchange import wire
from weir.engine.live.transport import ROWS, Frame
from weir.engine.task.server import Server
from weir.engine.task.server_locations import places_of

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
        self,
        server: int,
        kind: int,
        edge: int,
        payload: pa.Buffer | bytes,
        source_time: int = 0,
        rows: int = 0,
    ) -> None:
        if kind not in wire.HANDOFF_KINDS:
            super().put(server, kind, edge, payload, source_time, rows)
            return
        wire.add_tally(self.posted, (kind, edge), server, rows)
        self._count(server, kind, edge, rows, len(payload))
        topology = self._topology
        if kind == wire.DATA:
            step = topology.by_name[topology.edges[edge].target].level
        else:
            step = topology.nodes[edge].state_level
        self._send(server, Frame(ROWS, kind, step, edge, rows, source_time, pa.py_buffer(payload)))

    def _count(self, server: int, kind: int, edge: int, rows: int, size: int) -> None:
        """Count rows by distance as they leave: live servers stay where they are, so the plan knows where."""
        me, distances = self._server, self._server.distances
        peer = wire.sender_name(server, self._hosts[server] if self._hosts else distances.host)
        if kind == wire.DATA:
            distances.count(me.report.edges.setdefault(edge, EdgeReport()).arrived, peer, rows, size)
        elif kind == wire.PARTIAL and self._topology.nodes[edge].splits:
            distances.count(me.report.partials, peer, rows, size)

    def full(self) -> bool:
        return False

    def answers(self) -> Answers:
        """Return what is for the driver."""
        return [(kind, bytes(memoryview(payload))) for _, kind, _, _, payload in self._rows]
