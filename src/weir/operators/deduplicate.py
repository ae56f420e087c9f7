"""Deduplicate: pass on one row of a key and drop the others, within a bound of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.columns import check_column
from weir.compiled import compiled
from weir.errors import TopologyError
from weir.operators.base import Operator
from weir.operators.initial import checked_rows, key_hashes, times_of
from weir.operators.instance import BufferingInstance, Context, Instance, conformed, hashes_of
from weir.operators.timers import second_hash
from weir.operators.windows import on_time
from weir.rows import Rows, row_hashes
from weir.state.index import group_rows
from weir.state.segment import H1, NEVER, entries, tombstones

if TYPE_CHECKING:
    from weir.graph.model import Node

KEY2, TIME = "__key", "passed_at"


@compiled("int64[]", "int64[]", "int64[]", "int64[]", "int64[]", "int64", "out bool[]")
def _passing(groups, times, starts, ends, saved, within, out):  # type: ignore[no-untyped-def]
    """Which rows, in order of group and time, are so far from every row of their group that has passed."""
    last = np.int64(0)  # the time of the last row that passed, of the group ``owner``
    owner = np.int64(-1)
    for i in range(len(groups)):
        g, t = groups[i], times[i]
        if owner == g and t - last < within:
            continue
        free = True
        for j in range(starts[g], ends[g]):
            if abs(t - saved[j]) < within:
                free = False
                break
        if free:
            out[i] = True
            owner, last = g, t


class Deduplicate(Operator):
    """Passes on a row unless one of its key has passed less than ``within`` before or after it.

    ``stream.deduplicate(key, …)`` makes one. Rows of a batch are looked at in order of time, then of content, so the
    answer depends on the rows of each batch alone.

    ``within`` and ``lateness`` are in µs. A time that passed is remembered until the watermark is ``within`` past it;
    without ``within`` for ever. Rows older than the watermark, and rows without a time, are dropped and counted
    (``late``). Without ``time``, the wall clock counts at which the batch was planned.
    """

    stateful = True
    emits_early = True
    waits = True

    def __init__(self, within: int | None = None, time: str | None = None, lateness: int = 0) -> None:
        if (within is not None and within <= 0) or lateness < 0:
            raise TopologyError("deduplicate: within= must be positive, lateness= cannot be negative")
        if time is not None and within is None:
            raise TopologyError("deduplicate: time= is for a bound: give within=, too")
        self.within, self.time = within, time
        self.lateness, self.time_columns = (None, ()) if time is None else (lateness, (time,))

    def check(self, schema: pa.Schema, where: str) -> None:
        if self.time is not None:
            check_column(self.time, schema, where, "its time", timestamp=True)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([(KEY2, pa.uint64()), (TIME, pa.int64())])

    def initial(self, node: Node, rows: pa.Table, clock: int) -> pa.Table:
        """Return what says that keys have passed: at ``passed_at``, or now where rows have no time."""
        optional = () if self.time is not None else (TIME,)
        data = checked_rows(node, rows, {} if self.within is None else {TIME: None}, optional)
        if TIME in data.column_names:
            passed = times_of(data[TIME])
        else:
            passed = np.full(data.num_rows, 0 if self.within is None else clock)
        return _passed([data[k] for k in node.key], *key_hashes(node, data), passed, self.within, node)

    def instance(self, context: Context) -> Instance:
        return _DeduplicateInstance(context)

    def signature(self) -> dict[str, Any]:
        return {"kind": "Deduplicate", "within": self.within, "time": self.time}


class _DeduplicateInstance(BufferingInstance):
    def finish(self) -> Iterator[Rows]:
        if self.context.step != self.node.level:
            return
        written = []
        if len(rows := self.arrived()):
            passed, table = self._pass(*self._on_time(rows))
            written.append(table)
            self.report.keys_delta += table.num_rows
            yield from self.emitted(passed)
        if self.operator.within is not None:  # times that no row can be near to any more
            gone = self.due(self.operator.time is not None, written)
            self.report.keys_delta -= gone.num_rows
            written.append(tombstones(*hashes_of(gone), self.node.state))
        self._written = pa.concat_tables(written) if written else None

    def _on_time(self, rows: Rows) -> tuple[Rows, NDArray[np.int64]]:
        operator, clock = self.operator, self.context.clock
        if operator.time is not None:
            return on_time(self.context, operator.time, rows, lambda t: t + 1)
        return rows, np.full(len(rows), 0 if operator.within is None else clock)

    def _pass(self, rows: Rows, times: NDArray[np.int64]) -> tuple[pa.RecordBatch, pa.Table]:
        """Return the rows that pass, and an entry for each."""
        node, within = self.node, self.operator.within or 1
        batch = rows.to_batch(node.input)
        key_hash, key_check = rows.hash(node.key), node.second_hash(rows)
        saved = self.context.view().all_of(np.unique(key_hash))
        both = [
            np.concatenate([key_hash, saved[H1].to_numpy()]),
            np.concatenate([key_check, saved[KEY2].to_numpy()]),
        ]
        groups, first = group_rows(*both)
        self.report.pairs += len(np.unique(groups[: len(key_hash)]))
        before = np.argsort(groups[len(key_hash) :], kind="stable")
        numbers = groups[len(key_hash) :][before]
        starts, ends = (np.searchsorted(numbers, np.arange(len(first)), side) for side in ("left", "right"))
        r1, r2 = row_hashes(batch)
        groups = groups[: len(key_hash)]
        order = np.lexsort((r2, r1, times, groups))
        chosen = np.zeros(len(order), np.bool_)
        passed_at = saved[TIME].to_numpy()[before]
        _passing(groups[order], times[order], starts, ends, passed_at, within, chosen)
        at = np.sort(order[chosen])
        passed = batch.take(pa.array(at))
        columns = [passed.column(k) for k in node.key]
        return passed, _passed(columns, key_hash[at], key_check[at], times[at], self.operator.within, node)


def _passed(
    key: list[Any],
    key_hash: NDArray[np.uint64],
    key_check: NDArray[np.uint64],
    times: NDArray[np.int64],
    within: int | None,
    node: Node,
) -> pa.Table:
    """Return entries that say when keys have passed."""
    table = conformed([*key, pa.array(key_check), pa.array(times)], node.state)
    deadline = np.full(len(times), NEVER) if within is None else times + within
    return entries(table, key_hash, second_hash(key_check, times), deadline=deadline)
