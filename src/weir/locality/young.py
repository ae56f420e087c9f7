"""Young keys, seen for the first time a few batches ago: the servers of the keys they were seen with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class YoungKeys:
    """Ties of young keys to servers, added up over batches.

    A key cannot be placed well by the first row seen. While a key is young its ties are kept, and each time it is
    seen its home is chosen anew: a young key's state is small, so moving it is cheap. After ``age`` batches only
    reconfigurations move it.

    Keys are given by their entry numbers in :class:`~weir.locality.key_homes.KeyHomes`.

    Parameters
    ----------
    n
        Servers.
    age
        Batches for which a key is young.
    capacity
        Most keys kept; the oldest leave first.

    Examples
    --------
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
