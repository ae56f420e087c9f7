"""What an application must not be: every refusal names the operator and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from weir.columns import can_be_key
from weir.errors import GroupingError, TopologyError, UnknownColumn, did_you_mean
from weir.graph.model import DEAD, DEAD_LETTERS, HELD, LATE, Declared
from weir.routing.base import Grouping


def check_names(sources: Mapping[str, pa.Schema], declared: Sequence[Declared]) -> None:
    """Refuse names that are taken, unknown, or no file names."""
    seen = set(sources)
    for d in declared:
        if not d.name or "/" in d.name or d.name.startswith("."):
            raise TopologyError(f"{d.name!r} cannot name an operator: it must be a plain file name, too")
        if d.name.endswith((HELD, LATE, DEAD)) or d.name == DEAD_LETTERS:
            raise TopologyError(f"{d.name!r} cannot name an operator: it names what Weir keeps beside them")
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


def check_sinks(sinks: Sequence[str], by_name: Mapping[str, Declared]) -> None:
    """Refuse sinks of operators that are not there, and sinks that no row could reach."""
    for sink in sinks:
        name = sink.removesuffix(LATE).removesuffix(DEAD)
        if name == DEAD_LETTERS:
            continue
        if name not in by_name:
            raise TopologyError(f"sink for unknown operator {name!r}; {did_you_mean(name, by_name)}")
        late = by_name[name].drops_late
        if sink.endswith(LATE) and not late:
            raise TopologyError(
                f"no row is late for {name!r}, which has no windows: it needs no sink for such"
            )
        if sink.endswith(DEAD) and not late and by_name[name].on_error != "divert":
            raise TopologyError(
                f'{name!r} sets no row aside: pass on_error="divert" to it, or take its dead-letter sink away'
            )


def check_declared(d: Declared, schema: pa.Schema) -> None:
    """Refuse keys, policies, windows and times that an operator cannot have on rows of this schema."""
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
        if not d.operator.windowed:
            raise TopologyError(
                f"{where}: event-time windows need Count, Aggregate, or a Process without ListState and MapState, "
                f"not {type(d.operator).__name__}"
            )
        if d.window.session and not d.operator.mergeable:
            raise TopologyError(
                f"{where}: a row may make two sessions of a key one, and {type(d.operator).__name__} cannot merge "
                "their states; give it a merge function, or use other windows"
            )
        if d.window.early is not None and not d.operator.tells_early:
            raise TopologyError(
                f"{where}: early= is for Count and Aggregate; a {type(d.operator).__name__} yields what it likes, "
                "whenever it is called"
            )
        if d.operator.timers:
            raise TopologyError(f"{where}: windows close by themselves; timers are for a Process without one")
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


def check_sides(d: Declared, sides: Sequence[pa.Schema]) -> None:
    """Refuse sides of which one lacks the key, or has it in another type."""
    where = f"operator {d.name!r}"
    for number, schema in enumerate(sides):
        for column in d.key:
            if column not in schema.names:
                raise UnknownColumn(
                    f"{where}: its {('left', 'right')[number]} side has no column {column!r} for the key; "
                    f"{did_you_mean(column, schema.names)}"
                )
            mine, first = schema.field(column).type, sides[0].field(column).type
            if mine != first:
                raise TopologyError(
                    f"{where}: key column {column!r} is {first} on the left and {mine} on the right; cast one of them"
                )


def check_grouping(d: Declared, grouping: Grouping) -> None:
    """Refuse a grouping that does not fit the operator behind it."""
    where = f"operator {d.name!r}"
    if grouping.keyed and not d.key:
        raise GroupingError(f"{where}: grouping {grouping.name} routes by key; give the operator a key=")
    if d.operator.stateful and grouping.splits_keys and not d.operator.mergeable:
        raise GroupingError(
            f"{where}: {grouping.name} on the edge {d.inputs[0]} → {d.name} sends the rows of one key to "
            f"several servers, but {type(d.operator).__name__} cannot merge partial states. Give it a merge "
            "function, or use a grouping that keeps a key in one place (Hash, Table)."
        )
    timed = d.ttl is not None or d.timed or bool(d.operator.timers)
    if d.operator.stateful and grouping.splits_keys and timed:
        raise GroupingError(
            f"{where}: windows, timers and ttl are not available behind {grouping.name}, which splits keys; "
            "use Hash or Table for this operator"
        )
