"""Partial key grouping (PKG): two homes per key, and each row takes the emptier one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, helper
from weir.errors import CheckpointError
from weir.hashing import mix, mixed
from weir.routing.base import Counters, CountingGrouping, Instances, Keys, Router, RouterContext


@helper
def pick(hashed, n):  # type: ignore[no-untyped-def]
    """One of ``n`` from the upper half of a mixed number; a multiplication, not a slow division."""
    return np.int64(((hashed >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


def salt_of(seed: int) -> np.uint64:
    """What separates the choices of one seed from those of another."""
    return np.uint64(mix(np.uint64(seed & 0xFFFFFFFFFFFFFFFF), np.uint64(0x5EED)))


def taken(counters: Counters, name: str, like: NDArray[np.generic]) -> NDArray[np.generic]:
    """A copy of one saved array, refused if it cannot belong to this router."""
    saved = counters.get(name)
    if saved is None or saved.shape != like.shape:
        shape = "missing" if saved is None else f"of shape {saved.shape}"
        raise CheckpointError(
            f"saved routing counters do not fit: {name!r} is {shape}, expected {like.shape}; "
            "the grouping or its number of instances has changed since they were taken"
        )
    return saved.astype(like.dtype, copy=True)


class LoadRouter(Router):
    """A router whose only memory is how many rows it has sent to each of ``bins``.

    The counts are this source's own: no source knows what the others send. Rows of many sources are
    independent samples of one stream, so balancing each source's part balances the whole.
    """

    def __init__(self, n: int, bins: int, seed: int) -> None:
        super().__init__(n)
        self.load: NDArray[np.int64] = np.zeros(bins, dtype=np.int64)
        self.salt = salt_of(seed)

    @property
    def messages(self) -> int:
        """Rows routed so far."""
        return int(self.load.sum())

    def counters(self) -> Counters:
        return {"load": self.load.copy()}

    def restore(self, counters: Counters) -> None:
        self.load[:] = taken(counters, "load", self.load)


@dataclass(frozen=True)
class PartialKey(CountingGrouping):
    """Two hash functions give every key two candidate instances; a row goes to the less loaded.

    A source judges by the rows that it has sent itself ("local load estimation"). A key's rows reach at
    most two instances, so partial results merge cheaply.

    **Guarantee.** At most two instances per key. If no key carries more than about ``1/(5n)`` of the rows,
    the fullest instance is only O(log log n) rows above the average; a hotter key outgrows its two homes and
    the imbalance rises with ``n``.

    References
    ----------
    M. A. U. Nasir, G. De Francisci Morales, D. García-Soriano, N. Kourtellis, M. Serafini: The power of both
    choices: practical load balancing for distributed stream processing engines. ICDE 2015.

    Examples
    --------
    >>> import numpy as np
    >>> one_key = np.full(6, 77, dtype=np.uint64)
    >>> PartialKey().router(10, seed=1).route(one_key).tolist()
    [0, 2, 0, 2, 0, 2]
    """

    name: ClassVar[str] = "PKG"

    def make_router(self, context: RouterContext) -> Router:
        return _PartialKeyRouter(context.n, context.n, context.seed)


class _PartialKeyRouter(LoadRouter):
    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        _route(keys, self.salt, self.load, out)
        return out


@helper
def emptier_of_two(key, salt, load):  # type: ignore[no-untyped-def]
    """The less loaded of a key's two homes; the first if they tie."""
    a = pick(mixed(key ^ salt, np.uint64(1)), len(load))
    b = pick(mixed(key ^ salt, np.uint64(2)), len(load))
    return b if load[b] < load[a] else a


@compiled("uint64[]", "uint64", "out int64[]", "out int32[]")
def _route(keys, salt, load, out):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        chosen = emptier_of_two(keys[i], salt, load)
        load[chosen] += 1
        out[i] = chosen
