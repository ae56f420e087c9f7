"""A grouping and an operator as a user would write them: everything they need is in the two protocols."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from weir.hashing import key_group
from weir.operators import Context, Instance, Operator, Rows, keyed_schema
from weir.routing import Grouping, Router, RoutingRule
from weir.state import H1, H2, entries, group_rows


@dataclass(frozen=True)
class Halves(Grouping):
    """One home per key, by a number of key groups of its own, the last of them on the first instance."""

    key_groups: int = 12
    name: ClassVar[str] = "halves"
    scales_by_key_group: ClassVar[bool] = True

    def homes(self, n):
        return (np.arange(self.key_groups)[::-1] % n).astype(np.int32)

    def make_router(self, context):
        return _HalvesRouter(context.n, self.homes(context.n))

    def rule(self, n):
        return RoutingRule(self.homes(n))


class _HalvesRouter(Router):
    def __init__(self, n, homes):
        super().__init__(n)
        self.homes = homes

    def route(self, keys):
        return self.homes[key_group(keys, len(self.homes))]


@dataclass(frozen=True)
class Modulo(Grouping):
    """One home per key by its own routers alone: no rule as data, no key groups; it scales by routing anew."""

    name: ClassVar[str] = "modulo"

    def make_router(self, context):
        return _ModuloRouter(context.n)


class _ModuloRouter(Router):
    def route(self, keys):
        return ((keys >> np.uint64(20)) % np.uint64(self.n)).astype(np.int32)


@dataclass(frozen=True)
class NearestRested(Grouping):
    """Splits keys: rows go to receivers in turn, near ones twice as often, the busiest of the last batch never."""

    name: ClassVar[str] = "nearest rested"
    splits_keys: ClassVar[bool] = True
    order_free: ClassVar[bool] = False
    uses_distances = True

    def make_router(self, context):
        return _NearestRestedRouter(context)

    def feedback(self, load):
        return int(load.busy.argmax()) if load.rows.any() and len(load.rows) > 1 else None


class _NearestRestedRouter(Router):
    def __init__(self, context):
        super().__init__(context.n)
        far = np.ones(context.n, np.int8) if context.distances is None else context.distances
        self.turns = np.repeat(np.arange(context.n), np.where(far == far.min(), 2, 1))
        self.next = 0
        self.busiest = -1

    def route(self, keys):
        turns = self.turns[self.turns != self.busiest]
        out = turns[(self.next + np.arange(len(keys))) % len(turns)].astype(np.int32)
        self.next += len(keys)
        return out

    def listen(self, feedback):
        self.busiest = feedback

    def shares(self):
        return np.bincount(self.turns, minlength=self.n).tolist()

    def counters(self):
        return {"next": np.array([self.next], np.int64)}

    def restore(self, counters):
        self.next = int(counters["next"][0])


class Peak(Operator):
    """Remembers the greatest value of a column per key, and emits it whenever it rises."""

    stateful = True

    def __init__(self, column: str) -> None:
        self.column = column

    @property
    def mergeable(self):
        return True

    def needs(self, schema):
        return {self.column}

    def emits(self, schema):
        return pa.schema([(self.column, pa.int64())])

    def updates(self, schema, heads):
        return pa.schema([*heads, ("peak", pa.int64())])

    def state_schema(self, schema):
        return pa.schema([("peak", pa.int64())])

    def signature(self):
        return {"kind": "Peak", "column": self.column}

    def instance(self, context):
        return _PeakInstance(self, context)


class _PeakInstance(Instance):
    def __init__(self, operator: Peak, context: Context) -> None:
        super().__init__(context)
        self.operator = operator
        self.parts: list[pa.Table] = []
        self._risen: pa.Table | None = None
        self._entries: pa.Table | None = None

    def push(self, rows: Rows) -> Iterator[Rows]:
        key = self.node.key
        columns = [
            pa.array(rows.hash(key)),
            pa.array(self.node.second_hash(rows)),
            *(rows.column(k) for k in key),
        ]
        values = rows.column(self.operator.column).cast(pa.int64())
        self.parts.append(pa.Table.from_arrays([*columns, values], schema=keyed_schema(self.node.state)))
        return iter(())

    def absorb(self, partial):
        self.parts.append(pa.Table.from_batches([partial]))

    def _greatest(self, parts):
        table = pa.concat_tables(parts).combine_chunks()
        groups, first = group_rows(table[H1].to_numpy(), table[H2].to_numpy())
        peaks = np.full(len(first), np.iinfo(np.int64).min)
        np.maximum.at(peaks, groups, table["peak"].to_numpy())
        table = table.take(pa.array(first))
        return table.set_column(table.num_columns - 1, "peak", pa.array(peaks))

    def partials(self):
        early = self.context.step < self.node.state_level
        return self._greatest(self.parts) if early and self.parts else None

    def finish(self) -> Iterator[Rows]:
        if self.context.step != self.node.state_level or not self.parts:
            return
        table = self._greatest(self.parts)
        key_hash, key_check = table[H1].to_numpy(), table[H2].to_numpy()
        view = self.context.view()
        prior, positions = view.take(*view.find(key_hash, key_check))
        before = np.full(len(table), np.iinfo(np.int64).min)
        before[positions] = prior["peak"].to_numpy()
        risen = table["peak"].to_numpy() > before
        self.report.keys_delta += len(table) - prior.num_rows
        table, key_hash, key_check = table.filter(pa.array(risen)), key_hash[risen], key_check[risen]
        self._risen = table
        self._entries = entries(table.select(self.node.state.names), key_hash, key_check)
        if len(table):
            batch = table.select(self.node.sink_out.names).cast(self.node.sink_out).combine_chunks()
            yield Rows(batch.to_batches()[0])

    def written(self):
        return self._entries
