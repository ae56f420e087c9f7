"""Approximate quantiles per group: a KLL sketch each, from Apache DataSketches.

Reference: Z. Karnin, K. Lang, E. Liberty, "Optimal quantile approximation in streams", FOCS 2016.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import TopologyError
from weir.extras import install
from weir.operators.aggregate.aggregate_functions import (
    AggregateFunction,
    Columns,
    Groups,
    Kinds,
    is_number,
    merge_saved,
    valid_rows,
)


def _kll() -> Any:
    try:
        from datasketches import kll_doubles_sketch
    except ImportError:
        raise TopologyError(
            "approx_quantile needs Apache DataSketches where the driver and the executors run: "
            + install("sketches")
        ) from None
    return kll_doubles_sketch


class ApproxQuantile(AggregateFunction):
    """``approx_quantile(c, 0.5)``: the value at a rank; with several ranks, the values as a list.

    The rank of the answer is within 1.33 % of the one asked for, 99 times in 100 (KLL with k = 200); up to some 200
    values it is exact. The sketch draws random numbers: a batch that runs again may answer differently, within that
    error. Some 2 to 5 kB of state per key.
    """

    suffixes = (".sketch",)

    def __init__(self, column: str, *ranks: float) -> None:
        super().__init__(column)
        self.ranks = ranks
        _kll()

    @property
    def arguments(self) -> str:
        return ", ".join([self.columns[0], *(f"{rank:g}" for rank in self.ranks)])

    def accepts(self, kinds: Kinds) -> bool:
        return is_number(kinds[0])

    def result(self, kinds: Kinds) -> pa.DataType:
        return pa.float64() if len(self.ranks) == 1 else pa.list_(pa.field("element", pa.float64()))

    def types(self, kinds: Kinds) -> Kinds:
        return [pa.binary()]

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        valid = valid_rows(columns)
        values = (
            columns[0].cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)[valid]
        )
        groups = groups[valid]
        order = np.argsort(groups, kind="stable")
        values, groups = values[order], groups[order]
        bounds = np.searchsorted(groups, np.arange(n + 1)).tolist()
        sketch = _kll()
        out: list[bytes | None] = []
        for start, end in pairwise(bounds):
            if start == end:
                out.append(None)
                continue
            one = sketch()
            one.update(values[start:end])
            out.append(one.serialize())
        return [pa.array(out, pa.binary())]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        def join(one: Any, other: Any) -> Any:
            one.merge(other)
            return one

        return [
            merge_saved(states[0], groups, n, _kll().deserialize, join, lambda sketch: sketch.serialize())
        ]

    def finish(self, states: Columns) -> pa.Array:
        sketch = _kll()
        ranks = list(self.ranks)
        values = [
            None if s is None else sketch.deserialize(s).get_quantiles(ranks) for s in states[0].to_pylist()
        ]
        if len(ranks) == 1:
            return pa.array([None if v is None else v[0] for v in values], pa.float64())
        return pa.array(values, self.result([pa.float64()]))
