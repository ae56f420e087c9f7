"""Numbering of the parts of a fresh partition, so that as little as possible moves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled
from weir.errors import ParameterError


def relabel(
    parts: NDArray[np.int32],
    present: NDArray[np.int32],
    weight: NDArray[np.float64] | None = None,
    n: int | None = None,
) -> NDArray[np.int32]:
    """Return the same partition with its parts renumbered after the servers that hold most of each already.

    ``present`` is the server of each vertex now (−1: none); ``weight`` what moving a vertex costs, one by
    default. The numbering is the one-to-one numbering with the least to move (Hungarian method).

    >>> relabel(np.array([1, 1, 0], np.int32), np.array([0, 0, 1], np.int32)).tolist()
    [0, 0, 1]
    """
    n = int(max(parts.max(initial=0), present.max(initial=0))) + 1 if n is None else n
    placed = present >= 0
    flat = parts[placed].astype(np.int64) * n + present[placed]
    worth = None if weight is None else weight[placed]
    stays = np.bincount(flat, weights=worth, minlength=n * n).reshape(n, n).astype(np.float64)
    return assignment(-stays).astype(np.int32)[parts]


def assignment(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the column of each row in a one-to-one matching of least total cost, in O(n³).

    References
    ----------
    R. Jonker, A. Volgenant. *A shortest augmenting path algorithm for dense and sparse linear assignment
    problems.* Computing 38, 1987.

    Examples
    --------
    >>> assignment(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])).tolist()
    [1, 0, 2]
    """
    rows, columns = cost.shape
    if rows != columns:
        raise ParameterError(f"a matching needs a square matrix, got {rows} × {columns}")
    # one-based, column 0 stands for "the row being placed"
    row_of = np.zeros(rows + 1, np.int64)
    scratch = np.zeros((3, rows + 1)), row_of, np.zeros_like(row_of), np.zeros(rows + 1, np.bool_)
    _match(np.ascontiguousarray(cost, np.float64), *scratch)
    return np.argsort(row_of[1:])


@compiled("float64[,]", "out float64[,]", "out int64[]", "out int64[]", "out bool[]")
def _match(cost, scratch, row_of, way, done):  # type: ignore[no-untyped-def]
    """Set the row of each column."""
    n = len(cost)
    row_price, column_price, distance = scratch[0], scratch[1], scratch[2]
    for i in range(1, n + 1):
        row_of[0] = i
        column = 0
        for j in range(n + 1):
            distance[j] = np.inf
            done[j] = False
        while True:
            done[column] = True
            row = row_of[column]
            step = np.inf
            nearest = -1
            for j in range(1, n + 1):
                if done[j]:
                    continue
                reduced = cost[row - 1, j - 1] - row_price[row] - column_price[j]
                if reduced < distance[j]:
                    distance[j] = reduced
                    way[j] = column
                if distance[j] < step:
                    step = distance[j]
                    nearest = j
            for j in range(n + 1):
                if done[j]:
                    row_price[row_of[j]] += step
                    column_price[j] -= step
                else:
                    distance[j] -= step
            column = nearest
            if row_of[column] == 0:
                break
        while column != 0:
            row_of[column] = row_of[way[column]]
            column = way[column]
