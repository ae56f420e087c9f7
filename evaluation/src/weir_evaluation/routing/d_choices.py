"""D-Choices: two homes for a light key, just enough homes for a heavy one."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from weir.compiled import compiled, helper
from weir.errors import ParameterError
from weir.hashing import mixed
from weir.routing.base import Counters, CountingGrouping, Instances, Keys, RouterContext
from weir.routing.partial_key import emptier_of_two, pick, taken
from weir_evaluation.routing.heavy_hitters import COUNT, ROWS, SKETCH, touch
from weir_evaluation.routing.w_choices import HeavyRouter, check_threshold, least_loaded

_REVIEW = 10_000  # rows between two computations of d


@dataclass(frozen=True)
class DChoices(CountingGrouping):
    """Partial key grouping, except that heavy keys get ``d`` choices, the fewest that can balance them.

    ``d`` follows from the shares of the heavy keys, which each source estimates with SpaceSaving and reviews
    every 10,000 rows: for each prefix of the heavy keys, what must land on the instances they can reach
    has to fit there. When no ``d < n`` will do, heavy keys go to the least loaded of all (W-Choices).

    Parameters
    ----------
    threshold
        Share of the rows from which a key is heavy; ``1/(5n)`` if None.
    epsilon
        Imbalance that is accepted, as a share of all rows.

    **Guarantee.** Light keys reach at most two instances as long as they are light, heavy keys at most the
    largest ``d`` in force, unless W-Choices takes over.

    References
    ----------
    M. A. U. Nasir, G. De Francisci Morales, N. Kourtellis, M. Serafini: When two choices are not enough:
    balancing at scale in distributed stream processing. ICDE 2016.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> keys = np.where(rng.random(50_000) < 0.2, 1, rng.integers(2, 5000, 50_000)).astype(np.uint64)
    >>> router = DChoices().router(20)
    >>> loads = np.bincount(router.route(keys))
    >>> router.d, bool(loads.max() < 1.01 * loads.mean())
    (6, True)
    """

    threshold: float | None = None
    epsilon: float = 1e-4
    name: ClassVar[str] = "D-C"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.epsilon < 0:
            raise ParameterError(f"epsilon must not be negative, got {self.epsilon}")

    def make_router(self, context: RouterContext) -> DChoicesRouter:
        return DChoicesRouter(context.n, self.threshold, self.epsilon, context.seed)


class DChoicesRouter(HeavyRouter):
    """Routes by :class:`DChoices`; ``d`` is the number of choices now in force for heavy keys."""

    def __init__(self, n: int, threshold: float | None, epsilon: float, seed: int) -> None:
        super().__init__(n, threshold, seed)
        self.epsilon = epsilon
        self.strides = np.array([s for s in range(1, n + 1) if gcd(s, n) == 1], dtype=np.int64)
        self._memo = np.zeros((1024, 4), dtype=np.int64)
        self._d = np.full(1, min(2, n), dtype=np.int64)

    @property
    def d(self) -> int:
        return int(self._d[0])

    def counters(self) -> Counters:
        return super().counters() | {"d": self._d.copy()}

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        self._memo[:] = 0
        self._d[:] = taken(counters, "d", self._d)

    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        mine = self.load, self.least, self.strides, self._memo, self._d
        _route(keys, self.salt, self.threshold, self.epsilon, *self.sketch.arrays, *mine, out)
        return out


@helper
def _choices(entries, rows, threshold, epsilon, n):  # type: ignore[no-untyped-def]
    """The least d for which every prefix of the heavy keys fits on the instances that it can reach."""
    top = len(entries) - 1
    heavy = 0
    head = 0.0
    while heavy <= top and entries[top - heavy, COUNT] > threshold * rows:
        head += entries[top - heavy, COUNT] / rows
        heavy += 1
    if heavy == 0:
        return min(2, n)
    d = max(2, int(np.ceil(entries[top, COUNT] / rows * n)))
    while d < n:
        fits = True
        prefix = 0.0
        for h in range(1, heavy + 1):
            prefix += entries[top - h + 1, COUNT] / rows
            reach = n - n * ((n - 1) / n) ** (h * d)
            share = reach / n
            must = prefix + share**d * (head - prefix) + share**2 * max(0.0, 1.0 - head)
            if must > reach * (1.0 / n + epsilon):
                fits = False
                break
        if fits:
            return d
        d += 1
    return n


@helper
def _emptiest(key, salt, d, load, strides, memo):  # type: ignore[no-untyped-def]
    """The first least loaded of a key's ``d`` choices: a start, and a stride coprime to n, so all differ.

    The memo (key, d, a lower bound of the choices' loads, the first choice that may be as low) saves most of
    the search: loads only grow, so what was above the bound stays above it. It changes no answer.
    """
    n = len(load)
    hashed = mixed(key ^ salt, np.uint64(3))
    start = pick(hashed, n)
    stride = strides[pick(hashed << np.uint64(32), len(strides))]
    note = memo[np.int64(hashed & np.uint64(len(memo) - 1))]
    if note[0] == np.int64(key) and note[1] == d:
        at = (start + note[3] * stride) % n
        for i in range(note[3], d):
            if load[at] <= note[2]:
                note[3] = i
                return at
            at += stride
            if at >= n:
                at -= n
    at = start
    chosen = start
    note[0] = np.int64(key)
    note[1] = d
    note[2] = load[start]
    note[3] = 0
    for i in range(1, d):
        at += stride
        if at >= n:
            at -= n
        if load[at] < note[2]:
            note[2] = load[at]
            note[3] = i
            chosen = at
    return chosen


@compiled(
    *("uint64[]", "uint64", "float64", "float64"),
    *SKETCH,
    *("out int64[]", "out int64[]", "int64[]", "out int64[,]", "out int64[]"),
    "out int32[]",
)
def _route(  # type: ignore[no-untyped-def]
    keys, salt, threshold, epsilon, entries, runs, table, state, load, least, strides, memo, d, out
):
    n = len(load)
    for i in range(len(keys)):
        key = keys[i]
        count = touch(entries, runs, table, state, key)
        if state[ROWS] % _REVIEW == 0:
            d[0] = _choices(entries, state[ROWS], threshold, epsilon, n)
        if count > threshold * state[ROWS] and count > 1 and d[0] > 2:
            if d[0] >= n:
                chosen = least_loaded(load, least)
            else:
                chosen = _emptiest(key, salt, d[0], load, strides, memo)
        else:
            chosen = emptier_of_two(key, salt, load)
        load[chosen] += 1
        out[i] = chosen
