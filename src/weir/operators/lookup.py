"""Lookup: a stream joined with a table that changes, the latest row per key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.columns import check_column
from weir.errors import TopologyError
from weir.operators.aggregate.aggregate_functions import is_ordered
from weir.operators.base import Operator, side_schema
from weir.operators.initial import plain_entries
from weir.operators.instance import BufferingInstance, Context, Instance, conformed, record_batch
from weir.operators.join import check_joined, joined_schema, key_columns
from weir.rows import Rows, row_hashes
from weir.state.index import group_rows
from weir.state.segment import entries

if TYPE_CHECKING:
    from weir.graph.model import Node

U64 = NDArray[np.uint64]


class Lookup(Operator):
    """Adds to each row what a table says about its key at that time; ``stream.lookup(table, …)`` makes one.

    The table is a stream of its rows as they change; the latest of a key counts. In a batch all changes of the table
    come first, then the stream's rows see them. Rows that were emitted are not corrected by later changes.

    By ``latest``, of two rows of a key the one with the greater value counts, whenever it arrives; of equals the later
    one. Without it the row of the later batch counts; which one of a batch, their content decides.
    :meth:`weir.Stream.lookup` explains the other parameters.
    """

    stateful = True
    emits_early = True
    waits = True
    sides = 2

    def __init__(
        self,
        how: str = "left",
        latest: str | None = None,
        deleted: str | None = None,
        suffix: str = "_right",
    ) -> None:
        if how not in ("inner", "left"):
            raise TopologyError(f'lookup: how is "inner" or "left", not {how!r}')
        self.how, self.latest, self.deleted, self.suffix = how, latest, deleted, suffix
        self.outer_sides = (0,) if how == "left" else ()

    def check(self, schema: pa.Schema, where: str) -> None:
        table = side_schema(schema, 1, key_columns(schema))
        for column in filter(None, (self.latest, self.deleted)):
            check_column(column, table, where, side="table")
        if self.latest is not None and not is_ordered(table.field(self.latest).type):
            raise TopologyError(
                f"{where}: latest={self.latest!r} is {table.field(self.latest).type}, not a value to order by"
            )
        if self.deleted is not None and not pa.types.is_boolean(table.field(self.deleted).type):
            raise TopologyError(f"{where}: deleted={self.deleted!r} is not a boolean column")
        check_joined(self.emits(schema), where)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return joined_schema(schema, self.suffix)

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        return side_schema(schema, 1, ())

    def initial(self, node: Node, rows: pa.Table, clock: int) -> pa.Table:
        return plain_entries(node, rows, clock)

    def instance(self, context: Context) -> Instance:
        return _LookupInstance(context)

    def signature(self) -> dict[str, Any]:
        return {"kind": "Lookup", "latest": self.latest}

    def describe(self) -> str:
        return f"Lookup({self.how})"


class _LookupInstance(BufferingInstance):
    def finish(self) -> Iterator[Rows]:
        node = self.node
        stream, changes = self.arrived(0), self.arrived(1)
        if not len(stream) and not len(changes):
            return
        hashes = [
            np.concatenate([one(stream), one(changes)])
            for one in (lambda rows: rows.hash(node.key), node.second_hash)
        ]
        groups, first = group_rows(*hashes)
        key_hash, key_check = (column[first] for column in hashes)
        self.report.pairs += len(first)
        view = self.context.view()
        saved, positions = view.take(*view.find(key_hash, key_check))
        rows = saved.select(node.state.names)
        at = np.full(len(first), -1, np.int64)  # key → its row in the table as it is now
        at[positions] = np.arange(len(positions))
        if len(changes):
            rows = self._changed(changes, groups[len(stream) :], rows, at, key_hash, key_check)
        yield from self.emitted(self._joined(stream, rows, at[groups[: len(stream)]]))

    def _changed(
        self,
        changes: Rows,
        groups: NDArray[np.int64],
        rows: pa.Table,
        at: NDArray[np.int64],
        key_hash: U64,
        key_check: U64,
    ) -> pa.Table:
        """Return the table's rows with the new ones behind them; ``at`` then names the latest of each key."""
        operator, node = self.operator, self.node
        batch = changes.batch
        new = conformed([batch.column(name) for name in node.state.names], node.state)
        listed = np.flatnonzero(at >= 0)
        table = pa.concat_tables([rows.take(pa.array(at[listed])), new])
        r1, r2 = row_hashes(batch)
        none = np.zeros(len(listed), np.uint64)
        ordering = {"g": np.concatenate([listed, groups])}
        if operator.latest is not None:
            ordering["dated"] = table[operator.latest].is_valid()  # rows without a date are the oldest
            ordering["latest"] = table[operator.latest]
        ordering["new"] = np.concatenate([np.zeros(len(listed), np.int8), np.ones(len(groups), np.int8)])
        ordering |= {"y": np.concatenate([none, r1]), "z": np.concatenate([none, r2])}
        keys = [(name, "ascending") for name in ordering]
        order = pc.sort_indices(pa.table(ordering), sort_keys=keys).to_numpy()
        number = ordering["g"][order]
        last = np.ones(len(order), np.bool_)
        last[:-1] = number[1:] != number[:-1]
        chosen = order[last]
        keys_of = ordering["g"][chosen]
        fresh = chosen >= len(listed)
        dead = np.zeros(len(chosen), np.bool_)
        if operator.deleted is not None:
            gone = table[operator.deleted].take(pa.array(chosen)).combine_chunks()
            dead = fresh & np.asarray(pc.fill_null(gone, False).to_numpy(zero_copy_only=False))
        before = at[keys_of] >= 0
        at[keys_of] = np.where(dead, -1, chosen)
        self.report.keys_delta += int((fresh & ~dead & ~before).sum()) - int((dead & before).sum())
        changed = fresh & (~dead | before)
        entry = table.take(pa.array(chosen[changed]))
        owners = keys_of[changed]
        self._written = entries(entry, key_hash[owners], key_check[owners], dead=dead[changed])
        return table

    def _joined(self, stream: Rows, rows: pa.Table, at: NDArray[np.int64]) -> pa.RecordBatch:
        node = self.node
        if self.operator.how == "inner":
            stream, at = stream.select(at >= 0), at[at >= 0]
        matches = pa.array(at, mask=at < 0)
        own = [name for name in node.sides[0].names if name not in node.key]
        table = [name for name in node.state.names if name not in node.key]
        columns = [stream.column(name) for name in [*node.key, *own]]
        columns += [rows[name].take(matches) for name in table]
        return record_batch(columns, node.rows_out)
