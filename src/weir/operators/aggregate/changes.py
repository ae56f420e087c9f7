"""Aggregates that tell what has changed: new values beside old ones, for sinks that must take the old ones back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.aggregate.aggregate import AggregateInstance
from weir.operators.instance import one_array
from weir.state.index import group_rows
from weir.state.segment import H1, H2


class ChangesInstance(AggregateInstance):
    """Emits one row per key that has changed, with the values from before and after."""

    def _told(self) -> pa.RecordBatch | None:
        parts = []
        if self._result is not None and self._result.num_rows:
            assert self._prior is not None
            at = _positions(self._result, self._prior)
            old = [c.take(pa.array(at, mask=at < 0)) for c in self._values(self._prior)]
            kinds = pa.array(np.where(at < 0, "insert", "update"))
            parts.append([*self._keys(self._result), kinds, *self._values(self._result), *old])
        if self._gone is not None and self._gone.num_rows:
            old = self._values(self._gone)
            nothing = [pa.nulls(len(c), c.type) for c in old]
            kinds = pa.array(["delete"] * self._gone.num_rows)
            parts.append([*self._keys(self._gone), kinds, *nothing, *old])
        if not parts:
            return None
        batches = [pa.RecordBatch.from_arrays(columns, schema=self.node.sink_out) for columns in parts]
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]

    def _keys(self, table: pa.Table) -> list[pa.Array]:
        return [one_array(table[k]) for k in self.node.key]

    def _values(self, table: pa.Table) -> list[pa.Array]:
        first = table.column_names.index(self.schema.names[self.width])
        return list(self.operator.finish([one_array(c) for c in table.columns[first:]]))


def _positions(table: pa.Table, among: pa.Table) -> np.ndarray:
    """Return where the key of each entry is among others; −1 where it is not."""
    n = table.num_rows
    both = (np.concatenate([table[h].to_numpy(), among[h].to_numpy()]) for h in (H1, H2))
    groups, first = group_rows(*both)
    at = np.full(len(first), -1, np.int64)
    at[groups[n:]] = np.arange(among.num_rows)
    return at[groups[:n]]
