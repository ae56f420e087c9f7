"""Dalton: where a hot key's rows go is learnt row by row, by balance and by how far the key is spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir.compiled import compiled
from weir.errors import ParameterError
from weir.hashing import mixed
from weir.routing.base import Counters, CountingGrouping, Instances, Keys, RouterContext
from weir.routing.partial_key import LoadRouter, pick, taken
from weir_evaluation.routing.heavy_hitters import ROWS, SKETCH, SpaceSaving, decay, touch


@dataclass(frozen=True)
class Dalton(CountingGrouping):
    """A contextual bandit per hot key: each row tries an instance, and its reward decides where the next ones go.

    A row of a hot key goes to the instance of the highest value for that key, or, with probability ``explore``, to
    any. The reward is low where the instance is fuller than the average, and where the key has not been in this
    window, since another partial state must be merged. All other keys go by their hash.

    Parameters
    ----------
    window
        Rows per window. Loads and counts are halved after each, and where keys have been is forgotten.
    spread
        Weight of merging against balance, from 0 to 1.
    rate
        How much of the difference between reward and value a row adds to the value.
    explore
        Part of the rows of hot keys that try any instance.
    threshold
        Share of the rows from which a key is hot; ``1/(5n)`` if None.

    **Guarantee.** Keys that have never been hot stay on one instance.

    Notes
    -----
    Written after the paper's description of its states, actions and the two parts of its reward; the weights and the
    size of the window are ours. The paper's sources also exchange what they have learnt; these do not.

    References
    ----------
    E. Zapridou, I. Mytilinis, A. Ailamaki: Dalton: learned partitioning for distributed data streams. PVLDB 16(3),
    2022.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> keys = np.where(rng.random(100_000) < 0.5, 1, rng.integers(2, 5000, 100_000)).astype(np.uint64)
    >>> loads = np.bincount(Dalton().router(10).route(keys))
    >>> bool(loads.max() < 1.15 * loads.mean())
    True
    """

    window: int = 10_000
    spread: float = 0.3
    rate: float = 0.3
    explore: float = 0.01
    threshold: float | None = None
    name: ClassVar[str] = "Dalton"

    def __post_init__(self) -> None:
        shares = self.spread, self.rate, self.explore, self.threshold or 0.0
        if self.window < 1 or not all(0 <= share <= 1 for share in shares):
            raise ParameterError(f"a window has rows, and all else lies between 0 and 1; got {self}")

    def make_router(self, context: RouterContext) -> _DaltonRouter:
        return _DaltonRouter(context.n, self, context.seed)


class _DaltonRouter(LoadRouter):
    def __init__(self, n: int, config: Dalton, seed: int) -> None:
        super().__init__(n, n, seed)
        self.config = config
        self.threshold = 1.0 / (5 * n) if config.threshold is None else config.threshold
        self.sketch = SpaceSaving(int(np.ceil(4 / self.threshold)))
        most = 1 << int(16 / self.threshold).bit_length()  # so that two hot keys seldom share a place
        self._state = np.zeros(2, np.int64)  # rows so far, windows so far
        self._hot = np.zeros(most, np.uint64)
        self._values = np.zeros((most, n), np.float64)
        self._been = np.full((most, n), -1, np.int64)  # the window in which a key was there last

    def counters(self) -> Counters:
        mine = {"state": self._state, "hot": self._hot, "values": self._values, "been": self._been}
        rows = {"counted": np.array([self.sketch.messages])}
        copies = {name: array.copy() for name, array in mine.items()}
        return super().counters() | self.sketch.counters() | copies | rows

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        self.sketch.restore(counters)
        self.sketch.arrays.state[ROWS] = taken(counters, "counted", np.zeros(1, np.int64))[0]
        mine = {"state": self._state, "hot": self._hot, "values": self._values, "been": self._been}
        for name, array in mine.items():
            array[:] = taken(counters, name, array)

    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        config = self.config
        sizes = self.threshold, config.window, config.spread, config.rate, config.explore
        mine = self._state, self._hot, self._values, self._been, self.load
        _route(keys, self.salt, *sizes, *self.sketch.arrays, *mine, out)
        return out


@compiled(
    *("uint64[]", "uint64", "float64", "int64", "float64", "float64", "float64"),
    *SKETCH,
    *("out int64[]", "out uint64[]", "out float64[,]", "out int64[,]", "out int64[]"),
    "out int32[]",
)
def _route(  # type: ignore[no-untyped-def]
    keys,
    salt,
    threshold,
    window,
    spread,
    rate,
    explore,
    entries,
    runs,
    table,
    counts,
    state,
    hot,
    values,
    been,
    load,
    out,
):
    n = len(load)
    total = load.sum()
    for i in range(len(keys)):
        key = keys[i]
        count = touch(entries, runs, table, counts, key)
        hashed = mixed(key ^ salt, np.uint64(1))
        chosen = pick(hashed, n)
        if count > 1 and count > threshold * counts[ROWS]:
            at = np.int64(hashed & np.uint64(len(hot) - 1))
            if hot[at] != key:
                hot[at] = key
                values[at] = 0.0
                been[at] = -1
            drawn = mixed(np.uint64(state[0]) ^ salt, np.uint64(2))
            if np.float64(drawn & np.uint64(0xFFFFFFFF)) < explore * 4294967296.0:
                chosen = pick(drawn, n)
            else:
                for other in range(n):
                    if values[at, other] > values[at, chosen]:
                        chosen = other
            average = total / n
            fuller = (load[chosen] - average) / max(np.float64(load[chosen]), average, 1.0)
            fresh = 1.0 if been[at, chosen] != state[1] else 0.0
            reward = -(1.0 - spread) * fuller - spread * fresh
            values[at, chosen] += rate * (reward - values[at, chosen])
            been[at, chosen] = state[1]
        load[chosen] += 1
        total += 1
        out[i] = chosen
        state[0] += 1
        if state[0] % window == 0:
            state[1] += 1
            decay(entries, runs, table, counts, 0.5)
            for w in range(n):
                load[w] //= 2
            total = load.sum()
