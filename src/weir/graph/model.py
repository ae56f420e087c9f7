"""The application as plain data: operators, edges, placement.

:func:`weir.graph.build.build` makes a :class:`Topology`, in which every question the engine asks has an answer:
which columns travel on an edge, in which step an operator can receive rows, where it lives.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.hashing import keyed_hash
from weir.operators.base import Operator
from weir.operators.windows import EventTime, Window
from weir.routing.base import Grouping, OperatorTraits
from weir.rows import Rows

HELD = "~held"  # ended the name under which partial states waited, up to version 0.2
# a sink is known by its operator's name; one of its late rows, or dead letters, ends in one of these
LATE = "~late"
DEAD = "~dead"
DEAD_LETTERS = "__dead_letters"  # names the sink for the dead letters of all operators
DEAD_LETTER_SCHEMA = pa.schema([(name, pa.string()) for name in ("operator", "key", "row", "error")])


class GroupingLike(Protocol):
    """A grouping, or something that picks one for each operator, as :class:`~weir.Locality` does."""

    def for_operator(self, operator: OperatorTraits) -> Grouping:
        """Return the grouping in front of an operator."""


class OperatorSignature(msgspec.Struct, frozen=True, kw_only=True):
    """What the saved state of an operator depends on, as commits keep it."""

    operator: Any  # as the operator tells itself from others
    key: list[list[str]]  # name and type
    state: list[list[str]]
    schema: str  # of an entry, as Arrow serialises it, in base64
    window: Any = None
    placement: list[int]
    held: Any = None  # what partial states waited under, up to version 0.2
    grouping: Any = None

    @property
    def key_names(self) -> list[str]:
        return [name for name, _ in self.key]

    @property
    def entries(self) -> pa.Schema:
        """What is stored per key."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


class Signature(msgspec.Struct, frozen=True):
    """What saved state depends on."""

    servers: int = 0
    operators: dict[str, OperatorSignature] = {}


@dataclass(frozen=True)
class Declared:
    """An operator as the user wrote it down."""

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    key: tuple[str, ...] = ()
    grouping: GroupingLike | None = None
    parallelism: int | None = None
    placement: tuple[int, ...] | None = None
    null_keys: str = "drop"
    on_error: str = "fail"
    timeout: int = 600_000_000  # for one call of a function, in µs
    window: Window | None = None
    ttl: int | None = None
    sides: tuple[int, ...] = ()  # of each input, for operators that tell them apart
    event_time: EventTime | None = None  # of the rows that it emits

    @property
    def where(self) -> str:
        """What errors call it."""
        return f"operator {self.name!r}"

    def side_of(self, number: int) -> int:
        """Return the side that an input belongs to."""
        return self.sides[number] if self.sides else 0

    def time_column(self, number: int) -> str | None:
        """Return the column of an input's rows by which it takes part in event time, if it says so."""
        if self.window is not None:
            return self.window.column
        return None if self.operator.lateness is None else self.operator.time_columns[self.side_of(number)]

    @property
    def drops_late(self) -> bool:
        """Whether rows may come too late for it."""
        return self.window is not None or self.operator.lateness is not None

    @property
    def timed(self) -> bool:
        """Whether it has a watermark."""
        return self.drops_late or "event" in self.operator.timers

    @property
    def lateness(self) -> int:
        """How late rows may be, in µs of event time, for this operator."""
        return (self.operator.lateness or 0) if self.window is None else self.window.lateness

    @property
    def passes(self) -> bool:
        """Whether operators behind it see the rows that came in."""
        return self.operator.passes_rows and self.window is None

    @property
    def everywhere(self) -> bool:
        """Whether it has an instance on every server, also on those that come."""
        return self.parallelism is None and self.placement is None


@dataclass(frozen=True)
class TimePoint:
    """A place where event time is read: on the rows that leave a source or an operator."""

    part: str
    time: EventTime

    @property
    def name(self) -> str:
        return f"{self.part}.{self.time.column}"


@dataclass(frozen=True)
class Edge:
    """Rows from a source or operator to an operator."""

    index: int
    source: str
    target: str
    grouping: Grouping
    schema: pa.Schema
    crosses: bool  # may a row change its server here?
    side: int = 0  # of the operator it leads to


@dataclass(frozen=True)
class Node:
    """A placed operator."""

    declared: Declared
    index: int
    input: pa.Schema  # what it receives (after pruning)
    rows_out: pa.Schema  # what operators behind it receive
    sink_out: pa.Schema  # what a sink receives
    state: pa.Schema  # key columns, window, state columns
    placement: tuple[int, ...]  # instance → server
    level: int  # the last step in which rows can reach it
    splits: bool  # rows of one key reach several instances; partial states are merged one step later
    sides: tuple[pa.Schema, ...] = ()  # what it receives of each side, for operators that tell them apart
    times: tuple[TimePoint, ...] = ()  # where its watermark comes from; its window's lateness is in theirs
    secret: str = field(default="", repr=False)  # of the hash that tells its keys apart, in a batch

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def operator(self) -> Operator:
        return self.declared.operator

    @property
    def key(self) -> tuple[str, ...]:
        return self.declared.key

    @property
    def window(self) -> Window | None:
        return self.declared.window

    @property
    def ttl(self) -> int | None:
        return self.declared.ttl

    @property
    def sets_timers(self) -> bool:
        """Whether its state has deadlines by the clock, for which a stream without rows wakes up."""
        early = self.window is not None and self.window.early is not None
        return early or "processing" in self.operator.timers

    @property
    def wakes(self) -> bool:
        """Whether something in its state may come due on a stream without rows."""
        return bool(self.times) or self.sets_timers or self.ttl is not None

    def horizon(self, clock: int) -> int | None:
        """Return the time beyond which event times are not believed; None if all are."""
        bounds = [point.time.ahead for point in self.times]
        return None if not bounds or None in bounds else clock + max(b for b in bounds if b is not None)

    @property
    def state_level(self) -> int:
        """The step in which its state is final for the batch."""
        return self.level + 1 if self.splits else self.level

    def second_hash(self, rows: Rows | pa.Table) -> NDArray[np.uint64]:
        """Return what tells the keys of some rows apart that have the same first hash."""
        return keyed_hash([rows.column(k) for k in self.key], self.secret)

    @property
    def waits(self) -> bool:
        """Whether it must see all rows of a batch together."""
        return self.operator.waits

    @property
    def passes(self) -> bool:
        """Whether operators behind it see the rows that came in."""
        return self.declared.passes

    @cached_property
    def instance_on(self) -> dict[int, int]:
        """server → instance."""
        return {server: i for i, server in enumerate(self.placement)}


@dataclass(frozen=True)
class Topology:
    """A validated application on ``servers`` servers."""

    servers: int
    sources: dict[str, pa.Schema]  # after pruning
    nodes: tuple[Node, ...]  # in topological order
    edges: tuple[Edge, ...]
    sinks: frozenset[str]
    by_name: dict[str, Node] = field(repr=False)

    @cached_property
    def points(self) -> dict[str, list[TimePoint]]:
        """Where event time is read, by source or operator."""
        out: dict[str, list[TimePoint]] = {}
        for point in {p.name: p for node in self.nodes for p in node.times}.values():
            out.setdefault(point.part, []).append(point)
        return out

    def sink_schema(self, sink: str) -> pa.Schema:
        """Return what a sink receives."""
        if sink == DEAD_LETTERS or sink.endswith(DEAD):
            return DEAD_LETTER_SCHEMA
        if sink.endswith(LATE):
            return self.by_name[sink.removesuffix(LATE)].input
        return self.by_name[sink].sink_out

    def dead_letter_sinks(self, node: Node) -> list[str]:
        """Return the sinks that take rows which an operator sets aside."""
        return [sink for sink in (DEAD_LETTERS, node.name + DEAD) if sink in self.sinks]

    @cached_property
    def steps(self) -> int:
        """How many exchanges a batch takes."""
        return max((n.state_level for n in self.nodes), default=0)

    @cached_property
    def out_edges(self) -> dict[str, list[Edge]]:
        out: dict[str, list[Edge]] = {name: [] for name in [*self.sources, *self.by_name]}
        for edge in self.edges:
            out[edge.source].append(edge)
        return out

    @cached_property
    def stateful(self) -> list[Node]:
        return [n for n in self.nodes if n.operator.stateful]

    @cached_property
    def listings(self) -> dict[str, int | None]:
        """Sources that list what servers read, and how many bytes of it a batch reads at most."""
        read = {n.name: n.operator.max_bytes for n in self.nodes if n.operator.reads_source}
        return {e.source: read[e.target] for e in self.edges if e.target in read}

    @cached_property
    def works_at_sources(self) -> bool:
        """Whether source tasks call operators, and do not only route."""
        direct = [e.target for e in self.edges if e.source in self.sources and not e.crosses]
        return any(self.runs_at_source(self.by_name[name]) for name in direct)

    def runs_at_source(self, node: Node) -> bool:
        """Stateless operators that live everywhere run wherever their rows are, the source included."""
        return not node.operator.stateful and len(node.placement) == self.servers

    def signature(self) -> Signature:
        """Return what saved state depends on."""
        return Signature(
            self.servers,
            {
                n.name: OperatorSignature(
                    operator=n.operator.signature(),
                    key=[[k, str(n.input.field(k).type)] for k in n.key],
                    state=[[f.name, str(f.type)] for f in n.state],
                    schema=base64.b64encode(n.state.serialize()).decode(),
                    window=n.window.signature() if n.window else None,
                    placement=list(n.placement),
                    grouping=self.grouping_of(n).signature(),
                )
                for n in self.stateful
            },
        )

    def outline(self) -> dict[str, Any]:
        """Return what a drawing of the application needs, as JSON-able data."""
        return {
            "sources": list(self.sources),
            "operators": {
                n.name: {
                    "what": n.operator.describe(),
                    "key": [[k, str(n.input.field(k).type)] for k in n.key],
                    "stateful": n.operator.stateful,
                    "ttl": n.ttl,
                    "placement": list(n.placement),
                }
                for n in self.nodes
            },
            "edges": [[e.source, e.target, e.grouping.name] for e in self.edges],
            "sinks": sorted(self.sinks - {DEAD_LETTERS}),
        }

    def grouping_of(self, node: Node) -> Grouping:
        """Return the grouping by which an operator's keys find their home (all its edges share it)."""
        return next(e.grouping for e in self.edges if e.target == node.name)

    def draw(self) -> str:
        """Return the DAG in a few lines of text."""
        lines = [f"source {name}" for name in self.sources]
        for n in self.nodes:
            key = f" by {', '.join(n.key)}" if n.key else ""
            into = [e for e in self.edges if e.target == n.name]
            via = ", ".join(f"{e.source} ─{e.grouping.name}→" for e in into)
            where = "everywhere" if len(n.placement) == self.servers else f"on servers {list(n.placement)}"
            lines.append(f"{via} {n.name}: {n.operator.describe()}{key}, {where}, step {n.level}")
        return "\n".join(lines)


def fingerprint(topology: Topology) -> str:
    """Return a short name for everything that saved state depends on."""
    return _short(msgspec.to_builtins(topology.signature()))


def flow_fingerprint(topology: Topology) -> str:
    """Return a short name for what a batch's plan depends on besides saved state: what flows where, and how."""
    # False: version 0.2 said there whether the network was measured
    edges = [[e.source, e.target, e.side, e.grouping.signature(), False] for e in topology.edges]
    sources = {name: schema.names for name, schema in topology.sources.items()}
    return _short([sources, edges, [n.name for n in topology.nodes if n.operator.side is not None]])


def _short(content: Any) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
