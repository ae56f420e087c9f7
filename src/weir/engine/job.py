"""What every task of a batch needs to know."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

import pyarrow as pa

from weir.engine.documents import BatchPlan, Claim, Manifest
from weir.engine.exchange.parcels import Depot
from weir.engine.learning import Learning
from weir.graph.model import Topology
from weir.state.storage import Storage

DEAD_LETTER_SCHEMA = pa.schema(
    [("operator", pa.string()), ("key", pa.string()), ("row", pa.string()), ("error", pa.string())]
)
SOURCE_NUMBER = "__source"  # the column that tells the rows of several sources apart


@dataclass(frozen=True)
class EntryLayout:
    """How the rows of the first exchange look: which columns belong to which source."""

    tagged: bool  # has the columns kind, edge (a set of entry edges, as bits) and payload
    native: dict[str, tuple[int, list[str]]] = field(default_factory=dict)  # source → number, column names


@dataclass(frozen=True)
class Job:
    """A batch as its tasks see it."""

    topology: Topology
    plan: BatchPlan
    manifest: Manifest
    storage: Storage
    slots: list[int]
    layout: EntryLayout
    learning: Learning | None = None
    before: Manifest | None = None  # the state by the servers' old numbers, in a batch that changes these
    began: int = 0  # µs; the marker of rows that the JVM takes from a source
    query: str = ""  # a name of this run of the query alone
    hosts: list[str] | None = None  # where servers are expected; None: nobody leaves rows in files
    invariants: bool = True  # whether tasks count what their files change, see weir.engine.invariants
    claim: Claim | None = None  # what every process that runs tasks must find in the checkpoint

    def depot(self, folder: str | None) -> Depot | None:
        """Return where a task leaves rows for other servers on its host, if it may."""
        if folder is None or self.hosts is None:
            return None
        here = host_name()
        return Depot(folder, self.query, self.plan.batch, [host == here for host in self.hosts])


def column_name(number: int, column: str) -> str:
    """Return the name of a source's column where the rows of all sources are one DataFrame."""
    return f"{number}:{column}"


def host_name() -> str:
    """Return the host as Spark knows it: a name given to it, else the machine's own."""
    return os.environ.get("SPARK_LOCAL_HOSTNAME") or socket.gethostname()
