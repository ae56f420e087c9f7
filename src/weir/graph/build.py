"""Build the application: check it, pick groupings, place instances, find columns that travel and the steps of a batch.

Everything that can be wrong with an application is said here, before any work starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.columns import can_be_key, canonical, check_column
from weir.errors import GroupingError, TopologyError, did_you_mean, refuse
from weir.graph.model import (
    DEAD,
    DEAD_LETTERS,
    HELD,
    LATE,
    Declared,
    Edge,
    GroupingLike,
    Node,
    TimePoint,
    Topology,
)
from weir.operators.base import combined_schema, side_schema
from weir.operators.timers import TIMER
from weir.operators.windows import CLOSED, WINDOW_END, WINDOW_START, EventTime, Window
from weir.routing.base import Grouping, OperatorTraits
from weir.routing.checks import check_name, check_routers, naming
from weir.routing.hash import Hash
from weir.routing.shuffle import LocalOrShuffle


def build(
    sources: Mapping[str, pa.Schema],
    declared: Sequence[Declared],
    servers: int,
    *,
    routing: GroupingLike | None = None,
    sinks: Sequence[str] = (),
    prune: bool = True,
    placements: Mapping[str, Sequence[int]] | None = None,
    times: Mapping[str, EventTime] | None = None,
) -> Topology:
    """Check an application and place it on servers.

    ``placements`` is where scaling has put the instances of each operator; it overrides what is declared. ``times`` is
    the event time that sources declare, ``sinks`` the names of all sinks (see :mod:`weir.graph.model`).
    """
    if servers < 1:
        raise TopologyError(f"an application needs at least one server, got servers={servers}")
    if not sources:
        raise TopologyError("an application needs at least one source")
    check_names(sources, declared)
    order = _topological(sources, declared)
    by_name = {d.name: d for d in order}
    check_sinks(sinks, by_name)
    outputs: dict[str, pa.Schema] = {name: canonical(s) for name, s in sources.items()}
    inputs: dict[str, pa.Schema] = {}
    sink_out: dict[str, pa.Schema] = {}
    groupings: dict[str, Grouping] = {}
    placed: dict[str, tuple[int, ...]] = {}
    for d in order:
        schema = _input_schema(d, outputs)
        inputs[d.name] = schema
        check_declared(d, schema)
        follower = next((other.name for other in order if d.name in other.inputs), None)
        if follower is not None and d.window is None:
            d.operator.check_followed(follower, d.where)
        d.operator.check(schema, d.where)
        groupings[d.name] = _grouping(d, routing)
        given = None if placements is None else placements.get(d.name)
        placed[d.name] = _placement(d, servers) if given is None else tuple(given)
        # the table of a stateful operator that has been scaled is in the plan, not in the application
        if given is None or not d.operator.stateful or not groupings[d.name].scales_by_key_group:
            check_promises(d, groupings[d.name], len(placed[d.name]))
        outputs[d.name], sink_out[d.name] = _outputs(d, schema)

    points = time_points(order, outputs, times or {})
    read_at = {point for of_one in points.values() for point in of_one}
    needed = _needed_columns(order, inputs, read_at) if prune else None
    levels: dict[str, int] = dict.fromkeys(sources, 0)
    splits: dict[str, bool] = {}
    edges: list[Edge] = []
    nodes: list[Node] = []
    for index, d in enumerate(order):
        grouping = groupings[d.name]
        everywhere = len(placed[d.name]) == servers
        splits[d.name] = d.operator.stateful and grouping.splits_keys
        schema = _only(inputs[d.name], needed[d.name] if needed else None)
        sides = tuple(side_schema(schema, side, d.key) for side in range(d.operator.sides)) if d.sides else ()
        level = int(d.operator.stateful)  # state lives on servers: rows leave their source to reach it
        for number, name in enumerate(d.inputs):
            crosses = not (grouping.stays_local and everywhere)
            before = levels[name]
            if name in by_name and not (by_name[name].passes or by_name[name].operator.emits_early):
                before += int(splits[name])  # its partial states are merged first
            level = max(level, before + int(crosses))
            side = d.side_of(number)
            edges.append(
                Edge(len(edges), name, d.name, grouping, sides[side] if sides else schema, crosses, side)
            )
        levels[d.name] = level
        rows_out = outputs[d.name]
        if d.passes:
            rows_out = _only(rows_out, set(schema.names))
        elif d.operator.reads_source and needed is not None and d.name not in sinks:
            # of files, only those columns are read that somebody wants
            rows_out = _only(rows_out, _wanted_behind(d, order, needed) | _read_of(d.name, read_at))
        nodes.append(
            Node(
                declared=d,
                index=index,
                input=schema,
                rows_out=rows_out,
                sink_out=sink_out[d.name],
                state=_state_schema(d, inputs[d.name]),
                placement=placed[d.name],
                level=level,
                splits=splits[d.name],
                sides=sides,
                times=points.get(d.name, ()),
            )
        )
    kept_sources = {
        name: _only(
            canonical(s),
            {c for e in edges if e.source == name for c in e.schema.names} | _read_of(name, read_at),
        )
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


def _input_schema(d: Declared, outputs: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns that an operator gets; those of several sides in one schema."""
    if not d.sides:
        return _united_schema(d, d.inputs, outputs)
    sides = []
    for side in range(d.operator.sides):
        names = [name for number, name in enumerate(d.inputs) if d.side_of(number) == side]
        sides.append(_united_schema(d, names, outputs))
    check_sides(d, sides)
    return combined_schema(sides, d.key)


def _united_schema(d: Declared, names: Sequence[str], outputs: Mapping[str, pa.Schema]) -> pa.Schema:
    first = outputs[names[0]]
    if not len(first):
        raise TopologyError(f"{d.where} follows {names[0]!r}, which emits nothing (declare its output)")
    for name in names[1:]:
        other = outputs[name]
        mine, theirs = {f.name: f.type for f in first}, {f.name: f.type for f in other}
        if mine != theirs:
            different = sorted(c for c in mine.keys() | theirs.keys() if mine.get(c) != theirs.get(c))
            raise TopologyError(
                f"{d.where} unites {names[0]!r} and {name!r}, which differ in column "
                f"{different[0]!r} ({mine.get(different[0], 'missing')} and "
                f"{theirs.get(different[0], 'missing')}); select the same columns in both"
            )
    return first


def _grouping(d: Declared, routing: GroupingLike | None) -> Grouping:
    """Return the grouping in front of an operator: its own, the application's, or what suits it."""
    timed = d.timed or d.ttl is not None or bool(d.operator.timers)
    explicit = d.grouping is not None
    traits = OperatorTraits(d.name, d.operator.mergeable, timed, d.everywhere, explicit)
    if d.grouping is not None:
        grouping = d.grouping.for_operator(traits)
    elif d.operator.reads_source:
        # partitions are placed by learning, if at all: another routing is about the keys of operators
        chosen = None if routing is None else routing.for_operator(traits)
        grouping = chosen if chosen is not None and chosen.learnt else Hash()
    elif not d.operator.stateful:
        grouping = LocalOrShuffle()
    else:
        grouping = Hash() if routing is None else routing.for_operator(traits)
    check_grouping(d, grouping)
    return grouping


def _placement(d: Declared, servers: int) -> tuple[int, ...]:
    count, placed = d.parallelism, d.placement
    if placed is not None:
        bad = not placed or any(not 0 <= s < servers for s in placed)
        refuse(
            f"{d.where}: ",
            (
                count not in (None, len(placed)),
                f"parallelism {count} contradicts a placement on {len(placed)} servers",
            ),
            (len(set(placed)) != len(placed), f"placement {list(placed)} names a server twice"),
            (bad, f"placement {list(placed)} on servers 0 … {servers - 1} is impossible"),
        )
        return tuple(placed)
    count = servers if count is None else count
    few = (
        f"parallelism {count}, but there are {servers} servers; use 1 … {servers}, or start with more servers"
    )
    refuse(f"{d.where}: ", (not 1 <= count <= servers, few))
    return tuple(range(count))


def _outputs(d: Declared, schema: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
    """Return what operators behind it receive, and what a sink receives."""
    heads = [schema.field(k) for k in d.key]
    if d.window:
        kind = schema.field(d.window.column).type
        heads += [pa.field(WINDOW_START, kind), pa.field(WINDOW_END, kind)]
        if d.window.early is not None:
            heads.append(pa.field(CLOSED, pa.bool_()))
    updates = d.operator.updates(schema, heads)
    if updates is None:
        out = canonical(d.operator.emits(schema))
        return out, out
    if len(set(updates.names)) < len(updates.names):
        twice = next(n for n in updates.names if updates.names.count(n) > 1)
        raise TopologyError(f"{d.where}: value {twice!r} is also a key column; rename the value")
    return (schema if d.passes else updates), updates


def _state_schema(d: Declared, schema: pa.Schema) -> pa.Schema:
    if not d.operator.stateful:
        return pa.schema([])
    fields = [schema.field(k) for k in d.key]
    if d.window:
        kind = schema.field(d.window.column).type
        fields.append(pa.field(WINDOW_START, kind))
        if d.window.session:
            fields.append(pa.field(WINDOW_END, kind))
    timers = [TIMER] if d.operator.timers or (d.window is not None and d.window.early is not None) else []
    return pa.schema([*fields, *d.operator.state_schema(schema), *timers])


def _read_of(part: str, read_at: set[TimePoint]) -> set[str]:
    """Return the columns in which event time is read on the rows that leave a source or an operator."""
    return {point.time.column for point in read_at if point.part == part}


def _needed_columns(
    order: Sequence[Declared], inputs: Mapping[str, pa.Schema], read_at: set[TimePoint]
) -> dict[str, set[str]]:
    """Return the columns that must reach each operator, found from the end backwards."""
    needed: dict[str, set[str]] = {}
    for d in reversed(order):
        wanted = d.operator.needs(inputs[d.name])
        mine = set(inputs[d.name].names) if wanted is None else set(wanted)
        mine |= set(d.key)
        if d.window:
            mine.add(d.window.column)
        if d.passes:
            mine |= _read_of(d.name, read_at) | _wanted_behind(d, order, needed)
        # nothing but its key travels to an operator only if it has one; a row needs at least one column
        needed[d.name] = mine or {inputs[d.name].names[0]}
    return needed


def _wanted_behind(d: Declared, order: Sequence[Declared], needed: Mapping[str, set[str]]) -> set[str]:
    """Return the columns of an operator's rows that the operators behind it read."""
    wanted: set[str] = set()
    for other in order:
        for number, name in enumerate(other.inputs):
            if name == d.name:
                mark = f"{other.side_of(number)}:" if other.sides else ""
                wanted |= {c.removeprefix(mark) for c in needed[other.name] if c.startswith(mark)}
                wanted |= set(other.key)
    return wanted


def _only(schema: pa.Schema, columns: set[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([f for f in schema if f.name in columns])


def check_names(sources: Mapping[str, pa.Schema], declared: Sequence[Declared]) -> None:
    """Refuse names that are taken, unknown, or no file names."""
    seen = set(sources)
    for d in declared:
        ours = d.name.endswith((HELD, LATE, DEAD)) or d.name == DEAD_LETTERS
        taken = f"two parts of the application are named {d.name!r}; pass name= to one of them"
        bad = not d.name or "/" in d.name or d.name.startswith(".")
        refuse(
            "",
            (bad, f"{d.name!r} cannot name an operator: it must be a plain file name, too"),
            (ours, f"{d.name!r} cannot name an operator: it names what Weir keeps beside them"),
            (d.name in seen, taken),
        )
        seen.add(d.name)
    for d in declared:
        for name in d.inputs:
            refuse(d.where, (name not in seen, f" follows unknown {name!r}; {did_you_mean(name, seen)}"))
        refuse(d.where, (not d.inputs, " has no input"))


def check_sinks(sinks: Sequence[str], by_name: Mapping[str, Declared]) -> None:
    """Refuse sinks of operators that are not there, and sinks that no row could reach."""
    for sink in sinks:
        name = sink.removesuffix(LATE).removesuffix(DEAD)
        if name == DEAD_LETTERS:
            continue
        if name not in by_name:
            raise TopologyError(f"sink for unknown operator {name!r}; {did_you_mean(name, by_name)}")
        late, diverts = by_name[name].drops_late, by_name[name].on_error == "divert"
        never = f"no row is late for {name!r}, which has no windows: it needs no sink for such"
        fails = f'{name!r} sets no row aside: pass on_error="divert" to it, or take its dead-letter sink away'
        refuse(
            "", (sink.endswith(LATE) and not late, never), (sink.endswith(DEAD) and not late | diverts, fails)
        )


def check_declared(d: Declared, schema: pa.Schema) -> None:
    """Refuse keys, policies, windows and times that an operator cannot have on rows of this schema."""
    if d.operator.stateful and not d.key:
        raise TopologyError(f"{d.where} keeps state per key: give it a key, e.g. key={schema.names[0]!r}")
    for column in d.key:
        check_column(column, schema, d.where, "its key")
        kind = schema.field(column).type
        allowed = "keys are strings, integers, dates, timestamps, booleans or binary"
        unfit = f"column {column!r} is of type {kind} and cannot be a key; {allowed}"
        refuse(f"{d.where}: ", (not can_be_key(kind), unfit))
    refuse(
        f"{d.where}: ",
        (d.null_keys not in ("drop", "error"), f'null_keys is "drop" or "error", not {d.null_keys!r}'),
        (d.on_error not in ("fail", "divert"), f'on_error is "fail" or "divert", not {d.on_error!r}'),
        (d.ttl is not None and d.ttl <= 0, "ttl must be positive"),
    )
    if d.window is not None:
        _check_window(d, d.window, schema)


def _check_window(d: Declared, window: Window, schema: pa.Schema) -> None:
    kind = type(d.operator).__name__
    refuse(
        f"{d.where}: ",
        (
            not d.operator.windowed,
            f"event-time windows need Count, Aggregate, or a Process without ListState and MapState, not {kind}",
        ),
        (
            window.session and not d.operator.mergeable,
            f"a row may make two sessions of a key one, and {kind} cannot merge their states; give it a merge "
            "function, or use other windows",
        ),
        (
            window.early is not None and not d.operator.tells_early,
            f"early= is for Count and Aggregate; a {kind} yields what it likes, whenever it is called",
        ),
        (d.operator.timers, "windows close by themselves; timers are for a Process without one"),
        (window.size <= 0 or window.lateness < 0, "a window needs a positive size and no negative lateness"),
        (d.ttl is not None, "a window ends by itself; ttl= is for operators without one"),
    )
    check_column(window.column, schema, d.where, "its window", timestamp=True)
    refuse(
        f"{d.where}: ",
        (
            window.zone is not None and schema.field(window.column).type.tz is None,
            f"column {window.column!r} says no moments, but readings of some clock: windows in a timezone= need a "
            "timestamp with a time zone. Convert it, or leave timezone= out: its windows are those of that clock",
        ),
    )


def check_sides(d: Declared, sides: Sequence[pa.Schema]) -> None:
    """Refuse sides of which one lacks the key, or has it in another type."""
    for name, schema in zip(("left", "right"), sides, strict=True):
        for column in d.key:
            check_column(column, schema, d.where, "the key", side=f"{name} side")
            mine, first = schema.field(column).type, sides[0].field(column).type
            differ = f"key column {column!r} is {first} on the left and {mine} on the right; cast one of them"
            refuse(f"{d.where}: ", (mine != first, differ))


def check_grouping(d: Declared, grouping: Grouping) -> None:
    """Refuse a grouping that does not fit the operator behind it."""
    with naming(d.where):
        check_name(grouping)
    splits = d.operator.stateful and grouping.splits_keys
    timed = d.ttl is not None or d.timed or bool(d.operator.timers)
    refuse(
        f"{d.where}: ",
        (grouping.keyed and not d.key, f"{grouping} routes by key; give the operator a key="),
        (
            splits and not d.operator.mergeable,
            f"{grouping} on the edge {', '.join(d.inputs)} → {d.name} sends the rows of one key to several servers, "
            f"but {type(d.operator).__name__} cannot merge partial states. Give it a merge function, or use a grouping "
            "that keeps a key in one place (Hash, Table).",
        ),
        (
            splits and timed,
            f"windows, timers and ttl are not available behind {grouping}, which splits keys; use Hash or Table "
            "for this operator",
        ),
        error=GroupingError,
    )


def check_promises(d: Declared, grouping: Grouping, n: int) -> None:
    """Refuse a grouping that does not fit ``n`` instances, or is not what it says; ours are tried by tests."""
    grouping.check(n, d.where)
    if not type(grouping).__module__.startswith("weir.routing."):
        with naming(f"{d.where}: {grouping} on the edge {', '.join(d.inputs)} → {d.name}"):
            check_routers(grouping, n, stateful=d.operator.stateful)


Points = frozenset[TimePoint]


def time_points(
    order: Sequence[Declared], outputs: Mapping[str, pa.Schema], sources: Mapping[str, EventTime]
) -> dict[str, tuple[TimePoint, ...]]:
    """Return the places that each operator with a watermark hears of event time from.

    On every way from a source that is where the stream declares its event time, the nearest one upstream. Where none
    does, the column of the operator's own window is read: as near to the source as rows have it unchanged. What an
    operator with a watermark emits comes behind that watermark, so its time is read anew.
    """
    declared = {**sources, **{d.name: d.event_time for d in order if d.event_time is not None}}
    for part, time in declared.items():
        check_column(time.column, outputs[part], repr(part), "its event time", timestamp=True)
    by_name = {d.name: d for d in order}

    def upstream(part: str, column: str | None) -> Points | None:
        if part in declared:
            return frozenset([TimePoint(part, declared[part])])
        operator = by_name.get(part)
        if operator is not None and not operator.timed:
            kept = column if operator.passes else None
            behind = [upstream(name, kept) for name in operator.inputs]
            if all(points is not None for points in behind):
                return frozenset().union(*(points or () for points in behind))
        return None if column is None else frozenset([TimePoint(part, EventTime(column))])

    out: dict[str, tuple[TimePoint, ...]] = {}
    for d in order:
        if not d.timed and not d.operator.takes_watermark:
            continue
        points: set[TimePoint] = set()
        for number, name in enumerate(d.inputs):
            reached = upstream(name, d.time_column(number))
            if reached is None and not d.timed:
                break
            if reached is None:
                raise TopologyError(
                    f"{d.where} sets timers by event time, but what comes from {name!r} has none: declare "
                    'it, e.g. weir.source(…).event_time("time")'
                )
            points |= reached
        else:
            allowed = (
                replace(p, time=replace(p.time, lateness=p.time.lateness + d.lateness)) for p in points
            )
            out[d.name] = tuple(sorted(allowed, key=lambda point: point.name))
    return out
