"""The keys of one operator: how many rows each has, where it lives, and which are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.hashing import hash_home
from weir.locality._memory import FadingCounts
from weir.locality.counts import PairCounts
from weir.locality.key_affinity import KeyAffinity, Rows, Servers
from weir.locality.placement import place, place_for_next
from weir.locality.stats import BatchStats, Edge
from weir.routing.table import Moves, Patch

# Between two reconfigurations a server may fill by a tenth more than they allow: what a batch brings differs from the
# average by more than that anyway, and to send keys away from their affinity for it costs locality.
SLACK = 1.1
LIGHT = 0.1  # of what a server may get: keys with fewer rows may move between reconfigurations

Where = Callable[[NDArray[np.uint64], int], NDArray[np.int32]]
"""Returns the server, of so many, on which each key lives; for keys that the manager doesn't place."""
Tie = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]


class KeyHomes:
    """The keys of one operator and the server of each: the table's or, without an entry, the one of its hash.

    Of ``n`` servers. Beyond ``capacity`` keys those with the fewest rows are dropped, and live by their hash again; the
    seed decides among equals. Keys that live by their hash anyway are forgotten once their rows have faded. A row
    counts half after ``half_life`` batches, and half as affinity after ``affinity_half_life``. The home of a key is
    chosen anew whenever it is seen; after ``age`` batches it is settled and moves only for better affinity.

    >>> from weir.locality.counts import count_keys
    >>> keys = np.array([6, 2**64 - 1], np.uint64)
    >>> homes = KeyHomes(4, capacity=100, half_life=10, age=5)
    >>> entries = homes.observe(count_keys(keys))
    >>> homes.adopt(keys[:1], np.array([1], np.int32))
    >>> homes.route(keys).tolist()
    [1, 3]
    >>> patch, moves = homes.publish()
    >>> patch.hashes.tolist(), moves.source.tolist(), moves.target.tolist()
    ([6], [0], [1])
    """

    def __init__(
        self,
        n: int,
        *,
        capacity: int,
        half_life: float,
        age: int,
        seed: int = 0,
        affinity_half_life: float | None = None,
    ) -> None:
        self.n = n
        self.counts = FadingCounts(capacity, half_life, seed)
        self.affinity = KeyAffinity(affinity_half_life or half_life, age, max(1, capacity // 4))
        self._homes = np.full(512, -1, np.int32)
        self._published = np.full(512, -1, np.int32)
        self._hashed = np.zeros(0, np.int32)
        self.split = np.zeros(0, np.uint64)  # keys whose rows are worked on anywhere: they fill no server
        self.key_groups: NDArray[np.int32] | None = (
            None  # where unlisted keys live, if no longer by their hash
        )

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def homes(self) -> NDArray[np.int32]:
        """Return the table's server of each remembered key, −1 where its hash decides."""
        return self._homes[: len(self)]

    def _grow(self) -> None:
        if len(self._homes) < len(self):
            more = np.full(len(self) + len(self) // 4 - len(self._homes), -1, np.int32)
            self._homes = np.concatenate([self._homes, more])
            self._published = np.concatenate([self._published, more])
        fresh = self.counts.index.left[len(self._hashed) :]
        if len(fresh):
            self._hashed = np.concatenate([self._hashed, hash_home(fresh, self.n, self.key_groups)])

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the number of each key, −1 for keys that are not remembered."""
        return self.counts.index.find(hashes, np.zeros(len(hashes), np.uint64))

    def route(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the server of each key now, by its hash if the table doesn't list it."""
        entries = self.find(hashes)
        home = np.where(entries >= 0, self._homes[entries], -1)
        return np.where(home >= 0, home, hash_home(hashes, self.n, self.key_groups)).astype(np.int32)

    def observe(self, seen: PairCounts) -> NDArray[np.int64]:
        """Take in one batch's key counts; return the numbers of the keys, which hold until some are dropped."""
        self.counts.tick()
        entries = self.counts.add(seen.left, seen.right, seen.count)
        self._grow()
        return entries

    def number(self, *keys: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
        """Return the numbers of keys that were not counted; from now on they are remembered."""
        entries = [self.counts.add(k, np.zeros(len(k), np.uint64), np.zeros(len(k))) for k in keys]
        self._grow()
        return entries

    def live(self, entries: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the server of each remembered key, given by its number."""
        home = self._homes[entries]
        return np.where(home >= 0, home, self._hashed[entries]).astype(np.int32)

    def adopt(
        self,
        hashes: NDArray[np.uint64],
        servers: NDArray[np.int32],
        affinity: tuple[Servers, Rows] | None = None,
    ) -> None:
        """Give keys new homes, and the affinity they have then; keys that are no longer remembered are skipped."""
        entries = self.find(hashes)
        remembered = entries >= 0
        self._homes[entries[remembered]] = servers[remembered]
        if affinity is None:
            self.affinity.clear()
        else:
            servers, rows = affinity
            self.affinity.replace(self.homes, entries[remembered], servers[remembered], rows[remembered])

    def enter(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Add keys together with their homes, as a table made elsewhere has them."""
        entries = self.counts.add(hashes, np.zeros(len(hashes), np.uint64), np.zeros(len(hashes)))
        self._grow()
        self._homes[entries] = self._published[entries] = servers

    def agree(self, hashes: NDArray[np.uint64], servers: NDArray[np.int32]) -> None:
        """Take over all homes of a table: keys that it doesn't list live by their hash."""
        before = self.homes.copy()
        self._homes[:] = -1
        self._published[:] = -1
        self.enter(hashes, servers)
        if not np.array_equal(before, self.homes[: len(before)]):
            self.affinity.clear()  # it is about where others lived

    def place(
        self,
        entries: NDArray[np.int64],
        ties: Sequence[Tie],
        batch: int,
        alpha: float,
        share: NDArray[np.float64],
        near: NDArray[np.float64] | None = None,
        cost: float = 0.0,
        stay: float | None = None,
        most: int | None = None,
    ) -> None:
        """Place the keys of a batch on the servers of the keys they were seen with.

        Keys are given by their numbers. ``ties`` are keys of this operator with the server of the key they were seen
        with, and how often; ``near`` is how close any two servers are, if that is known; ``cost`` is the weight of a
        state in rows. ``stay`` is given if the batch is still to come: what staying is then worth to a key, as a share
        of the average key's rows, and ``most`` how many keys that have had rows may move then.
        """
        homes = self.homes
        self.affinity.forget()
        self.affinity.touch(entries, batch, homes[entries])
        for own, server, count in ties:
            self.affinity.add(own, server, count)
        if not len(entries) or not self.counts.values().any():
            return
        coming = self.affinity.latest(entries)
        self.affinity.follow_changes(entries, homes[entries])
        servers, rows, settled = self.affinity.of(entries, batch)
        weight = self.counts.values()
        if len(self.split):
            at = self.find(self.split)
            weight = weight.copy()
            weight[at[at >= 0]] = 0.0
        others = np.ones(len(self), np.bool_)
        others[entries] = False
        live = np.where(homes >= 0, homes, self._hashed)
        load = np.bincount(live[others], weights=weight[others], minlength=self.n).astype(np.float64)
        limit = alpha * SLACK * weight.sum() * share
        # heavy keys are what others are drawn to: they are left to reconfigurations, which look at all of them together
        light = ~settled | (weight[entries] <= LIGHT * limit.min())
        load += np.bincount(live[entries[~light]], weights=weight[entries[~light]], minlength=self.n)
        entries, servers, rows, settled = entries[light], servers[light], rows[light], settled[light]
        keys, present = self.counts.index.left[entries], homes[entries]
        mine = weight[entries]
        placed = place(servers, rows, mine, load, limit, keys, near, present, settled, cost)
        if stay is not None:
            at_home = placed >= 0
            load += np.bincount(placed[at_home], weights=mine[at_home], minlength=self.n)
            worth = stay * weight.sum() / len(weight)
            placed = place_for_next(
                servers, coming[light], rows, mine, load, limit, keys, placed, cost, worth
            )
            if most is not None:
                placed = self._most_worth(entries, placed, servers, coming[light], most)
        self.affinity.settle(entries[placed != present])
        homes[entries] = placed

    def _most_worth(
        self, entries: NDArray[np.int64], placed: Servers, servers: Servers, coming: Rows, most: int
    ) -> Servers:
        """Return new homes, but of the keys that have had rows only for the ``most`` that gain most coming rows."""
        live = self.live(entries)
        moving = np.flatnonzero((placed >= 0) & (placed != live) & (self.counts.values()[entries] > 0))
        if len(moving) <= most:
            return placed
        there, here = (
            np.where(servers[moving] == at[moving, None], coming[moving], 0.0).sum(axis=1)
            for at in (placed, live)
        )
        out = placed.copy()
        stay = moving[np.lexsort((self.counts.index.left[entries[moving]], here - there))[most:]]
        out[stay] = self.homes[entries[stay]]
        return out

    def publish(self) -> tuple[Patch, Moves] | None:
        """Return what has changed since the last call, the table's patch and the moves; drop excess keys."""
        hashes = self.counts.index.left
        old, new = self._published[: len(self)], self.homes.copy()
        hashed, kept = self._hashed, self.counts.prune(needed=(old >= 0) | (new >= 0))
        if kept is not None:
            gone = np.ones(len(new), np.bool_)
            gone[kept] = False
            new[gone] = -1
            self.affinity.renumber(kept)
        changed = np.flatnonzero(old != new)
        changed = changed[np.argsort(hashes[changed])]
        keys, before, after = hashes[changed], old[changed], new[changed]
        source = np.where(before >= 0, before, hashed[changed]).astype(np.int32)
        target = np.where(after >= 0, after, hashed[changed]).astype(np.int32)
        if kept is not None:
            self._hashed, self._homes = hashed[kept], np.full(max(512, len(kept)), -1, np.int32)
            self._homes[: len(kept)] = new[kept]
            self._published = self._homes.copy()
        else:
            self._published[: len(self)] = new
        if not len(changed):
            return None
        moves = source != target
        return Patch(keys, after), Moves(keys[moves], source[moves], target[moves])

    def resize(self, n: int, key_groups: NDArray[np.int32] | None = None) -> None:
        """Change the number of servers; keys of servers that go live by their hash until they are placed."""
        if n != self.n:
            self.affinity.clear()
        self.n, self.key_groups = n, key_groups
        for homes in (self._homes, self._published):
            homes[homes >= n] = -1
        self._hashed = hash_home(self.counts.index.left, n, key_groups)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that later answers depend on, as arrays, which hold until something changes."""
        young = {f"young.{k}": v for k, v in self.affinity.state().items()}
        counts = self.counts.state()
        return {
            "left": counts["left"],
            "count": counts["count"],
            "home": self.homes,
            "split": self.split,
            **young,
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from :meth:`state`."""
        self.counts.restore(
            {"left": state["left"], "right": np.zeros(len(state["left"]), np.uint64), "count": state["count"]}
        )
        self.split = np.asarray(state.get("split", self.split), np.uint64)
        self._homes = np.full(max(512, len(self)), -1, np.int32)
        self._homes[: len(self)] = state["home"]
        self._published = self._homes.copy()
        self._hashed = hash_home(self.counts.index.left, self.n, self.key_groups)
        self.affinity.restore(
            {k.removeprefix("young."): v for k, v in state.items() if k.startswith("young.")}
        )


class FixedKeyHomes(KeyHomes):
    """Keys that live where a given function says: they attract other keys, and never move.

    The partitions of a source that are read on given servers are such keys.

    >>> from weir.locality.counts import count_keys
    >>> keys = np.array([6, 2**64 - 1], np.uint64)
    >>> where = lambda hashes, n: (hashes % np.uint64(n)).astype(np.int32)
    >>> fixed = FixedKeyHomes(4, where, capacity=9, half_life=9)
    >>> entries = fixed.observe(count_keys(keys))
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

    def live(self, entries: NDArray[np.int64]) -> NDArray[np.int32]:
        return self._where(self.counts.index.left[entries], self.n)

    def adopt(self, *_: Any, **__: Any) -> None:
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


@dataclass(frozen=True)
class SeenBatch:
    """A batch's statistics, and the numbers by which the manager knows the keys in them."""

    stats: BatchStats
    keys: dict[int, NDArray[np.int64]]  # per operator
    ends: dict[tuple[Edge, int], NDArray[np.int64]]  # per edge: of the left (0) and right (1) keys of pairs


def numbered(stats: BatchStats, operators: Sequence[KeyHomes], counting: bool) -> SeenBatch:
    """Return statistics with the numbers of their keys, which are remembered from now on; count them if asked to."""
    seen = SeenBatch(stats, {}, {})
    for o, homes in enumerate(operators):
        ends = [(e, side) for e in stats.pairs for side in (0, 1) if e[side] == o]
        sides = [(stats.pairs[e].left, stats.pairs[e].right)[side] for e, side in ends]
        counted = stats.keys.get(o, PairCounts.empty())
        seen.keys[o] = homes.observe(counted) if counting else homes.number(counted.left)[0]
        seen.ends.update(zip(ends, homes.number(*sides), strict=True))
    return seen


def ties_of(operators: Sequence[KeyHomes], operator: int, seen: SeenBatch) -> list[Tie]:
    """Return the keys of an operator that were seen with keys of others, and where these live."""
    out = []
    for (edge, side), own in seen.ends.items():
        if edge[side] == operator:
            homes, pairs = operators[edge[1 - side]], seen.stats.pairs[edge]
            other, count = homes.live(seen.ends[edge, 1 - side]), pairs.count
            if len(homes.split):  # keys that are everywhere draw nobody
                one_home = ~np.isin((pairs.left, pairs.right)[1 - side], homes.split)
                own, other, count = own[one_home], other[one_home], count[one_home]
            out.append((own, other, count))
    return out


def local_share(operators: Sequence[KeyHomes], seen: SeenBatch) -> float:
    """Return the share of a batch's rows whose keys live on one server."""
    local = rows = 0.0
    for (a, b), pairs in seen.stats.pairs.items():
        same = operators[a].live(seen.ends[(a, b), 0]) == operators[b].live(seen.ends[(a, b), 1])
        local += float(pairs.count[same].sum())
        rows += pairs.total
    return local / rows if rows else 1.0
