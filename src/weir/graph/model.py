"""The application as plain data: operators, edges, placement. Validated once, then only read.

:func:`build` turns what the user wrote down into a :class:`Topology`, in which every question the engine asks
has an answer: which columns travel on an edge, in which step an operator can receive rows, where it lives.
Everything that can be wrong with an application is said here, before any work starts.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from weir.columns import can_be_key, canonical
from weir.errors import GroupingError, TopologyError, UnknownColumn, did_you_mean
from weir.locality.config import Locality
from weir.operators.aggregate import Aggregate
from weir.operators.base import WINDOW_END, WINDOW_START, Operator
from weir.operators.process import Process
from weir.operators.read import Read
from weir.operators.stateless import Filter
from weir.routing.base import Grouping
from weir.routing.hash import Hash
from weir.routing.locality_aware import Learnt, LearntSplit
from weir.routing.shuffle import LocalOrShuffle
from weir.routing.table import Table, WorstCase


@dataclass(frozen=True)
class Window:
    """Tumbling event-time windows of ``size`` µs over ``column``; rows may be ``lateness`` µs late."""

    column: str
    size: int
    lateness: int = 0


@dataclass(frozen=True)
class Declared:
    """An operator as the user wrote it down."""

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    key: tuple[str, ...] = ()
    grouping: Grouping | Locality | None = None
    parallelism: int | None = None
    placement: tuple[int, ...] | None = None
    null_keys: str = "drop"
    on_error: str = "fail"
    window: Window | None = None
    ttl: int | None = None
    aggregate_every: int = 1


@dataclass(frozen=True)
class Edge:
    """Rows from a source or operator to an operator."""

    index: int
    source: str
    target: str
    grouping: Grouping
    schema: pa.Schema
    crosses: bool  # may a row change its server here?


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
    def held(self) -> str | None:
        """The name under which partial states wait for their aggregation, if they do."""
        return f"{self.name}~held" if self.declared.aggregate_every > 1 else None

    def aggregates(self, batch: int, end_of_input: bool) -> bool:
        """Whether partial states are merged in this batch."""
        return end_of_input or (batch + 1) % self.declared.aggregate_every == 0

    @property
    def state_level(self) -> int:
        """The step in which its state is final for the batch."""
        return self.level + 1 if self.splits else self.level

    @property
    def waits(self) -> bool:
        """Whether it must see all rows of a batch together."""
        return bool(isinstance(self.operator, Process) and self.operator.order_by)

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
    def state_names(self) -> list[str]:
        """Everything that has segments: stateful operators, and partial states that wait."""
        return [name for n in self.stateful for name in (n.name, n.held) if name is not None]

    @cached_property
    def listings(self) -> frozenset[str]:
        """Sources that list files, whose rows are read on the servers."""
        read = {n.name for n in self.nodes if isinstance(n.operator, Read)}
        return frozenset(e.source for e in self.edges if e.target in read)

    def runs_at_source(self, node: Node) -> bool:
        """Stateless operators that live everywhere run wherever their rows are, the source included."""
        return not node.operator.stateful and len(node.placement) == self.servers

    def signature(self) -> dict[str, Any]:
        """What saved state depends on, as JSON-able data."""
        return {
            "servers": self.servers,
            "operators": {
                n.name: {
                    "operator": n.operator.signature(),
                    "key": [[k, str(n.input.field(k).type)] for k in n.key],
                    "state": [[f.name, str(f.type)] for f in n.state],
                    "schema": base64.b64encode(n.state.serialize()).decode(),
                    "window": [n.window.column, n.window.size] if n.window else None,
                    "placement": list(n.placement),
                    "held": n.held,
                    "grouping": grouping_signature(self.grouping_of(n)),
                }
                for n in self.stateful
            },
        }

    def grouping_of(self, node: Node) -> Grouping:
        """The grouping by which an operator's keys find their home (all its edges share it)."""
        return next(e.grouping for e in self.edges if e.target == node.name)

    def draw(self) -> str:
        """The DAG in a few lines of text."""
        lines = []
        for name in self.sources:
            lines.append(f"source {name}")
        for n in self.nodes:
            key = f" by {', '.join(n.key)}" if n.key else ""
            into = [e for e in self.edges if e.target == n.name]
            via = ", ".join(f"{e.source} ─{e.grouping.name}→" for e in into)
            where = "everywhere" if len(n.placement) == self.servers else f"on servers {list(n.placement)}"
            kind = n.operator.describe() if isinstance(n.operator, Aggregate) else type(n.operator).__name__
            lines.append(f"{via} {n.name}: {kind}{key}, {where}, step {n.level}")
        return "\n".join(lines)


def grouping_signature(grouping: Grouping) -> Any:
    """A grouping's name and, for tables, a checksum of what they say: where keys live depends on it."""
    if isinstance(grouping, Table):
        return ["table", zlib.crc32(grouping.hashes.tobytes() + grouping.instances.tobytes())]
    if isinstance(grouping, WorstCase):
        return ["worst", grouping_signature(grouping.table)]
    if grouping.splits_keys or isinstance(grouping, Learnt):
        return [grouping.name]  # states live by hash, or by tables that a commit names
    return [grouping.name, zlib.crc32(repr(grouping).encode())]


def build(
    sources: Mapping[str, pa.Schema],
    declared: Sequence[Declared],
    servers: int,
    *,
    routing: Grouping | Locality | None = None,
    sinks: Sequence[str] = (),
    prune: bool = True,
    placements: Mapping[str, Sequence[int]] | None = None,
) -> Topology:
    """Validates an application and places it on servers.

    ``placements`` is where scaling has put the instances of each operator; it overrides what is declared.
    """
    if servers < 1:
        raise TopologyError(f"an application needs at least one server, got servers={servers}")
    if not sources:
        raise TopologyError("an application needs at least one source")
    _check_names(sources, declared)
    order = _topological(sources, declared)
    by_name = {d.name: d for d in order}
    for sink in sinks:
        if sink not in by_name:
            raise TopologyError(f"sink for unknown operator {sink!r}; {did_you_mean(sink, by_name)}")

    outputs: dict[str, pa.Schema] = {name: canonical(s) for name, s in sources.items()}
    inputs: dict[str, pa.Schema] = {}
    sink_out: dict[str, pa.Schema] = {}
    groupings: dict[str, Grouping] = {}
    placed: dict[str, tuple[int, ...]] = {}
    for d in order:
        schema = _union(d, outputs)
        inputs[d.name] = schema
        _check_key(d, schema)
        d.operator.check(schema, f"operator {d.name!r}")
        groupings[d.name] = _grouping(d, routing)
        given = None if placements is None else placements.get(d.name)
        placed[d.name] = _placement(d, servers) if given is None else tuple(given)
        for g in (groupings[d.name], getattr(groupings[d.name], "table", None)):
            # the table of a stateful operator that has been scaled is in the plan, not in the application
            if isinstance(g, Table) and not (given is not None and d.operator.stateful):
                g.check(len(placed[d.name]), f"operator {d.name!r}")
        outputs[d.name], sink_out[d.name] = _outputs(d, schema)

    needed = _needed(order, inputs, sinks, sources) if prune else None
    levels: dict[str, int] = dict.fromkeys(sources, 0)
    splits: dict[str, bool] = {}
    edges: list[Edge] = []
    nodes: list[Node] = []
    for index, d in enumerate(order):
        grouping = groupings[d.name]
        everywhere = len(placed[d.name]) == servers
        splits[d.name] = d.operator.stateful and grouping.splits_keys
        schema = _only(inputs[d.name], needed[d.name] if needed else None)
        level = 0
        for name in d.inputs:
            crosses = not (isinstance(grouping, LocalOrShuffle) and everywhere)
            before = levels[name]
            if name in by_name and not _emits_early(by_name[name], splits[name]):
                before += int(splits[name])
            level = max(level, before + int(crosses))
            edges.append(Edge(len(edges), name, d.name, grouping, schema, crosses))
        levels[d.name] = level
        keep = set(schema.names)
        nodes.append(
            Node(
                declared=d,
                index=index,
                input=schema,
                rows_out=_rows_out(d, outputs[d.name], keep, order, needed, sinks),
                sink_out=sink_out[d.name],
                state=_state_schema(d, inputs[d.name]),
                placement=placed[d.name],
                level=level,
                splits=splits[d.name],
            )
        )
    kept_sources = {
        name: _only(canonical(s), {c for e in edges if e.source == name for c in e.schema.names})
        for name, s in sources.items()
    }
    return Topology(
        servers=servers,
        sources=kept_sources,
        nodes=tuple(nodes),
        edges=tuple(edges),
        sinks=frozenset(sinks),
        by_name={n.name: n for n in nodes},
    )


def _check_names(sources: Mapping[str, pa.Schema], declared: Sequence[Declared]) -> None:
    seen = set(sources)
    for d in declared:
        if not d.name or "/" in d.name or d.name.startswith("."):
            raise TopologyError(f"{d.name!r} cannot name an operator: it must be a plain file name, too")
        if d.name in seen:
            raise TopologyError(
                f"two parts of the application are named {d.name!r}; pass name= to one of them"
            )
        seen.add(d.name)
    for d in declared:
        for name in d.inputs:
            if name not in seen:
                raise TopologyError(
                    f"operator {d.name!r} follows unknown {name!r}; {did_you_mean(name, seen)}"
                )
        if not d.inputs:
            raise TopologyError(f"operator {d.name!r} has no input")


def _topological(sources: Mapping[str, pa.Schema], declared: Sequence[Declared]) -> list[Declared]:
    done = set(sources)
    left = list(declared)
    order: list[Declared] = []
    while left:
        ready = [d for d in left if all(i in done for i in d.inputs)]
        if not ready:
            names = " → ".join(d.name for d in left)
            raise TopologyError(f"the application has a cycle among: {names}. Streams only flow forward.")
        for d in ready:
            order.append(d)
            done.add(d.name)
            left.remove(d)
    return order


def _union(d: Declared, outputs: Mapping[str, pa.Schema]) -> pa.Schema:
    first = outputs[d.inputs[0]]
    if not len(first):
        raise TopologyError(
            f"operator {d.name!r} follows {d.inputs[0]!r}, which emits nothing (declare its output)"
        )
    for name in d.inputs[1:]:
        other = outputs[name]
        mine, theirs = {f.name: f.type for f in first}, {f.name: f.type for f in other}
        if mine != theirs:
            different = sorted(c for c in mine.keys() | theirs.keys() if mine.get(c) != theirs.get(c))
            raise TopologyError(
                f"operator {d.name!r} unites {d.inputs[0]!r} and {name!r}, which differ in column "
                f"{different[0]!r} ({mine.get(different[0], 'missing')} and "
                f"{theirs.get(different[0], 'missing')}); select the same columns in both"
            )
    return first


def _check_key(d: Declared, schema: pa.Schema) -> None:
    where = f"operator {d.name!r}"
    if d.operator.stateful and not d.key:
        raise TopologyError(f"{where} keeps state per key: give it a key, e.g. key={schema.names[0]!r}")
    for column in d.key:
        if column not in schema.names:
            raise UnknownColumn(
                f"{where}: no column {column!r} for its key; {did_you_mean(column, schema.names)}"
            )
        kind = schema.field(column).type
        if not can_be_key(kind):
            raise TopologyError(
                f"{where}: column {column!r} is of type {kind} and cannot be a key; "
                "keys are strings, integers, dates, timestamps, booleans or binary"
            )
    if d.null_keys not in ("drop", "error"):
        raise TopologyError(f'{where}: null_keys is "drop" or "error", not {d.null_keys!r}')
    if d.on_error not in ("fail", "divert"):
        raise TopologyError(f'{where}: on_error is "fail" or "divert", not {d.on_error!r}')
    if d.window is not None:
        if not isinstance(d.operator, Aggregate):
            raise TopologyError(
                f"{where}: event-time windows need Count or Aggregate, not {type(d.operator).__name__}"
            )
        column = d.window.column
        if column not in schema.names:
            raise UnknownColumn(
                f"{where}: no column {column!r} for its window; {did_you_mean(column, schema.names)}"
            )
        if not pa.types.is_timestamp(schema.field(column).type):
            raise TopologyError(
                f"{where}: window column {column!r} is {schema.field(column).type}, not a timestamp"
            )
        if d.window.size <= 0 or d.window.lateness < 0:
            raise TopologyError(f"{where}: a window needs a positive size and no negative lateness")
        if d.ttl is not None:
            raise TopologyError(f"{where}: a window ends by itself; ttl= is for operators without one")
    if d.ttl is not None and d.ttl <= 0:
        raise TopologyError(f"{where}: ttl must be positive")


def _grouping(d: Declared, routing: Grouping | Locality | None) -> Grouping:
    grouping: Grouping
    if isinstance(d.grouping, Locality):
        if d.parallelism is not None or d.placement is not None:
            raise GroupingError(
                f"operator {d.name!r}: locality-aware routing needs the operator on every server; "
                "leave out parallelism and placement, or use Hash"
            )
        grouping = _learnt(d, d.grouping)
    elif d.grouping is not None:
        grouping = d.grouping
    elif isinstance(d.operator, Read):
        grouping = Learnt() if isinstance(routing, Locality) else Hash()
    elif not d.operator.stateful:
        grouping = LocalOrShuffle()
    elif isinstance(routing, Locality):
        # an operator that is not everywhere cannot follow its keys' company; it stays with the hash
        everywhere = d.parallelism is None and d.placement is None
        grouping = _learnt(d, routing) if everywhere else Hash()
    else:
        grouping = routing or Hash()
    where = f"operator {d.name!r}"
    if grouping.keyed and not d.key:
        raise GroupingError(f"{where}: grouping {grouping.name} routes by key; give the operator a key=")
    if d.operator.stateful and grouping.splits_keys and not d.operator.mergeable:
        raise GroupingError(
            f"{where}: {grouping.name} on the edge {d.inputs[0]} → {d.name} sends the rows of one key to "
            f"several servers, but {type(d.operator).__name__} cannot merge partial states. Give it a merge "
            "function, or use a grouping that keeps a key in one place (Hash, Table)."
        )
    if d.operator.stateful and grouping.splits_keys and (d.ttl is not None or d.window is not None):
        raise GroupingError(
            f"{where}: windows and ttl are not available behind {grouping.name}, which splits keys; "
            "use Hash or Table for this operator"
        )
    if d.aggregate_every < 1:
        raise TopologyError(f"{where}: aggregate_every counts batches, from 1")
    if d.aggregate_every > 1 and not (
        grouping.splits_keys and isinstance(d.operator, Aggregate) and not isinstance(grouping, Learnt)
    ):
        raise GroupingError(
            f"{where}: aggregate_every is for Count and Aggregate behind a grouping that splits keys "
            f"(PartialKey, Consistent, Shuffle …); behind {grouping.name} there is nothing to aggregate later"
        )
    return grouping


def _learnt(d: Declared, config: Locality) -> Grouping:
    """How a learning operator routes: keys stay with their rows at times only where states merge."""
    plain = d.window is None and d.ttl is None
    if d.operator.mergeable and plain and (config.new_keys == "first_seen" or config.split_hot):
        overflow = None if isinstance(config.split_hot, bool) else config.split_hot
        return LearntSplit(first_seen=config.new_keys == "first_seen", overflow=overflow)
    return Learnt()


def _placement(d: Declared, servers: int) -> tuple[int, ...]:
    where = f"operator {d.name!r}"
    if d.placement is not None:
        if d.parallelism is not None and d.parallelism != len(d.placement):
            raise TopologyError(
                f"{where}: parallelism {d.parallelism} contradicts a placement on {len(d.placement)} servers"
            )
        if len(set(d.placement)) != len(d.placement):
            raise TopologyError(f"{where}: placement {list(d.placement)} names a server twice")
        bad = [s for s in d.placement if not 0 <= s < servers]
        if bad or not d.placement:
            raise TopologyError(
                f"{where}: placement {list(d.placement)} on servers 0 … {servers - 1} is impossible"
            )
        return tuple(d.placement)
    if d.parallelism is None:
        return tuple(range(servers))
    if not 1 <= d.parallelism <= servers:
        raise TopologyError(
            f"{where}: parallelism {d.parallelism}, but there are {servers} servers; "
            f"use 1 … {servers}, or start with more servers"
        )
    return tuple(range(d.parallelism))


def _passes(d: Declared) -> bool:
    if isinstance(d.operator, Filter):
        return True
    return d.operator.passes_rows and d.window is None


def _emits_early(d: Declared, splits: bool) -> bool:
    """Whether rows leave it as they come, before its state is final."""
    return _passes(d) or not d.operator.stateful or isinstance(d.operator, Process)


def _outputs(d: Declared, schema: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
    if not d.operator.stateful or isinstance(d.operator, Process):
        out = canonical(d.operator.emits(schema))
        return out, out
    keys = [schema.field(k) for k in d.key]
    times = []
    if d.window:
        kind = schema.field(d.window.column).type
        times = [pa.field(WINDOW_START, kind), pa.field(WINDOW_END, kind)]
    values = list(d.operator.emits(schema))
    clash = {f.name for f in values} & {f.name for f in [*keys, *times]}
    if clash:
        raise TopologyError(
            f"operator {d.name!r}: value {clash.pop()!r} is also a key column; rename the value"
        )
    updates = pa.schema([*keys, *times, *values])
    return (schema if _passes(d) else updates), updates


def _state_schema(d: Declared, schema: pa.Schema) -> pa.Schema:
    if not d.operator.stateful:
        return pa.schema([])
    fields = [schema.field(k) for k in d.key]
    if d.window:
        fields.append(pa.field(WINDOW_START, schema.field(d.window.column).type))
    return pa.schema([*fields, *d.operator.state_schema(schema)])


def _needed(
    order: Sequence[Declared],
    inputs: Mapping[str, pa.Schema],
    sinks: Sequence[str],
    sources: Mapping[str, pa.Schema],
) -> dict[str, set[str]]:
    """The columns that must reach each operator, found from the end backwards."""
    needed: dict[str, set[str]] = {}
    for d in reversed(order):
        wanted = d.operator.needs(inputs[d.name])
        mine = (
            set(inputs[d.name].names)
            if wanted is None and not isinstance(d.operator, Aggregate)
            else set(wanted or ())
        )
        mine |= set(d.key)
        if d.window:
            mine.add(d.window.column)
        if _passes(d):
            for other in order:
                if d.name in other.inputs:
                    mine |= needed[other.name]
        # nothing but its key travels to an operator only if it has one; a row needs at least one column
        needed[d.name] = mine or {inputs[d.name].names[0]}
    return needed


def _rows_out(
    d: Declared,
    schema: pa.Schema,
    keep: set[str],
    order: Sequence[Declared],
    needed: Mapping[str, set[str]] | None,
    sinks: Sequence[str],
) -> pa.Schema:
    """The columns that leave an operator: of files, only those are read that somebody wants."""
    if _passes(d):
        return _only(schema, keep)
    if isinstance(d.operator, Read) and needed is not None and d.name not in sinks:
        return _only(schema, {c for other in order if d.name in other.inputs for c in needed[other.name]})
    return schema


def _only(schema: pa.Schema, columns: set[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    return pa.schema([f for f in schema if f.name in columns])


def fingerprint(topology: Topology) -> str:
    """A short name for everything that saved state depends on."""
    return f"{zlib.crc32(json.dumps(topology.signature(), sort_keys=True).encode()):08x}"
