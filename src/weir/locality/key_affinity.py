"""Which servers the keys of one operator are drawn to: rows that they shared with keys that live there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled

SLOTS = 8  # servers that are kept for each key, those with the most rows
PRIOR = 2.0  # rows that a key is taken to share with its home when nothing else is known of it
LONG_AGO = -(1 << 40)  # born so long ago that it is settled at once
# Evidence (the logarithm of a likelihood ratio) at which a key's affinity is taken to have changed, see
# `KeyAffinity.follow_changes`. With half of it, keys that chance brought together moved to and fro in replays.
SURE = 14.0
AT_ONCE = 2.0
_FIELDS = ("entry", "born", "seen", "server", "rows", "lead")

Servers = NDArray[np.int32]
Rows = NDArray[np.float32]


class KeyAffinity:
    """The affinity of recently seen keys: for each, the servers with which it shared most rows, fading with time.

    A key cannot be placed well by the first row seen, and its affinity may change. So its home is chosen anew whenever
    it is seen (:func:`~weir.locality.placement.place`), by what is kept here. Keys are given by their entry numbers in
    :class:`~weir.locality.key_homes.KeyHomes`; a row counts half after ``half_life`` batches. A key is settled when
    it is older than ``age`` batches. Of more than ``capacity`` keys those not seen for longest are forgotten.

    A key that has a home but is not kept is taken for settled, with a few rows for that home.

    Memory is a fixed number of bytes per key, however many servers there are: of more than eight, the weakest give way.

    >>> affinity = KeyAffinity(half_life=2, age=10, capacity=100)
    >>> affinity.touch(np.array([4, 7]), batch=1, homes=np.array([3, -1], np.int32))
    >>> affinity.add(np.array([7, 7]), np.array([1, 0], np.int32), np.array([2.0, 1.0]))
    >>> affinity.touch(np.array([4, 7]), batch=3, homes=np.array([3, 1], np.int32))
    >>> servers, rows, settled = affinity.of(np.array([7, 4]), batch=3)
    >>> servers[:, :2].tolist(), rows[:, :2].tolist(), settled.tolist()
    ([[1, 0], [3, -1]], [[1.0, 0.5], [1.0, 0.0]], [False, True])
    """

    def __init__(self, half_life: float, age: int, capacity: int) -> None:
        self.half_life, self.age, self.capacity = half_life, age, capacity
        self._row = np.full(512, -1, np.int32)  # by entry
        self._n = 0
        self._lay_out(512)

    def _lay_out(self, room: int) -> None:
        """Make room for so many keys; those that there are stay."""
        before = self._arrays() if self._n else ()
        self._entry, self._born, self._seen = (np.zeros(room, np.int64) for _ in range(3))
        self._server: Servers = np.full((room, SLOTS), -1, np.int32)
        self._rows: Rows = np.zeros((room, SLOTS), np.float32)
        # latest rows beyond those with the home's keys
        self._lead: Rows = np.zeros((room, SLOTS), np.float32)
        self._now: Rows = np.zeros((room, SLOTS), np.float32)  # rows of the batch that is being added
        for new, old in zip(self._arrays(), before, strict=False):
            new[: self._n] = old[: self._n]

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self._entry, self._born, self._seen, self._server, self._rows, self._lead

    def __len__(self) -> int:
        return self._n

    def has(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which keys are kept."""
        self._reserve(entries)
        return (entries >= 0) & (self._row[entries] >= 0)

    def _reserve(self, entries: NDArray[np.int64]) -> None:
        top = int(entries.max(initial=-1)) + 1
        if top > len(self._row):
            self._row = np.concatenate([self._row, np.full(top + top // 4 - len(self._row), -1, np.int32)])

    def touch(self, entries: NDArray[np.int64], batch: int, homes: Servers) -> None:
        """Note that keys were seen in a batch: what they had fades, and keys that were not kept are from now on."""
        fresh = ~self.has(entries)
        new = entries[fresh]
        if self._n + len(new) > len(self._entry):
            self._lay_out(5 * (self._n + len(new)) // 4)
        rows = slice(self._n, self._n + len(new))
        self._row[new] = np.arange(rows.start, rows.stop)
        self._entry[rows], self._seen[rows] = new, batch
        self._born[rows] = np.where(homes[fresh] < 0, batch, LONG_AGO)
        self._n = rows.stop
        self._start(rows, homes[fresh])
        _fade(self._row[entries], self._seen, self._rows, batch, self.half_life)

    def add(self, entries: NDArray[np.int64], servers: Servers, count: NDArray[np.float64]) -> None:
        """Add rows that keys share with keys of servers; keys that are not kept are passed over."""
        kept = self.has(entries)
        at, servers, count = self._row[entries[kept]], servers[kept], count[kept]
        _add(at, servers, count, self._server, self._rows, self._now, self._lead)

    def latest(self, entries: NDArray[np.int64]) -> Rows:
        """Return the rows added since changes were last followed, by server; all keys must be kept."""
        return self._now[self._row[entries]]

    def follow_changes(self, entries: NDArray[np.int64], homes: Servers) -> None:
        """Let keys whose affinity has changed at once forget what they were seen with; all of them must be kept.

        Call it once per batch, after all of its rows were added. What a key was seen with fades too slowly for affinity
        that changes within days. So for every server we count the latest rows that a key shared with it, less those
        it shared with its home (from zero up: Page's CUSUM). If the key's affinity has moved there, such a row is as
        likely as one at its home was before. The logarithm of that ratio, for every row, is the evidence: a few rows
        do for a key that was nearly always at home, tens for one that was at home half of the time. Where it is
        beyond doubt, the two servers change places in what is kept. Rows of one batch are much alike, so a batch has
        no more weight than :data:`AT_ONCE` rows.

        References
        ----------
        E. S. Page: Continuous inspection schemes. Biometrika 41, 1954.
        """
        _follow(self._row[entries], homes, self._server, self._rows, self._now, self._lead)

    def settle(self, entries: NDArray[np.int64]) -> None:
        """Note that keys have another home: what was counted against their former one is void."""
        self._lead[self._row[entries]] = 0.0

    def of(self, entries: NDArray[np.int64], batch: int) -> tuple[Servers, Rows, NDArray[np.bool_]]:
        """Return servers (−1: none) and rows of each key, and which keys are settled; all of them must be kept."""
        at = self._row[entries]
        return self._server[at], self._rows[at], batch - self._born[at] > self.age

    def _start(self, rows: slice, homes: Servers) -> None:
        self._server[rows], self._rows[rows], self._lead[rows] = -1, 0.0, 0.0
        self._server[rows, 0], self._rows[rows, 0] = homes, np.where(homes >= 0, PRIOR, 0.0)

    def replace(self, homes: Servers, entries: NDArray[np.int64], servers: Servers, rows: Rows) -> None:
        """Set the affinity of all keys anew, because homes have changed, which are given for all entries."""
        self._start(slice(0, self._n), homes[self._entry[: self._n]])
        kept = self.has(entries)
        at = self._row[entries[kept]]
        self._server[at], self._rows[at] = servers[kept], rows[kept]

    def forget(self) -> None:
        """Drop keys that were not seen for longest, if there are a quarter too many."""
        if self._n > self.capacity + self.capacity // 4:
            self._keep(np.sort(np.argsort(self._seen[: self._n], kind="stable")[-self.capacity :]))

    def _keep(self, rows: NDArray[np.int64]) -> None:
        kept = [array[rows] for array in self._arrays()]
        self._row[self._entry[: self._n]] = -1
        self._n = 0
        self._lay_out(max(512, len(rows)))
        self._n = len(rows)
        for array, values in zip(self._arrays(), kept, strict=True):
            array[: self._n] = values
        self._row[self._entry[: self._n]] = np.arange(self._n)

    def clear(self) -> None:
        """Forget all keys."""
        self._keep(np.zeros(0, np.int64))

    def renumber(self, kept: NDArray[np.int64]) -> None:
        """Follow a renumbering of entries: ``kept[i]`` is now ``i``."""
        number = np.full(max(len(self._row), int(kept.max(initial=-1)) + 1), -1, np.int64)
        number[kept] = np.arange(len(kept))
        self._row[self._entry[: self._n]] = -1
        self._entry[: self._n] = number[self._entry[: self._n]]
        stays = np.flatnonzero(self._entry[: self._n] >= 0)
        arrays = [array[stays] for array in self._arrays()]
        self.restore(dict(zip(_FIELDS, arrays, strict=True)))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that later answers depend on, as arrays, which hold until something changes."""
        return {name: array[: self._n] for name, array in zip(_FIELDS, self._arrays(), strict=True)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from :meth:`state`; version 0.1 saved ``ties``, a matrix of keys and servers, instead."""
        self._row[:] = -1
        self._n = 0
        entry = np.asarray(state["entry"], np.int64)
        self._reserve(entry)
        self._lay_out(max(512, len(entry)))
        self._n = len(entry)
        self._entry[: self._n], self._born[: self._n] = entry, state["born"]
        self._row[entry] = np.arange(self._n)
        if "ties" in state:
            row, server = np.nonzero(state["ties"])
            self._seen[: self._n] = state["born"]
            self.add(entry[row], server.astype(np.int32), state["ties"][row, server].astype(np.float64))
        else:
            self._seen[: self._n], self._server[: self._n] = state["seen"], state["server"]
            self._rows[: self._n], self._lead[: self._n] = state["rows"], state.get("lead", 0.0)


def strongest(
    start: NDArray[np.int64], neighbour: Servers, weight: NDArray[np.float64]
) -> tuple[Servers, Rows]:
    """Return the affinity of each vertex of a graph, given the server of the other end of each edge.

    Edges of vertex ``v`` are at ``start[v]`` … ``start[v + 1] − 1``.

    >>> servers, rows = strongest(np.array([0, 3]), np.array([5, 2, 5], np.int32), np.array([1.0, 4.0, 2.0]))
    >>> servers[0, :2].tolist(), rows[0, :2].tolist()
    ([5, 2], [3.0, 4.0])
    """
    n = len(start) - 1
    servers, rows = np.full((n, SLOTS), -1, np.int32), np.zeros((n, SLOTS), np.float32)
    vertex = np.repeat(np.arange(n, dtype=np.int32), np.diff(start))
    unused = np.zeros_like(rows)
    _add(
        vertex, np.asarray(neighbour, np.int32), np.asarray(weight, np.float64), servers, rows, unused, unused
    )
    return servers, rows


@compiled("int32[]", "out int64[]", "out float32[,]", "int64", "float64")
def _fade(at, seen, rows, batch, half_life):  # type: ignore[no-untyped-def]
    for r in at:
        if seen[r] != batch:
            left = np.float32(0.5 ** ((batch - seen[r]) / half_life))
            for k in range(rows.shape[1]):
                rows[r, k] *= left
            seen[r] = batch


@compiled("int32[]", "int32[]", "float64[]", "out int32[,]", *["out float32[,]"] * 3)
def _add(at, server, count, servers, rows, now, lead):  # type: ignore[no-untyped-def]
    slots = servers.shape[1]
    for i in range(len(at)):
        r = at[i]
        place = -1
        weakest = 0
        for k in range(slots):
            if servers[r, k] == server[i] or servers[r, k] < 0:
                place = k
                break
            if rows[r, k] < rows[r, weakest]:
                weakest = k
        if place >= 0:
            servers[r, place] = server[i]
            rows[r, place] += count[i]
            now[r, place] += count[i]
        elif count[i] > rows[r, weakest]:
            servers[r, weakest] = server[i]
            rows[r, weakest] = now[r, weakest] = count[i]
            lead[r, weakest] = 0.0


@compiled("int32[]", "int32[]", "int32[,]", *["out float32[,]"] * 3)
def _follow(at, homes, servers, rows, now, lead):  # type: ignore[no-untyped-def]
    for i in range(len(at)):
        r = at[i]
        own = -1
        for k in range(servers.shape[1]):
            if servers[r, k] >= 0 and servers[r, k] == homes[i]:
                own = k
        best, evidence = -1, SURE
        for k in range(servers.shape[1]):
            if own < 0 or servers[r, k] < 0 or k == own:
                continue
            more = min(max(now[r, k] - now[r, own], -AT_ONCE), AT_ONCE)
            lead[r, k] = max(0.0, lead[r, k] + more)
            before = max(0.0, rows[r, k] - lead[r, k])
            so_far = lead[r, k] * np.log((rows[r, own] + 0.5) / (before + 0.5))
            if so_far > evidence:
                best, evidence = k, so_far
        if best >= 0:
            theirs = max(0.0, rows[r, best] - lead[r, best])
            rows[r, best] = rows[r, own] + lead[r, best]
            rows[r, own] = theirs
            for k in range(servers.shape[1]):
                lead[r, k] = 0.0
        for k in range(servers.shape[1]):
            now[r, k] = 0.0
