"""The manager: fed with every batch's statistics, it decides where keys live from the next batch on.

It knows nothing of Spark. One turn of the wheel is::

    manager.observe(stats)                     # what the batch's tasks counted, merged
    if manager.due:                            # a period is over, or somebody asked
        proposal = propose(manager.snapshot()) # pure and slow: in the background if you like
        manager.offer(proposal)
    plan = manager.plan_next()                 # None, or what changes before the next batch

Everything that later answers depend on is in :meth:`LocalityManager.state`, so that a manager restored from a
checkpoint goes on exactly as the original would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.errors import CheckpointMismatch
from weir.locality._memory import FadingCounts
from weir.locality.config import Locality
from weir.locality.counts import PairCounts, merge
from weir.locality.forecast import Decision
from weir.locality.graph import within
from weir.locality.key_homes import Anchored, Residents, Where
from weir.locality.partition.base import check_shares
from weir.locality.proposal import Proposal, Snapshot, propose
from weir.locality.stats import BatchStats, Edge
from weir.locality.table import Moves, Patch, RoutingTable
from weir.network.tree import Tree, check_tree, closeness

_FAINT = 0.05  # rows below which a faded pair no longer takes part in planning
_DECISIONS = 1000


@dataclass(frozen=True)
class Plan:
    """What changes before the next batch: per operator (by number), the table's patch and the states to move.

    Moves are between the servers where keys really live, hash fallback included; a key that enters the table
    where its hash had put it anyway is in the patch but doesn't move. ``first`` lists the keys that get their
    first home: with ``new_keys="first_seen"`` their partial states are on the servers that saw them, not where
    their hash says, and are merged at the target.
    """

    version: int
    patches: Mapping[int, Patch]
    moves: Mapping[int, Moves]
    first: Mapping[int, NDArray[np.uint64]]
    decision: Decision | None = None

    @property
    def moved(self) -> int:
        """Keys whose state moves."""
        return sum(len(m) for m in self.moves.values())


class LocalityManager:
    """Where keys live, batch after batch.

    Parameters
    ----------
    config
        What the user asked for.
    operators
        Names of the keyed operators in topological order. They are known by their position.
    edges
        Pairs of operators (names or positions) that rows pass one after the other.
    servers
        How many servers there are.
    shares
        Relative capacity of each server; equal by default.
    topology
        Fingerprint of the application, written into its tables.
    fixed
        Operators (by position) whose keys somebody else has placed, and how: partitions of a source that are
        read at given places. Their keys never move, and attract the keys of the others.
    free
        Operators (by position) that keep no state, so that their keys move at no cost.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> manager = LocalityManager(Locality(period=4), ["states", "tags"], [("states", "tags")], servers=2)
    >>> for _ in range(3):
    ...     state = rng.integers(8, size=1000).astype(np.uint64)
    ...     stats = BatchStats.of({0: state, 1: state + 100}, {(0, 1): (state, state + 100)})
    ...     manager.observe(stats)
    ...     if manager.due:
    ...         manager.offer(propose(manager.snapshot()))
    ...     plan = manager.plan_next()
    >>> manager.locality, manager.version
    (1.0, 1)
    """

    def __init__(
        self,
        config: Locality,
        operators: Sequence[str],
        edges: Sequence[tuple[str, str] | Edge],
        servers: int,
        *,
        shares: NDArray[np.float64] | None = None,
        topology: str = "",
        fixed: Mapping[int, Where] | None = None,
        free: Iterable[int] = (),
    ) -> None:
        self.config, self.operators, self.topology = config, list(operators), topology
        position = {name: i for i, name in enumerate(self.operators)}
        self.edges: list[Edge] = sorted(
            (
                position[a] if isinstance(a, str) else a,
                position[b] if isinstance(b, str) else b,
            )
            for a, b in edges
        )
        self.servers = servers
        self.shares = None if shares is None else check_shares(servers, shares)
        self._tree: Tree | None = None
        self._near: NDArray[np.float64] | None = None
        if config.racks is not None and config.racks != "hosts":
            self.surround(config.racks)
        half_life = config.memory * config.batches
        self.fixed, self.free = dict(fixed or {}), frozenset(free) | frozenset(fixed or {})
        terms: dict[str, Any] = {
            "capacity": config.capacity,
            "half_life": half_life / 4,
            "age": config.batches,
            "seed": config.seed,
        }
        self._residents = [
            Anchored(servers, self.fixed[o], **terms) if o in self.fixed else Residents(servers, **terms)
            for o in range(len(self.operators))
        ]
        self._history = {e: FadingCounts(config.capacity, half_life, config.seed) for e in self.edges}
        self._held_out = max(1, config.batches // 5)
        self._recent: deque[dict[Edge, PairCounts]] = deque()
        self._news: list[BatchStats] = []
        self._proposal: Proposal | None = None
        self._asked = self._resized = False
        self._last = 0
        self._started = False
        self._reconfigurations = 0
        self.version = 0
        self.batch = 0
        self.locality = 1.0
        self.imbalance: list[float] = [1.0] * len(self.operators)
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS)

    # ---------------------------------------------------------------- what it sees

    def observe(self, stats: BatchStats) -> None:
        """Takes in the merged statistics of one batch, routed by the tables as they are."""
        self.batch += 1
        for o, residents in enumerate(self._residents):
            sides = [p.left for (a, _), p in stats.pairs.items() if a == o]
            sides += [p.right for (_, b), p in stats.pairs.items() if b == o]
            residents.observe(stats.keys.get(o, PairCounts.empty()), sides)
        self._measure(stats)
        room = max(1, self.config.capacity // self._held_out)
        self._recent.append({e: stats.pairs.get(e, PairCounts.empty()).truncate(room) for e in self.edges})
        for counts in self._history.values():
            counts.tick()
        while len(self._recent) > self._held_out:
            for e, old in self._recent.popleft().items():
                self._history[e].add(old.left, old.right, old.count)
                self._history[e].prune()
        self._news.append(stats)

    def _measure(self, stats: BatchStats) -> None:
        local = rows = 0.0
        for (a, b), pairs in stats.pairs.items():
            same = self.route(a, pairs.left) == self.route(b, pairs.right)
            local += float(pairs.count[same].sum())
            rows += pairs.total
        self.locality = local / rows if rows else 1.0
        share = check_shares(self.servers, self.shares)
        for o, seen in stats.keys.items():
            load = np.bincount(self.route(o, seen.left), weights=seen.count, minlength=self.servers)
            self.imbalance[o] = float((load / share).max() / load.sum()) if seen.total else 1.0
        standing = next((d for d in reversed(self.decisions) if d.adopted), None)
        if standing is not None and rows:
            outcome = standing.outcome
            n = outcome.get("batches", 0.0)
            outcome["locality"] = (outcome.get("locality", 0.0) * n + self.locality) / (n + 1)
            outcome["batches"] = n + 1

    def route(self, operator: int, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Where keys live now, hash fallback included."""
        return self._residents[operator].route(hashes)

    def knows(self, operator: int, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which keys it has met before; all others are new."""
        return self._residents[operator].find(hashes) >= 0

    # ---------------------------------------------------------------- what it plans

    @property
    def due(self) -> bool:
        """Whether it is time for a proposal: a period is over, the start is fresh, or somebody asked."""
        if self._proposal is not None or not self.batch:
            return False
        if self.config.period is None:
            return self._asked
        last, period = self._last, self.config.period
        return self._asked or self.batch - last >= min(period, max(1, last)) or last < period <= self.batch

    def request(self) -> None:
        """Asks for a reconfiguration at the next opportunity."""
        self._asked = True

    def snapshot(self) -> Snapshot:
        """What a proposal needs, copied: batches may go on while it is computed."""
        keys, homes = [], []
        for residents in self._residents:
            faded = residents.counts.counts(_FAINT)
            keys.append(faded)
            homes.append(residents.homes[residents.find(faded.left)])
        early = self._last < self.config.batches
        # for another number of servers the present homes are no good beginning
        fresh = early or self._resized or self._reconfigurations % 4 == 3
        self._asked = self._resized = False
        self._last = self.batch
        self._reconfigurations += 1
        return Snapshot(
            replace(self.config, racks=self._tree),
            self.servers,
            self.version,
            keys,
            homes,
            {e: _among(h.counts(_FAINT), keys[e[0]], keys[e[1]]) for e, h in self._history.items()},
            {e: merge([r[e] for r in self._recent]) for e in self.edges},
            len(self._recent),
            self.shares,
            first=not self._started or not any(len(h) for h in self._history.values()),
            fresh=fresh,
            early=early,
            buckets=[residents.buckets for residents in self._residents],
            fixed=self.fixed,
            free=self.free,
        )

    def offer(self, proposal: Proposal) -> None:
        """Hands over a proposal; the next plan decides with it. One for another number of servers is dropped."""
        if proposal.n == self.servers:
            self._proposal = proposal
        else:
            self._asked = True

    def plan_next(self) -> Plan | None:
        """What changes before the next batch; None if nothing does."""
        decision = self._decide()
        if self._started and self.config.new_keys != "hash":
            self._place()
        self._news.clear()
        patches: dict[int, Patch] = {}
        moves: dict[int, Moves] = {}
        first: dict[int, NDArray[np.uint64]] = {}
        for o, residents in enumerate(self._residents):
            changes = residents.publish()
            if changes is not None:
                patches[o], moves[o], first[o] = changes
        if not patches:
            return Plan(self.version, {}, {}, {}, decision) if decision else None
        self.version += 1
        return Plan(self.version, patches, moves, first, decision)

    def table(self, operator: int) -> RoutingTable:
        """The table of an operator as it is now."""
        residents = self._residents[operator]
        known = np.flatnonzero(residents.homes >= 0)
        return RoutingTable(
            residents.counts.index.left[known],
            residents.homes[known],
            self.servers,
            self.operators[operator],
            self.version,
            self.topology,
        )

    @property
    def known_keys(self) -> int:
        """How many keys it remembers, of all operators."""
        return sum(map(len, self._residents))

    def hot_keys(self, operator: int) -> NDArray[np.uint64]:
        """Keys heavier than a fair share of their operator: no placement balances them, only splitting does."""
        counts = self._residents[operator].counts
        weight = counts.values()
        fair = weight.sum() * float(check_shares(self.servers, self.shares).max())
        return np.sort(counts.index.left[weight > fair])

    def weights(self, operator: int, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Recent rows of keys, 0 for those it doesn't know."""
        residents = self._residents[operator]
        at = residents.find(hashes)
        return (
            np.where(at >= 0, residents.counts.values()[at], 0.0) if len(residents) else np.zeros(len(hashes))
        )

    def start_from(self, tables: Mapping[int, RoutingTable]) -> None:
        """Takes tables made offline as the beginning."""
        for o, table in tables.items():
            self._residents[o].enter(table.hashes, table.servers)
        self._started = True

    def agree_with(self, tables: Mapping[int, RoutingTable]) -> None:
        """Takes the tables in force as the truth, whatever the memory says: after a restart or a replay."""
        for o, residents in enumerate(self._residents):
            table = tables.get(o)
            if table is None:
                residents.agree(np.zeros(0, np.uint64), np.zeros(0, np.int32))
            else:
                residents.agree(table.hashes, table.servers)
        self._started = self._started or bool(tables)
        self._news.clear()

    def resize(
        self,
        servers: int,
        shares: NDArray[np.float64] | None = None,
        *,
        buckets: Mapping[int, NDArray[np.int32]] | None = None,
    ) -> None:
        """Changes the number of servers: keys of servers that go are placed anew, and a new plan is due.

        Call it at a batch boundary. Keys that live by hash move with the hash, or with ``buckets``, the server
        of each bucket of hashes per operator; that is the caller's to see to. What was learnt stays.
        """
        self.servers = servers
        self.shares = None if shares is None else check_shares(servers, shares)
        self._proposal = None
        self.surround(None)
        for o, residents in enumerate(self._residents):
            residents.resize(servers, (buckets or {}).get(o))
        self._asked = self._resized = True

    def fall_back(self, buckets: Mapping[int, NDArray[np.int32]]) -> None:
        """Takes over where keys without an entry live: per operator the server of each bucket of hashes."""
        for o, residents in enumerate(self._residents):
            residents.resize(self.servers, buckets.get(o))

    def surround(self, tree: Tree | None) -> None:
        """Which servers share a host or a rack, from now on; later proposals and new keys go by it."""
        if tree is not None:
            check_tree(tree, self.servers)
        self._tree = tree
        self._near = None if tree is None else closeness(tree, self.servers)

    def _decide(self) -> Decision | None:
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            return None
        if proposal.adopt:
            for residents, hashes, servers in zip(
                self._residents, proposal.hashes, proposal.servers, strict=True
            ):
                residents.adopt(hashes, servers)
            self._started = True
        decision = Decision(
            self.batch, self.version, proposal.method, proposal.adopt, proposal.forecast, proposal.seconds
        )
        self.decisions.append(decision)
        return decision

    def _place(self) -> None:
        pairs = {e: merge([s.pairs[e] for s in self._news if e in s.pairs]) for e in self.edges}
        share = check_shares(self.servers, self.shares)
        for o, residents in enumerate(self._residents):
            ties = [(p.left, self.route(b, p.right), p.count) for (a, b), p in pairs.items() if a == o]
            ties += [(p.right, self.route(a, p.left), p.count) for (a, b), p in pairs.items() if b == o]
            seen = merge([s.keys[o] for s in self._news if o in s.keys])
            residents.place(seen, ties, self.batch, self.config.alpha, share, self._near)

    # ---------------------------------------------------------------- what it keeps

    def state(self) -> dict[str, Any]:
        """Everything that later answers depend on: NumPy arrays and plain JSON values, by name.

        Take it after :meth:`plan_next`. A proposal under way is not part of it: it is computed again from the
        restored statistics.
        """
        out: dict[str, Any] = {
            "about": {
                "operators": self.operators,
                "edges": [list(e) for e in self.edges],
                "servers": self.servers,
                "version": self.version,
                "batch": self.batch,
                "last": self._last,
                "asked": self._asked or self._proposal is not None,
                "started": self._started,
                "resized": self._resized,
                "reconfigurations": self._reconfigurations,
                "recent": len(self._recent),
                "locality": self.locality,
                "imbalance": self.imbalance,
                "decisions": [d.to_dict() for d in self.decisions],
            }
        }
        if self.shares is not None:
            out["shares"] = self.shares
        for o, residents in enumerate(self._residents):
            out.update({f"keys.{o}.{k}": v for k, v in residents.state().items()})
        for i, e in enumerate(self.edges):
            out.update({f"history.{i}.{k}": v for k, v in self._history[e].state().items()})
            for j, batch in enumerate(self._recent):
                for name in ("left", "right", "count"):
                    out[f"recent.{j}.{i}.{name}"] = getattr(batch[e], name)
        return out

    def understands(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved state is about the same operators and edges."""
        about = state["about"]
        return list(about["operators"]) == self.operators and [tuple(e) for e in about["edges"]] == self.edges

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state`."""
        about = state["about"]
        if not self.understands(state):
            raise CheckpointMismatch(
                f"the saved locality manager is for operators {about['operators']}, this application has "
                f"{self.operators}: use the checkpoint of this application, or a new one"
            )
        self.servers, self.version, self.batch = about["servers"], about["version"], about["batch"]
        self.shares = state.get("shares")
        self._last, self._asked, self._started = about["last"], about["asked"], about["started"]
        self._reconfigurations, self._resized = about["reconfigurations"], about.get("resized", False)
        self.locality, self.imbalance = about["locality"], list(about["imbalance"])
        self.decisions = deque((Decision.from_dict(d) for d in about["decisions"]), maxlen=_DECISIONS)
        for o, residents in enumerate(self._residents):
            residents.resize(self.servers)
            start = f"keys.{o}."
            residents.restore({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
        for i, e in enumerate(self.edges):
            self._history[e].restore({k: state[f"history.{i}.{k}"] for k in ("left", "right", "count")})
        self._recent = deque(
            {
                e: PairCounts(*(state[f"recent.{j}.{i}.{name}"] for name in ("left", "right", "count")))
                for i, e in enumerate(self.edges)
            }
            for j in range(about["recent"])
        )
        self._proposal = None
        self._news = []


def _among(pairs: PairCounts, left: PairCounts, right: PairCounts) -> PairCounts:
    # a key that has faded away keeps its home without taking part in planning, and so do its pairs
    alive = within(left.left, pairs.left) & within(right.left, pairs.right)
    return PairCounts(pairs.left[alive], pairs.right[alive], pairs.count[alive])


__all__ = ["LocalityManager", "Plan", "propose"]
