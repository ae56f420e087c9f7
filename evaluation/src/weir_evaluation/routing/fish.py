"""FISH: more homes for what is hot *now*, and the one with the shortest inferred wait gets the row."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from weir.compiled import compiled
from weir.errors import ParameterError
from weir.hashing import mixed
from weir.routing.base import (
    Counters,
    CountingGrouping,
    Feedback,
    InstanceLoad,
    Instances,
    Keys,
    RouterContext,
)
from weir.routing.partial_key import LoadRouter, pick, taken
from weir_evaluation.routing.heavy_hitters import COUNT, ROWS, SKETCH, SpaceSaving, decay, touch


@dataclass(frozen=True)
class Fish(CountingGrouping):
    """Hot keys are those of the last epochs; the hotter one is, the more instances may take its rows.

    Each source counts keys in bounded memory. After every epoch all counts are multiplied by ``decay``, so a key that
    was hot long ago is hot no more. The hottest key may go to all instances; one that is half, a quarter … as
    frequent to half, a quarter … of them, and to two at least. Among its candidates a row goes where it waits the
    least: the rows sent and not yet worked off, times the seconds that a row takes there. Both are inferred from
    what the source has sent and from the pace of the instances, without asking them.

    Parameters
    ----------
    epoch
        Rows between two decays.
    counters
        Keys that are counted at a time.
    decay
        What is left of a count after an epoch.

    **Guarantee.** Keys that are not hot reach at most two instances.

    Notes
    -----
    A key is hot above ``1/(4n)`` of the decayed rows. The paper's sources look at the clock; routers here have none,
    so that a replayed batch routes as before. A period is taken to be as long as its busiest instance was busy. The
    paper finds candidates by consistent hashing; here they follow each other from a start by a stride, both drawn by
    the key, so fewer candidates are always the first of more. Counts are whole numbers, rounded down.

    References
    ----------
    Y. Huang: Efficient time-evolving stream processing at scale. arXiv:1806.00760, 2018.

    Examples
    --------
    Key 1 is hot in the first half, key 2 in the second. Few rows later FISH has forgotten the first.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> hot = np.repeat([1, 2], 20_000)
    >>> keys = np.where(rng.random(40_000) < 0.5, hot, rng.integers(3, 5000, 40_000)).astype(np.uint64)
    >>> router = Fish().router(10)
    >>> loads = np.bincount(router.route(keys))
    >>> bool(loads.max() < 1.01 * loads.mean()), router.hot().tolist()
    (True, [2])
    """

    epoch: int = 1000
    counters: int = 1000
    decay: float = 0.2
    name: ClassVar[str] = "FISH"
    follows_load: ClassVar[bool] = True  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.epoch < 1 or self.counters < 1:
            raise ParameterError(f"Fish needs at least one row per epoch and one counter, got {self}")
        if not 0 <= self.decay <= 1:
            raise ParameterError(f"decay is what is left of a count, from 0 to 1; got {self.decay}")

    def make_router(self, context: RouterContext) -> FishRouter:
        return FishRouter(context.n, self, context.seed)

    def feedback(self, load: InstanceLoad) -> Feedback:
        return {"rows": load.rows.tolist(), "busy": load.busy.tolist()}


class FishRouter(LoadRouter):
    """Routes by :class:`Fish`; ``load`` counts the rows of this source that are not worked off yet."""

    def __init__(self, n: int, config: Fish, seed: int) -> None:
        super().__init__(n, n, seed)
        self.config = config
        self.strides = np.array([s for s in range(1, n + 1) if gcd(s, n) == 1], dtype=np.int64)
        self.sketch = SpaceSaving(config.counters)
        self._left = np.full(1, config.epoch, np.int64)  # rows of this epoch that are to come
        self._seconds = np.ones(n, np.float64)  # that a row takes on each instance; only their ratios count
        self._sent = np.zeros(n, np.int64)  # since the last report

    def hot(self) -> Keys:
        """Return the hashes of the keys that are hot now, the hottest first."""
        keys, counts, _ = self.sketch.heaviest()
        return keys[(counts > 1) & (counts * 4 * self.n > self.sketch.messages)]

    def counters(self) -> Counters:
        mine = {"left": self._left.copy(), "seconds": self._seconds.copy(), "sent": self._sent.copy()}
        rows = {"counted": np.array([self.sketch.messages])}  # more than the counts that are left add up to
        return super().counters() | self.sketch.counters() | mine | rows

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        self.sketch.restore(counters)
        self.sketch.arrays.state[ROWS] = taken(counters, "counted", self._left)[0]
        for name, mine in (("left", self._left), ("seconds", self._seconds), ("sent", self._sent)):
            mine[:] = taken(counters, name, mine)

    def listen(self, feedback: Feedback) -> None:
        rows, busy = np.asarray(feedback["rows"]), np.asarray(feedback["busy"])
        worked = (rows > 0) & (busy > 0)
        if not worked.any():
            return
        pace = busy[worked] / rows[worked]
        self._seconds[:] = np.median(pace)  # of instances that nothing has reached yet
        self._seconds[worked] = pace
        mine = min(
            1.0, self._sent.sum() / rows.sum()
        )  # the part of their time that they have for this source
        done = np.rint(mine * busy.max() / self._seconds).astype(np.int64)
        self.load[:] = np.maximum(0, self.load - done)
        self._sent[:] = 0

    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        sizes = self.config.epoch, self.config.decay
        mine = self._left, self._seconds, self.strides, self.load
        _route(keys, self.salt, *sizes, *self.sketch.arrays, *mine, out)
        self._sent += np.bincount(out, minlength=self.n)
        return out


@compiled(
    *("uint64[]", "uint64", "int64", "float64"),
    *SKETCH,
    *("out int64[]", "float64[]", "int64[]", "out int64[]"),
    "out int32[]",
)
def _route(  # type: ignore[no-untyped-def]
    keys, salt, epoch, factor, entries, runs, table, state, left, seconds, strides, load, out
):
    n = len(load)
    for i in range(len(keys)):
        count = touch(entries, runs, table, state, keys[i])
        candidates = min(2, n)
        if count > 1 and count * 4 * n > state[ROWS]:
            hottest = entries[len(entries) - 1, COUNT]
            half = n
            while half > 2 and hottest >= 2 * count:
                hottest //= 2
                half //= 2
            candidates = max(candidates, half)
        hashed = mixed(keys[i] ^ salt, np.uint64(3))
        at = pick(hashed, n)
        stride = strides[pick(hashed << np.uint64(32), len(strides))]
        chosen = at
        for _ in range(1, candidates):
            at += stride
            if at >= n:
                at -= n
            if (load[at] + 1) * seconds[at] < (load[chosen] + 1) * seconds[chosen]:
                chosen = at
        load[chosen] += 1
        out[i] = chosen
        left[0] -= 1
        if left[0] == 0:
            decay(entries, runs, table, state, factor)
            left[0] = epoch
