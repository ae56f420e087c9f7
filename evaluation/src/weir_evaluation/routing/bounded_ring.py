"""Consistent hashing with bounded loads (CH): clockwise to the first bin with room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled
from weir.hashing import mix, mixed
from weir.routing.base import Counters, CountingGrouping, Instances, Keys, Router, RouterContext
from weir.routing.partial_key import LoadRouter
from weir.routing.random_choices import check_bounds


@dataclass(frozen=True)
class BoundedRing(CountingGrouping):
    """Keys and virtual workers are points on a circle; a row goes clockwise to the first with room.

    Room is defined as in :class:`~weir_evaluation.routing.RandomChoices`. The difference is the order:
    what overflows here lands on the *neighbour*, together with the overflow of everybody before it, so
    neighbours of hot keys fill up in a row and push their own light keys onwards. Memory suffers.

    Parameters
    ----------
    epsilon
        How far above the average a virtual worker may fill.
    virtual
        Points on the circle per instance.

    **Guarantee.** After ``m`` rows no virtual worker holds more than ``ceil((1 + epsilon) · m / v)``,
    ``v = virtual · n``.

    References
    ----------
    V. Mirrokni, M. Thorup, M. Zadimoghaddam: Consistent hashing with bounded loads. SODA 2018.

    Examples
    --------
    >>> import numpy as np
    >>> one_key = np.full(8, 77, dtype=np.uint64)
    >>> BoundedRing(epsilon=0.5, virtual=1).router(4, seed=1).route(one_key).tolist()
    [3, 0, 3, 0, 2, 3, 0, 2]
    """

    epsilon: float = 0.01
    virtual: int = 10
    name: ClassVar[str] = "CH"

    def __post_init__(self) -> None:
        check_bounds(self.epsilon, self.virtual)

    def make_router(self, context: RouterContext) -> Router:
        return _RingRouter(context.n, self.virtual * context.n, self.epsilon, context.seed)


class _RingRouter(LoadRouter):
    """Bins are numbered in ring order, so that clockwise is +1."""

    def __init__(self, n: int, bins: int, epsilon: float, seed: int) -> None:
        super().__init__(n, bins, seed)
        self.growth = (1.0 + epsilon) / bins
        points = mix(np.arange(bins, dtype=np.uint64) ^ self.salt, np.uint64(0x4149))
        order = np.argsort(points, kind="stable")
        self.points: NDArray[np.uint64] = points[order]
        self.owner: NDArray[np.int32] = (order % n).astype(np.int32)
        # The circle cut into 2^bits arcs: the first bin at or after each cut, so a look-up scans ~1 point.
        self.bits = max(1, int(4 * bins - 1).bit_length())
        cuts = np.arange(1 << self.bits, dtype=np.uint64) << np.uint64(64 - self.bits)
        self.first = np.searchsorted(self.points, cuts, side="left").astype(np.int32)
        self._forget()

    def _forget(self) -> None:
        # While the capacity stands, a full bin stays full: `beyond` leads from it to the next that may
        # have room, with path halving. A shortcut only; nothing depends on it.
        self._beyond = np.arange(len(self.load), dtype=np.int64)
        self._level = np.zeros(1, dtype=np.int64)

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        self._forget()

    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        mine = self.load, self.owner, self.points, self.first, self.bits, self._beyond, self._level
        _route(keys, self.salt, self.growth, self.messages, *mine, out)
        return out


@compiled(
    "uint64[]",
    *("uint64", "float64", "int64"),
    *("out int64[]", "int32[]", "uint64[]", "int32[]", "int64", "out int64[]", "out int64[]"),
    "out int32[]",
)
def _route(  # type: ignore[no-untyped-def]
    keys, salt, growth, messages, load, owner, points, first, bits, beyond, level, out
):
    bins = len(load)
    for i in range(len(keys)):
        messages += 1
        capacity = np.int64(np.ceil(growth * messages))
        if capacity != level[0]:
            level[0] = capacity
            for b in range(bins):
                beyond[b] = b
        place = mixed(keys[i] ^ salt, np.uint64(0))
        at = np.int64(first[place >> np.uint64(64 - bits)])
        while at < bins and points[at] < place:
            at += 1
        if at == bins:
            at -= bins
        while True:
            while beyond[at] != at:
                beyond[at] = beyond[beyond[at]]
                at = beyond[at]
            if load[at] < capacity:
                break
            beyond[at] = at + 1 if at + 1 < bins else 0
        load[at] += 1
        out[i] = owner[at]
