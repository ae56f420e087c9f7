"""Shuffle grouping (SG) and local-or-shuffle: for operators that keep no state per key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir.hashing import mix
from weir.routing.base import Counters, CountingGrouping, Instances, Keys, Router, RouterContext


@dataclass(frozen=True)
class Shuffle(CountingGrouping):
    """Round robin: perfect balance, no memory of keys.

    On a stateless operator it is always right. With a mergeable operator behind it, every key ends up on
    every server: the most balanced and the most memory-hungry choice.

    >>> keys = np.zeros(5, dtype=np.uint64)
    >>> router = Shuffle().router(3, seed=0)
    >>> np.bincount(router.route(keys)).tolist()
    [2, 2, 1]
    """

    name: ClassVar[str] = "SG"
    keyed: ClassVar[bool] = False

    def make_router(self, context: RouterContext) -> Router:
        return _RoundRobin(context.n, context.seed, context.source)


class _RoundRobin(Router):
    def __init__(self, n: int, seed: int, source: int) -> None:
        super().__init__(n)
        # sources start at different places, or they would all favour the first instance
        self._next = int(mix(np.uint64(seed), np.uint64(source)) % np.uint64(n)) if seed or source else 0

    def route(self, keys: Keys) -> Instances:
        out = ((self._next + np.arange(len(keys))) % self.n).astype(np.int32)
        self._next = (self._next + len(keys)) % self.n
        return out

    def counters(self) -> Counters:
        return {"next": np.array([self._next], np.int64)}

    def restore(self, counters: Counters) -> None:
        self._next = int(counters["next"][0])


@dataclass(frozen=True)
class LocalOrShuffle(CountingGrouping):
    """The instance on the same server if there is one, else round robin.

    >>> keys = np.zeros(4, dtype=np.uint64)
    >>> LocalOrShuffle().router(3, local=2).route(keys).tolist()
    [2, 2, 2, 2]
    """

    name: ClassVar[str] = "LSG"
    stays_local: ClassVar[bool] = True
    keyed: ClassVar[bool] = False

    def make_router(self, context: RouterContext) -> Router:
        if context.local >= 0:
            return _Local(context.n, context.local)
        return _RoundRobin(context.n, context.seed, context.source)


class _Local(Router):
    def __init__(self, n: int, local: int) -> None:
        super().__init__(n)
        self._local = local

    def route(self, keys: Keys) -> Instances:
        return np.full(len(keys), self._local, np.int32)
