"""Count and Aggregate: running values per key, vectorised from end to end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.errors import TopologyError, UnknownColumn, did_you_mean
from weir.operators.base import Operator
from weir.operators.distinct import REGISTERS, estimate, fill, merge_registers

Groups = NDArray[np.int64]
Columns = list[pa.Array]


@dataclass(frozen=True)
class _Function:
    """One aggregate function: how to begin, how to merge, how to finish."""

    fields: Callable[[pa.DataType | None], list[tuple[str, pa.DataType]]]
    begin: Callable[[pa.Array | None, Groups, int], Columns]
    merge: Sequence[str]
    finish: Callable[[Sequence[pa.Array]], pa.Array]
    result: Callable[[pa.DataType | None], pa.DataType]
    accepts: Callable[[pa.DataType], bool]


def _reduce(column: pa.Array, groups: Groups, n: int, how: str) -> pa.Array:
    """One value per group, in the order of the groups' numbers."""
    table = pa.table({"g": groups, "v": column})
    out = pa.TableGroupBy(table, "g", use_threads=False).aggregate([("v", how)])
    numbers, values = out["g"].to_numpy(), out[f"v_{how}"].combine_chunks()
    if len(numbers) == n and np.array_equal(numbers, np.arange(n)):
        return values
    position = np.full(n, -1, dtype=np.int64)
    position[numbers] = np.arange(len(numbers))
    return values.take(pa.array(position, mask=position < 0))


def _sum_type(kind: pa.DataType | None) -> pa.DataType:
    if kind is not None and pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.float64() if kind is not None and pa.types.is_floating(kind) else pa.int64()


def _numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _ordered(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        _numeric(kind) or t.is_string(kind) or t.is_binary(kind) or t.is_temporal(kind) or t.is_boolean(kind)
    )


def _hashable(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _count(column: pa.Array | None, groups: Groups, n: int) -> Columns:
    if column is not None and column.null_count:
        groups = groups[column.is_valid().to_numpy(zero_copy_only=False)]
    return [pa.array(np.bincount(groups, minlength=n).astype(np.int64))]


def _mean(column: pa.Array | None, groups: Groups, n: int) -> Columns:
    assert column is not None
    total = _reduce(column.cast(pa.float64()), groups, n, "sum")
    return [pc.fill_null(total, 0.0), *_count(column, groups, n)]


def _need(column: pa.Array | None) -> pa.Array:
    assert column is not None
    return column


FUNCTIONS: dict[str, _Function] = {
    "count": _Function(
        lambda kind: [("", pa.int64())],
        _count,
        ["sum"],
        lambda c: c[0],
        lambda kind: pa.int64(),
        lambda kind: True,
    ),
    "sum": _Function(
        lambda kind: [("", _sum_type(kind))],
        lambda c, g, n: [_reduce(_need(c).cast(_sum_type(_need(c).type)), g, n, "sum")],
        ["sum"],
        lambda c: c[0],
        _sum_type,
        _numeric,
    ),
    "min": _Function(
        lambda kind: [("", kind)],
        lambda c, g, n: [_reduce(_need(c), g, n, "min")],
        ["min"],
        lambda c: c[0],
        lambda kind: kind,
        _ordered,
    ),
    "max": _Function(
        lambda kind: [("", kind)],
        lambda c, g, n: [_reduce(_need(c), g, n, "max")],
        ["max"],
        lambda c: c[0],
        lambda kind: kind,
        _ordered,
    ),
    "mean": _Function(
        lambda kind: [(".sum", pa.float64()), (".count", pa.int64())],
        _mean,
        ["sum", "sum"],
        lambda c: pc.if_else(pc.greater(c[1], 0), pc.divide(c[0], pc.cast(c[1], pa.float64())), None),
        lambda kind: pa.float64(),
        _numeric,
    ),
    "approx_distinct": _Function(
        lambda kind: [(".registers", pa.binary(REGISTERS))],
        lambda c, g, n: [fill(_need(c), g, n)],
        ["registers"],
        lambda c: estimate(c[0]),
        lambda kind: pa.int64(),
        _hashable,
    ),
}
FUNCTIONS["avg"] = FUNCTIONS["mean"]


@dataclass(frozen=True)
class _Spec:
    name: str
    function: str
    column: str | None

    @property
    def rule(self) -> _Function:
        return FUNCTIONS[self.function]


class Aggregate(Operator):
    """Running aggregates per key.

    Parameters
    ----------
    emit
        What operators behind it see: ``"rows"``, the rows that came in (the default), or ``"updates"``, one
        row per key touched in a batch, with its new values. A sink always gets updates. Behind an
        event-time window both see the closed windows instead.
    **values
        A name for each value and how to get it, in SQL's words: ``count``, ``count(c)``, ``sum(c)``,
        ``min(c)``, ``max(c)``, ``mean(c)``, ``approx_distinct(c)``. Nulls don't count, as in SQL.

    Notes
    -----
    All functions merge, so the operator may stand behind groupings that split keys. ``approx_distinct`` is
    HyperLogLog with 1,024 registers (3.2 % standard error, 1 kB per key). Sums of integers are 64 bits wide.

    Examples
    --------
    >>> Aggregate(n="count", total="sum(amount)").describe()
    'Aggregate(n=count, total=sum(amount))'
    """

    stateful = True

    def __init__(self, *, emit: Literal["rows", "updates"] = "rows", **values: str) -> None:
        if not values:
            raise TopologyError('Aggregate needs at least one value, e.g. Aggregate(total="sum(amount)")')
        if emit not in ("rows", "updates"):
            raise TopologyError(f'Aggregate: emit is "rows" or "updates", not {emit!r}')
        self.emit = emit
        self.specs = [_parse(name, text) for name, text in values.items()]

    @property
    def mergeable(self) -> bool:
        return True

    @property
    def passes_rows(self) -> bool:
        return self.emit == "rows"

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return {s.column for s in self.specs if s.column}

    def check(self, schema: pa.Schema, where: str) -> None:
        for spec in self.specs:
            if spec.column is None:
                continue
            if spec.column not in schema.names:
                raise UnknownColumn(
                    f"{where}: {spec.function}({spec.column}) needs a column {spec.column!r}; "
                    f"{did_you_mean(spec.column, schema.names)}"
                )
            kind = schema.field(spec.column).type
            if not spec.rule.accepts(kind):
                raise TopologyError(f"{where}: {spec.function}({spec.column}) does not work on type {kind}")

    def _kind(self, spec: _Spec, schema: pa.Schema) -> pa.DataType | None:
        return None if spec.column is None else schema.field(spec.column).type

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([(s.name, s.rule.result(self._kind(s, schema))) for s in self.specs])

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                (s.name + suffix, kind)
                for s in self.specs
                for suffix, kind in s.rule.fields(self._kind(s, schema))
            ]
        )

    def begin(self, column: Callable[[str], pa.Array], groups: Groups, n: int) -> Columns:
        """The partial state of each of ``n`` groups of rows."""
        return [
            array
            for s in self.specs
            for array in s.rule.begin(None if s.column is None else column(s.column), groups, n)
        ]

    def merge(self, states: Sequence[pa.Array], groups: Groups, n: int) -> Columns:
        """Merges partial states: rows of equal group become one."""
        how = [m for s in self.specs for m in s.rule.merge]
        return [
            merge_registers(c, groups, n) if h == "registers" else _reduce(c, groups, n, h)
            for c, h in zip(states, how, strict=True)
        ]

    def finish(self, states: Sequence[pa.Array]) -> Columns:
        """The values that users see, from states."""
        out, at = [], 0
        for s in self.specs:
            width = len(s.rule.merge)
            out.append(s.rule.finish(states[at : at + width]))
            at += width
        return out

    def signature(self) -> dict[str, Any]:
        return {"kind": "Aggregate", "values": [[s.name, s.function, s.column] for s in self.specs]}

    def describe(self) -> str:
        parts = [f"{s.name}={s.function}" + (f"({s.column})" if s.column else "") for s in self.specs]
        return f"Aggregate({', '.join(parts)})"


class Count(Aggregate):
    """Counts the rows of each key: the operator of the locality paper's experiments."""

    def __init__(self, name: str = "count", *, emit: Literal["rows", "updates"] = "rows") -> None:
        super().__init__(emit=emit, **{name: "count"})


def _parse(name: str, text: str) -> _Spec:
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(\*|[^()]+?)\s*\))?\s*", text)
    if not match:
        raise TopologyError(f'Aggregate: cannot read {name}={text!r}; write it like {name}="sum(column)"')
    function, column = match[1].lower(), match[2]
    if function not in FUNCTIONS:
        raise TopologyError(f"Aggregate: {name}={text!r}: {did_you_mean(function, FUNCTIONS)}")
    if column in (None, "*"):
        if function != "count":
            raise TopologyError(f'Aggregate: {name}={text!r} needs a column: {name}="{function}(column)"')
        column = None
    return _Spec(name, function, column)
