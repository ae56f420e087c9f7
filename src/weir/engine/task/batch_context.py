"""What every task of a batch needs to know."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from weir.engine.documents import BatchPlan, Claim, Manifest
from weir.engine.exchange.host_handoff import HostHandoff
from weir.engine.task.key_counting import Learning
from weir.graph.model import Topology
from weir.state.segment import SegmentRef
from weir.state.storage import Storage

SOURCE_NUMBER = "__source"  # the column that tells the rows of several sources apart


class Segments:
    """The segments of all servers, as tasks get them: packed server by server, so that each unpacks what it needs.

    With a thousand servers and eight operators there are a hundred thousand segments. To unpickle their names would
    take every task longer than its work.

    >>> ref = SegmentRef("state/a/000000000001/s0.arrow", 3, 100, 7)
    >>> segments = Segments({"a": [[ref], []]})
    >>> segments.of("a", 0) == [ref], segments.of("a", 1), segments.of("b", 0), segments.of("a", 2)
    (True, [], [], [])
    """

    def __init__(self, manifest: Manifest) -> None:
        self.servers = max(map(len, manifest.values()), default=0)
        by_server: list[dict[str, list[SegmentRef]]] = [{} for _ in range(self.servers)]
        for name, servers in manifest.items():
            for server, refs in enumerate(servers):
                if refs:
                    by_server[server][name] = refs
        codec = pa.Codec("zstd", 1)
        plain = [msgspec.msgpack.encode(names) for names in by_server]
        self._packed = [(len(p), codec.compress(p, asbytes=True)) for p in plain]
        self._unpacked: dict[int, dict[str, list[SegmentRef]]] = {}

    def of(self, name: str, server: int) -> list[SegmentRef]:
        """Return the segments of an operator on a server, oldest first."""
        if server >= self.servers:
            return []
        if server not in self._unpacked:
            size, packed = self._packed[server]
            data = pa.Codec("zstd").decompress(packed, decompressed_size=size, asbytes=True)
            self._unpacked[server] = msgspec.msgpack.decode(data, type=dict[str, list[SegmentRef]])
        return self._unpacked[server].get(name, [])

    def of_all(self, name: str) -> Sequence[list[SegmentRef]]:
        """Return the segments of an operator on every server, unpacked when one is asked for."""
        return _OfServers(self, name)


class _OfServers(Sequence[list[SegmentRef]]):
    def __init__(self, segments: Segments, name: str) -> None:
        self._segments, self._name = segments, name

    def __len__(self) -> int:
        return self._segments.servers

    def __getitem__(self, server: Any) -> Any:
        if not 0 <= server < len(self):
            raise IndexError(server)
        return self._segments.of(self._name, server)


@dataclass(frozen=True)
class Pace:
    """What control within a batch begins with: how it was in the last one."""

    sources: int = 1  # source tasks
    # operator → seconds per row on each instance, not a number where none came
    seconds: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchContext:
    """A batch as its tasks see it."""

    topology: Topology
    plan: BatchPlan
    segments: Segments
    storage: Storage
    slots: list[int]
    learning: Learning | None = None
    before: Segments | None = None  # the state by the servers' old numbers, in a batch that changes these
    query: str = ""  # a name of this run of the query alone
    hosts: list[str] | None = None  # where servers are expected; None: nobody leaves rows in files
    invariants: bool = True  # whether tasks count what their files change, see weir.engine.task.invariants
    pace: Pace = field(default_factory=Pace)
    claim: Claim | None = None  # what every process that runs tasks must find in the checkpoint

    def handoff(self, folder: str | None) -> HostHandoff | None:
        """Return where a task leaves rows for other servers on its host, if it may."""
        if folder is None or self.hosts is None:
            return None
        here = host_name()
        return HostHandoff(folder, self.query, self.plan.batch, [host == here for host in self.hosts])


def column_name(number: int, column: str) -> str:
    """Return the name of a source's column where the rows of all sources are one DataFrame."""
    return f"{number}:{column}"


def host_name() -> str:
    """Return the host as Spark knows it: a name given to it, else the machine's own."""
    return os.environ.get("SPARK_LOCAL_HOSTNAME") or socket.gethostname()
