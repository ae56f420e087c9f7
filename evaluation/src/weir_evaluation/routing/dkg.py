"""Heavy keys by table, the rest by hashed buckets (DKG): balance without ever splitting a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, helper
from weir.errors import GroupingError, ParameterError
from weir.hashing import key_group, mix, mixed
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext
from weir.routing.partial_key import pick
from weir_evaluation.routing.heavy_hitters import SpaceSaving


@dataclass(frozen=True)
class HeavyKeys(Grouping):
    """Heavy keys get homes one by one, all others in hashed buckets, so that loads even out.

    Learn the table from a sample with :meth:`learn`; without one this is plain key grouping. Heavy keys and
    buckets of light ones go, the heaviest first, to the instance that has least. A key never has two homes,
    so any operator may stand behind it; the price is that a key with more than ``1/n`` of the rows still
    fills an instance alone.

    Parameters
    ----------
    heavy, homes
        The table of heavy keys: their hashes, and the instance of each.
    buckets
        The instance of each bucket of light keys.
    instances
        The number of instances that the table was learnt for.

    **Guarantee.** One instance per key. On the sample, the fullest instance exceeds the average by less than
    the heaviest single thing placed, be it a key or a bucket.

    References
    ----------
    N. Rivetti, L. Querzoni, E. Anceaume, Y. Busnel, B. Sericola: Efficient key grouping for near-optimal load
    balancing in stream processing systems. DEBS 2015.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> keys = rng.zipf(1.3, 20_000).astype(np.uint64)
    >>> grouping = HeavyKeys.learn(keys, 4)
    >>> loads = np.bincount(grouping.router(4).route(keys))
    >>> round(float(loads.max() / loads.mean()), 2), round(float((keys == 1).mean() * 4), 2)
    (1.04, 1.04)
    """

    heavy: tuple[int, ...] = ()
    homes: tuple[int, ...] = ()
    buckets: tuple[int, ...] = ()
    instances: int = 0
    name: ClassVar[str] = "DKG"
    scales: ClassVar[bool] = False  # type: ignore[misc] # its table is for one number of instances

    def __post_init__(self) -> None:
        if len(self.heavy) != len(self.homes):
            raise ParameterError(f"{len(self.heavy)} heavy keys but {len(self.homes)} homes")
        places = self.homes + self.buckets
        if places and not 0 <= min(places) <= max(places) < self.instances:
            raise ParameterError(f"homes and buckets must name instances 0 … {self.instances - 1}")
        if self.heavy and not self.buckets:
            raise ParameterError(
                "a table of heavy keys needs buckets for all other keys; see HeavyKeys.learn"
            )

    @classmethod
    def learn(cls, sample: Keys, n: int, *, capacity: int | None = None) -> HeavyKeys:
        """A table from a sample of the stream.

        Parameters
        ----------
        sample
            Hashes of keys as the stream brings them.
        n
            Number of instances.
        capacity
            Counters to find heavy keys with; ``20 n`` if None, so that a twentieth of an instance's fair
            share is heavy. There are as many buckets.
        """
        capacity = 20 * n if capacity is None else capacity
        sketch = SpaceSaving(capacity)
        sketch.update(sample)
        keys, counts, errors = sketch.heaviest()
        # Half of a counter's value proven: the rest of the list is noise of the tail.
        proven = counts - errors
        sure = proven * 2 > counts
        keys, proven = keys[sure], proven[sure]
        light = np.bincount(_bucket_of(sample, capacity), minlength=capacity)
        np.subtract.at(light, _bucket_of(keys, capacity), proven)
        weights = np.concatenate([proven, light])
        homes = np.zeros(len(weights), dtype=np.int64)
        load = np.zeros(n, dtype=np.int64)
        # what the sample has not seen weighs a little all the same, or it would pile up on one instance
        weights = np.maximum(weights * n * capacity, 1)
        for at in np.argsort(-weights, kind="stable"):
            homes[at] = load.argmin()
            load[homes[at]] += weights[at]
        h = len(keys)
        return cls(tuple(keys.tolist()), tuple(homes[:h].tolist()), tuple(homes[h:].tolist()), n)

    def make_router(self, context: RouterContext) -> Router:
        if self.buckets and context.n != self.instances:
            raise GroupingError(
                f"this table of heavy keys was learnt for {self.instances} instances, not {context.n}; "
                f"learn it again with HeavyKeys.learn(sample, {context.n})"
            )
        return _HeavyKeysRouter(context.n, self)


class _HeavyKeysRouter(Router):
    def __init__(self, n: int, learnt: HeavyKeys) -> None:
        super().__init__(n)
        heavy, homes = np.array(learnt.heavy, dtype=np.uint64), np.array(learnt.homes, dtype=np.int32)
        size = 1 << max(2, (4 * len(heavy)).bit_length())
        self.keys: NDArray[np.uint64] = np.zeros(size, dtype=np.uint64)
        self.homes: NDArray[np.int32] = np.full(size, -1, dtype=np.int32)
        self.buckets: NDArray[np.int32] = np.array(learnt.buckets, dtype=np.int32)
        _fill(self.keys, self.homes, heavy, homes)

    def route(self, keys: Keys) -> Instances:
        if len(self.buckets) == 0:
            return key_group(keys, self.n)
        out = np.empty(len(keys), dtype=np.int32)
        _route(keys, self.keys, self.homes, self.buckets, out)
        return out


def _bucket_of(keys: Keys, buckets: int) -> NDArray[np.int64]:
    return ((mix(keys, np.uint64(1)) >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)


@helper
def _slot(table, homes, key):  # type: ignore[no-untyped-def]
    mask = len(table) - 1
    at = np.int64(mixed(key, np.uint64(0)) & np.uint64(mask))
    while homes[at] >= 0 and table[at] != key:
        at = (at + 1) & mask
    return at


@compiled("out uint64[]", "out int32[]", "uint64[]", "int32[]")
def _fill(table, homes, heavy, where):  # type: ignore[no-untyped-def]
    for i in range(len(heavy)):
        at = _slot(table, homes, heavy[i])
        table[at] = heavy[i]
        homes[at] = where[i]


@compiled("uint64[]", "uint64[]", "int32[]", "int32[]", "out int32[]")
def _route(keys, table, homes, buckets, out):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        home = homes[_slot(table, homes, keys[i])]
        if home < 0:
            home = buckets[pick(mixed(keys[i], np.uint64(1)), len(buckets))]
        out[i] = home
