"""The keys of one operator: how many rows each has, where it lives, and which are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.hashing import hash_home
from weir.locality._memory import FadingCounts
from weir.locality.counts import PairCounts
from weir.locality.placement import place
from weir.routing.table import Moves, Patch

_INERTIA = 1.0  # rows by which another server must beat a young key's home

Where = Callable[[NDArray[np.uint64], int], NDArray[np.int32]]
"""Returns the server, of so many, on which each key lives; for keys that the manager doesn't place."""
Tie = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.float64]]


class YoungKeys:
    """Ties of young keys to servers, added up over batches.

    A key cannot be placed well by the first row seen. While a key is young its ties are kept, and each time it is
    seen its home is chosen anew: a young key's state is small, so moving it is cheap. After ``age`` batches only
    reconfigurations move it.

    At most ``capacity`` keys are kept; the oldest leave first. Keys are given by their entry numbers in
    :class:`KeyHomes`.

    >>> young = YoungKeys(2, age=10, capacity=100)
    >>> young.admit(np.array([4, 7]), batch=1)
    >>> young.add(np.array([7, 7]), np.array([1, 0]), np.array([2.0, 1.0]))
    >>> young.ties(np.array([7])).tolist(), young.has(np.array([3, 4])).tolist()
    ([[1.0, 2.0]], [False, True])
    """

    def __init__(self, n: int, age: int, capacity: int) -> None:
        self.n, self.age, self.capacity = n, age, capacity
        self._entry = np.zeros(0, np.int64)
        self._born = np.zeros(0, np.int64)
        self._ties = np.zeros((0, n), np.float32)
        self._row = np.full(512, -1, np.int64)

    def _reserve(self, entries: NDArray[np.int64]) -> None:
        top = int(entries.max(initial=-1)) + 1
        if top > len(self._row):
            grown = np.full(2 * top, -1, np.int64)
            grown[: len(self._row)] = self._row
            self._row = grown

    def has(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which entries are young."""
        self._reserve(entries)
        return self._row[entries] >= 0

    def admit(self, entries: NDArray[np.int64], batch: int) -> None:
        """Add new keys, first seen in this batch."""
        self._reserve(entries)
        self._row[entries] = len(self._entry) + np.arange(len(entries))
        self._entry = np.concatenate([self._entry, entries])
        self._born = np.concatenate([self._born, np.full(len(entries), batch, np.int64)])
        self._ties = np.concatenate([self._ties, np.zeros((len(entries), self.n), np.float32)])

    def add(self, entries: NDArray[np.int64], servers: NDArray[np.int32], count: NDArray[np.float64]) -> None:
        """Add rows that tie young keys to servers."""
        np.add.at(self._ties, (self._row[entries], servers), count.astype(np.float32))

    def ties(self, entries: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the rows that tie each of these keys to each server."""
        return self._ties[self._row[entries]].astype(np.float64)

    def forget(self, batch: int) -> None:
        """Drop keys older than ``age`` batches, and the oldest ones if there are too many."""
        first = int(np.searchsorted(self._born, batch - self.age, side="right"))
        first = max(first, len(self._entry) - self.capacity)
        if first > 0:
            self._row[self._entry[:first]] = -1
            self._entry, self._born, self._ties = self._entry[first:], self._born[first:], self._ties[first:]
            self._row[self._entry] = np.arange(len(self._entry))

    def clear(self) -> None:
        """Drop all keys: homes of others have changed, and old ties point to where they were."""
        self._row[self._entry] = -1
        self._entry, self._born, self._ties = self._entry[:0], self._born[:0], self._ties[:0]

    def renumber(self, kept: NDArray[np.int64]) -> None:
        """Follow a renumbering of entries: ``kept[i]`` is now ``i``."""
        number = np.full(max(len(self._row), int(kept.max(initial=-1)) + 1), -1, np.int64)
        number[kept] = np.arange(len(kept))
        now = number[self._entry]
        stays = now >= 0
        self._entry, self._born, self._ties = now[stays], self._born[stays], self._ties[stays]
        self._row = np.full(len(self._row), -1, np.int64)
        self._row[self._entry] = np.arange(len(self._entry))

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that later answers depend on, as arrays."""
        return {"entry": self._entry.copy(), "born": self._born.copy(), "ties": self._ties.copy()}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`."""
        self.clear()
        self.admit(np.asarray(state["entry"], np.int64), 0)
        self._born = np.asarray(state["born"], np.int64)
        self._ties = np.asarray(state["ties"], np.float32)


class KeyHomes:
    """The keys of one operator and the server of each: the table's or, without an entry, the one of its hash.

    Of ``n`` servers. Beyond ``capacity`` keys those with the fewest rows are dropped, and live by their hash again; the
    seed decides among equals. A row counts half after ``half_life`` batches. The home of a new key is chosen anew
    whenever it is seen, for ``age`` batches.

    >>> from weir.locality.counts import count_keys
    >>> keys = np.array([6, 7], np.uint64)
    >>> homes = KeyHomes(4, capacity=100, half_life=10, age=5)
    >>> homes.observe(count_keys(keys), [])
    >>> homes.adopt(keys[:1], np.array([1], np.int32))
    >>> homes.route(keys).tolist()
    [1, 3]
    >>> patch, moves = homes.publish()
    >>> patch.hashes.tolist(), moves.source.tolist(), moves.target.tolist()
    ([6], [2], [1])
    """

    def __init__(self, n: int, *, capacity: int, half_life: float, age: int, seed: int = 0) -> None:
        self.n = n
        self.counts = FadingCounts(capacity, half_life, seed)
        self.young = YoungKeys(n, age, max(1, capacity // 10))
        self._homes = np.full(512, -1, np.int32)
        self._published = np.full(512, -1, np.int32)
        self._hashed = np.zeros(0, np.int32)
        self.buckets: NDArray[np.int32] | None = None  # where unlisted keys live, if no longer by their hash

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def homes(self) -> NDArray[np.int32]:
        """Return the table's server of each remembered key, −1 where its hash decides."""
        return self._homes[: len(self)]

    def _grow(self) -> None:
        if len(self._homes) < len(self):
            more = np.full(2 * len(self) - len(self._homes), -1, np.int32)
            self._homes = np.concatenate([self._homes, more])
            self._published = np.concatenate([self._published, more])
        fresh = self.counts.index.left[len(self._hashed) :]
        if len(fresh):
            self._hashed = np.concatenate([self._hashed, hash_home(fresh, self.n, self.buckets)])

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the number of each key, −1 for keys that are not remembered."""
        return self.counts.index.find(hashes, np.zeros(len(hashes), np.uint64))

    def route(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the server of each key now, by its hash if the table doesn't list it."""
        entries = self.find(hashes)
        home = np.where(entries >= 0, self._homes[entries], -1)
        return np.where(home >= 0, home, hash_home(hashes, self.n, self.buckets)).astype(np.int32)

    def observe(self, seen: PairCounts, others: Sequence[NDArray[np.uint64]]) -> None:
        """Take in one batch's key counts, and keys that only occur in pairs."""
        self.counts.tick()
        self.counts.add(seen.left, seen.right, seen.count)
        for keys in others:
            unique = np.unique(keys)
            self.counts.add(unique, np.zeros(len(unique), np.uint64), np.zeros(len(unique)))
        self._grow()

    def adopt(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Give keys new homes; keys that are no longer remembered are skipped."""
        entries = self.find(hashes)
        remembered = entries >= 0
        self._homes[entries[remembered]] = servers[remembered]
        self.young.clear()

    def enter(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Add keys together with their homes, as a table made elsewhere has them."""
        entries = self.counts.add(hashes, np.zeros(len(hashes), np.uint64), np.zeros(len(hashes)))
        self._grow()
        self._homes[entries] = self._published[entries] = servers

    def agree(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Take over all homes of a table: keys that it doesn't list live by their hash."""
        self._homes[:] = -1
        self._published[:] = -1
        self.young.clear()
        self.enter(hashes, servers)

    def place(
        self,
        seen: PairCounts,
        ties: Sequence[Tie],
        batch: int,
        alpha: float,
        share: NDArray[np.float64],
        near: NDArray[np.float64] | None = None,
    ) -> None:
        """Place new keys on the servers of the keys they were seen with; young keys are placed again.

        ``ties`` are keys of this operator with the server of the key they were seen with, and how often; ``near``
        is how close any two servers are, if that is known.
        """
        self.young.forget(batch)
        entries, homes = self.find(seen.left), self.homes
        self.young.admit(entries[(homes[entries] < 0) & ~self.young.has(entries)], batch)
        for own, server, count in ties:
            at = self.find(own)
            new = self.young.has(at)
            self.young.add(at[new], server[new], count[new])
        entries = entries[self.young.has(entries)]
        if not len(entries):
            return
        bonds = self.young.ties(entries)
        settled = np.flatnonzero(homes[entries] >= 0)
        bonds[settled, homes[entries[settled]]] += _INERTIA
        weight = self.counts.values()
        others = np.ones(len(self), np.bool_)
        others[entries] = False
        live = np.where(homes >= 0, homes, self._hashed)
        load = np.bincount(live[others], weights=weight[others], minlength=self.n).astype(np.float64)
        limit = alpha * weight.sum() * share
        homes[entries] = place(bonds, weight[entries], load, limit, self.counts.index.left[entries], near)

    def publish(self) -> tuple[Patch, Moves] | None:
        """Return what has changed since the last call, the table's patch and the moves; drop excess keys."""
        hashes = self.counts.index.left
        old, new = self._published[: len(self)], self.homes.copy()
        hashed, kept = self._hashed, self.counts.prune()
        if kept is not None:
            gone = np.ones(len(new), np.bool_)
            gone[kept] = False
            new[gone] = -1
            self.young.renumber(kept)
        changed = np.flatnonzero(old != new)
        changed = changed[np.argsort(hashes[changed])]
        keys, before, after = hashes[changed], old[changed], new[changed]
        source = np.where(before >= 0, before, hashed[changed]).astype(np.int32)
        target = np.where(after >= 0, after, hashed[changed]).astype(np.int32)
        if kept is not None:
            self._homes, self._hashed = new[kept], hashed[kept]
            self._published = self._homes.copy()
        else:
            self._published[: len(self)] = new
        if not len(changed):
            return None
        moves = source != target
        return Patch(keys, after), Moves(keys[moves], source[moves], target[moves])

    def resize(self, n: int, buckets: NDArray[np.int32] | None = None) -> None:
        """Change the number of servers; keys of servers that go live by their hash until they are placed."""
        self.n, self.buckets = n, buckets
        for homes in (self._homes, self._published):
            homes[homes >= n] = -1
        self._hashed = hash_home(self.counts.index.left, n, buckets)
        self.young = YoungKeys(n, self.young.age, self.young.capacity)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that later answers depend on, as arrays."""
        young = {f"young.{k}": v for k, v in self.young.state().items()}
        return {**self.counts.state(), "home": self.homes.copy(), **young}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`."""
        self.counts.restore({k: state[k] for k in ("left", "right", "count")})
        self._homes = np.full(max(512, 2 * len(self)), -1, np.int32)
        self._homes[: len(self)] = state["home"]
        self._published = self._homes.copy()
        self._hashed = hash_home(self.counts.index.left, self.n, self.buckets)
        self.young = YoungKeys(self.n, self.young.age, self.young.capacity)
        self.young.restore({k: state[f"young.{k}"] for k in ("entry", "born", "ties")})


class FixedKeyHomes(KeyHomes):
    """Keys that live where a given function says: they attract other keys, and never move.

    The partitions of a source that are read on given servers are such keys.

    >>> from weir.locality.counts import count_keys
    >>> keys = np.array([6, 7], np.uint64)
    >>> where = lambda hashes, n: (hashes % np.uint64(n)).astype(np.int32)
    >>> fixed = FixedKeyHomes(4, where, capacity=9, half_life=9)
    >>> fixed.observe(count_keys(keys), [])
    >>> fixed.adopt(keys, np.array([0, 0], np.int32))
    >>> fixed.route(keys).tolist(), fixed.publish()
    ([2, 3], None)
    """

    def __init__(self, n: int, where: Where, *, age: int = 1, **terms: Any) -> None:
        super().__init__(n, age=age, **terms)
        self._where = where

    @property
    def homes(self) -> NDArray[np.int32]:
        return self._where(self.counts.index.left, self.n)

    def route(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        return self._where(hashes, self.n)

    def adopt(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Change nothing: these keys never move."""

    def enter(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Change nothing: no table places these keys."""

    def place(self, *_: Any, **__: Any) -> None:
        """Change nothing: new keys have their home already."""

    def publish(self) -> tuple[Patch, Moves] | None:
        kept = self.counts.prune()
        if kept is not None:
            self._hashed = self._hashed[kept]
        return None

    def state(self) -> dict[str, NDArray[np.generic]]:
        # no table names these homes: after a restart in which the keys may move, none must seem to
        return {**super().state(), "home": np.full(len(self), -1, np.int32)}
