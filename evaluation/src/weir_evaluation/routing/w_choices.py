"""W-Choices: two homes for a light key, every instance for a heavy one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir.compiled import compiled, helper
from weir.errors import ParameterError
from weir.routing.base import Counters, CountingGrouping, Instances, Keys, Router, RouterContext
from weir.routing.partial_key import LoadRouter, emptier_of_two, taken
from weir_evaluation.routing.heavy_hitters import ROWS, SKETCH, SpaceSaving, touch


def check_threshold(threshold: float | None) -> None:
    """Refuses a share of rows that is none."""
    if threshold is not None and not 0 < threshold < 1:
        raise ParameterError(f"threshold is a share of the rows, between 0 and 1; got {threshold}")


@dataclass(frozen=True)
class WChoices(CountingGrouping):
    """Partial key grouping, except that heavy keys may go to the least loaded of *all* instances.

    Each source finds its heavy keys itself, with SpaceSaving in bounded memory. All other keys keep PKG's
    two homes, so only the handful of keys that break PKG's balance costs more memory.

    Parameters
    ----------
    threshold
        Share of the rows from which a key is heavy; ``1/(5n)`` if None, the skew up to which two choices
        are provably enough.

    **Guarantee.** Light keys reach at most two instances as long as they are light. Rows of heavy keys always
    go to an instance with the least load, so they never raise the imbalance.

    References
    ----------
    M. A. U. Nasir, G. De Francisci Morales, N. Kourtellis, M. Serafini: When two choices are not enough:
    balancing at scale in distributed stream processing. ICDE 2016.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> keys = np.where(rng.random(10_000) < 0.6, 1, rng.integers(2, 500, 10_000)).astype(np.uint64)
    >>> loads = np.bincount(WChoices().router(10).route(keys))
    >>> int(loads.max() - loads.min())
    2
    """

    threshold: float | None = None
    name: ClassVar[str] = "W-C"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def make_router(self, context: RouterContext) -> Router:
        return _WChoicesRouter(context.n, self.threshold, context.seed)


class HeavyRouter(LoadRouter):
    """A router that knows its heavy keys."""

    def __init__(self, n: int, threshold: float | None, seed: int) -> None:
        super().__init__(n, n, seed)
        self.threshold = 1.0 / (5 * n) if threshold is None else threshold
        # Four times the counters that could be heavy: a light key's over-count stays below the threshold.
        self.sketch = SpaceSaving(int(np.ceil(4 / self.threshold)))
        self.least = np.zeros(2, dtype=np.int64)  # a lower bound of all loads; where to look next

    def counters(self) -> Counters:
        return super().counters() | self.sketch.counters() | {"least": self.least.copy()}

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        self.sketch.restore(counters)
        self.least[:] = taken(counters, "least", self.least)


class _WChoicesRouter(HeavyRouter):
    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        _route(keys, self.salt, self.threshold, *self.sketch.arrays, self.load, self.least, out)
        return out


@helper
def least_loaded(load, least):  # type: ignore[no-untyped-def]
    """An instance of least load, searched in turn: loads only grow, so one lap per level is enough."""
    n = len(load)
    at = least[1]
    for _ in range(n):
        if load[at] <= least[0]:
            least[1] = at
            return at
        at = at + 1 if at + 1 < n else 0
    at = 0
    for i in range(1, n):
        if load[i] < load[at]:
            at = i
    least[0] = load[at]
    least[1] = at
    return at


@compiled("uint64[]", "uint64", "float64", *SKETCH, "out int64[]", "out int64[]", "out int32[]")
def _route(keys, salt, threshold, entries, runs, table, state, load, least, out):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        count = touch(entries, runs, table, state, keys[i])
        if count > threshold * state[ROWS] and count > 1:
            chosen = least_loaded(load, least)
        else:
            chosen = emptier_of_two(keys[i], salt, load)
        load[chosen] += 1
        out[i] = chosen
