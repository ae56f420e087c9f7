"""Where a live server, or a source task, puts what leaves it: rows go out at once."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from weir.engine.documents import EdgeReport, TaskReport
from weir.engine.exchange import wire
from weir.engine.live.transport import ROWS, Frame
from weir.engine.metrics.traffic import Distances
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.server_locations import places_of

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
