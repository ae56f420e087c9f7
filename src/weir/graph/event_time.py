"""Where the watermark of an operator comes from: the places upstream at which event time is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.errors import TopologyError, UnknownColumn, did_you_mean
from weir.graph.model import Declared, TimePoint
from weir.operators.windows import EventTime

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
        _check(part, time.column, outputs[part])
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
                    f"operator {d.name!r} sets timers by event time, but what comes from {name!r} has none: declare "
                    'it, e.g. weir.source(…).event_time("time")'
                )
            points |= reached
        else:
            allowed = (
                replace(p, time=replace(p.time, lateness=p.time.lateness + d.lateness)) for p in points
            )
            out[d.name] = tuple(sorted(allowed, key=lambda point: point.name))
    return out


def _check(part: str, column: str, schema: pa.Schema) -> None:
    if column not in schema.names:
        raise UnknownColumn(
            f"{part!r}: no column {column!r} for its event time; {did_you_mean(column, schema.names)}"
        )
    kind = schema.field(column).type
    if not pa.types.is_timestamp(kind):
        raise TopologyError(f"{part!r}: column {column!r} for its event time is {kind}, not a timestamp")
