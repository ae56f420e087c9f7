"""The manager: takes in every batch's statistics and decides where keys live from the next batch on.

It doesn't depend on Spark. Per batch, the caller does::

    manager.observe(stats)                     # what the batch's tasks counted, merged
    if manager.due:                            # a period is over, or a reconfiguration was requested
        proposal = propose(manager.snapshot()) # a pure function, slow: may run in the background
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

import msgspec
import numpy as np
from numpy.typing import NDArray

from weir.errors import CheckpointMismatch
from weir.locality.capacity import MIN_BUSY, Capacity, Loads
from weir.locality.config import Locality
from weir.locality.counts import PairCounts
from weir.locality.forecast import Reconfiguration, Sizes
from weir.locality.foresight import Foresight, attainable, states_to_move
from weir.locality.former import BACK, FormerHomes
from weir.locality.history import PairHistory
from weir.locality.key_homes import FixedKeyHomes, KeyHomes, SeenBatch, Where, local_share, numbered, ties_of
from weir.locality.partition.base import check_shares
from weir.locality.proposal import Proposal, Snapshot
from weir.locality.schedule import Budget, Schedule
from weir.locality.stats import BatchStats, Edge
from weir.network.locator import Tree, check_tree, closeness
from weir.routing.table import NO_TABLE, Moves, Patch, Table

STALLED = 3  # periods without a decision
# a key is split over servers where it is heavier than this many fair shares; with or without affinity to lose by it
_HOT, _HOT_APART = 1.0, 0.2
# part of the keys whose rows may be worked on elsewhere, if it is as large; how many times what a server must shed
_SPARE, _AMPLE = 0.1, 1.5
_SPARE_FIRST = (
    0.25  # the least part then of an operator whose rows come from sources: none is near, nothing is lost
)
_LONGEST_REST = 64  # batches that pass uncounted where nothing is gained
_UNEVEN = 1.3  # a server busy for so many times the average ends such a rest
_LEVELLED = 0.3  # how far homes may be beyond balance where rows that are worked on elsewhere level it
_COOLED = 0.7  # of that weight, below which a key that was split has one home again
CHANGED = 0.2  # of its usual locality that is lost when affinity has changed
AFFINE = 0.1  # locality above that of a hash from which on keys count as having affinity
_FAINT = 0.05  # rows below which a faded pair no longer takes part in planning
# decisions that are kept at hand, and written with every batch; the history of commits goes back further
_DECISIONS = 100


@dataclass(frozen=True)
class Plan:
    """What changes before the next batch: per operator (by number), the table's patch and the states to move.

    Moves are between the servers where keys live in fact, be it by table or by hash. A key that enters the table
    at the server where its hash had put it is in the patch but doesn't move.
    """

    version: int
    patches: Mapping[int, Patch]
    moves: Mapping[int, Moves]

    @property
    def moved(self) -> int:
        """Return how many keys' states move."""
        return sum(len(m) for m in self.moves.values())


class LocalityManager:
    """Decides, batch after batch, on which server each key lives.

    Parameters
    ----------
    operators, edges
        Names of the keyed operators in topological order, elsewhere numbered by position; and pairs of them (names or
        positions) that rows pass one after the other.
    shares
        Relative capacity of each of the ``servers``; equal by default.
    fixed
        Operators (by position) whose keys live where a given function says, such as partitions of a source that
        are read on given servers. Their keys never move, and attract the keys of the others.
    free
        Operators (by position) that keep no state, so that their keys move at no cost.
    splits
        Operators (by position) that merge, so that rows of their hottest keys may be worked on anywhere.

    Examples
    --------
    >>> from weir.locality.proposal import propose
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
        fixed: Mapping[int, Where] | None = None,
        free: Iterable[int] = (),
        splits: Iterable[int] = (),
    ) -> None:
        self.config, self.operators = config, list(operators)
        position: dict[Any, Any] = {name: i for i, name in enumerate(self.operators)}
        self.edges: list[Edge] = sorted((position.get(a, a), position.get(b, b)) for a, b in edges)
        self.servers = servers
        self.shares = None if shares is None else check_shares(servers, shares)
        self.capacity = Capacity(servers)
        self._tree: Tree | None = None
        self._closeness: NDArray[np.float64] | None = None
        if config.hierarchy is not None and config.hierarchy != "hosts":
            self.set_hierarchy(config.hierarchy)
        self.splits = frozenset(splits)
        half_life = config.half_life * config.batches
        self.fixed, self.free = dict(fixed or {}), frozenset(free) | frozenset(fixed or {})
        terms: dict[str, Any] = {
            "capacity": config.capacity,
            "half_life": half_life / 4,
            "age": config.batches,
            "affinity_half_life": half_life / 2,
            "seed": config.seed,
        }
        self._homes = [
            FixedKeyHomes(servers, self.fixed[o], **terms) if o in self.fixed else KeyHomes(servers, **terms)
            for o in range(len(self.operators))
        ]
        self._pairs = PairHistory(
            self.edges,
            capacity=config.capacity,
            half_life=half_life,
            held_out=max(1, config.batches // 5),
            seed=config.seed,
            early=config.adaptive,
        )
        self._unplanned: list[SeenBatch] = []  # batches since the last plan
        self._foreseen = False  # whether the next batch was among them already
        self.foresight = Foresight(config.look_ahead)
        self.gained = (
            0.0  # of the rows of the batch that was looked at last: those kept on their server by it
        )
        self._proposal: Proposal | None = None
        self._schedule = Schedule(config.period, config.batches)
        self.budget = Budget()  # of an adaptive manager
        self._granted = -config.batches  # the batch in which such a wish was last granted
        self._wished = False  # whether speeds or affinity have changed, and new tables wait for their turn
        self._started = False  # whether any table is in force
        self.version = 0
        self.batch = 0
        self.locality = 1.0
        self.imbalance: list[float] = [1.0] * len(self.operators)
        self.decisions: deque[Reconfiguration] = deque(maxlen=_DECISIONS)
        self.failures = 0
        self.spare: dict[int, float] = {}  # operator → part of its keys whose rows may be worked on elsewhere
        self.sizes = Sizes()
        # operator whose keys were timed → what the rows of each server weigh, over their number
        self._dear: dict[int, NDArray[np.float64]] = {}
        self._rest = self._skip = 0  # batches between two that are counted, and those still to pass
        self._former = (
            FormerHomes()
        )  # those that the last tables have replaced, while it is open whether these pay
        self._below = 0  # batches on end in which locality was well below what the tables in force had

    # ---------------------------------------------------------------- what it sees

    def observe(self, stats: BatchStats) -> None:
        """Take in the merged statistics of one batch, routed by the tables as they are."""
        self.batch += 1
        seen = numbered(stats, self._homes, counting=True)
        self._measure(seen)
        self._pairs.observe(stats)
        self._former.count()
        rested = self.batch - self._granted >= self._pause and self.budget.left
        if self._wished and (rested or not self.config.adaptive):
            self._wished, self._schedule.requested, self._granted = False, True, self.batch
        for o in self.splits:
            self._homes[o].split = self._too_hot(o)
        self._find_rest()
        if not self._foreseen:  # else its keys were placed for it
            self._unplanned.append(seen)
            if self.foresight.wonders:
                costs = {o: self._state_rows(o) for o in range(len(self._homes)) if o not in self.fixed}
                self.foresight.judge(attainable(self._homes, seen, costs))
        self._foreseen = False

    def observe_load(self, rows: Loads, busy: Loads, weighed: Loads | None = None) -> None:
        """Take in how many rows each server had in a batch, and how long it worked, by operator.

        Where load is time (``balance="time"``), servers get the part of the keys that they can carry. Once a server's
        speed has changed a new plan is due. ``weighed`` are the rows of operators whose keys were timed, as they weigh:
        dear keys must not make their server look slow. That holds on while keys are not counted.
        """
        if self.config.balance == "rows":
            return
        for o, weight in (weighed or {}).items():
            self._dear[o] = np.where(weight > 0, weight / np.maximum(rows[o], 1), 1.0)
        rows = {o: rows[o] * self._dear.get(o, 1.0) for o in rows}
        if self.capacity.observe(rows, busy):
            self.shares = self.capacity.shares
            self._wished = True
        worked = np.sum(list(busy.values()), axis=0)
        if worked.max() > max(MIN_BUSY, _UNEVEN * worked.mean()):
            self._rest = self._skip = 0  # some key is hot by now, or some server slow: count again

    @property
    def counting(self) -> bool:
        """Whether the keys of the next batch need be counted: where nothing was gained so far, only now and then."""
        return self._skip == 0

    @property
    def undecided(self) -> bool:
        """Whether the first tables are still to be judged: while they are, more counts would change nothing."""
        return self.config.adaptive and not self._started and self.config.look_ahead is not True

    def pass_over(self) -> None:
        """Note that a batch was not counted."""
        self.batch, self._skip = self.batch + 1, max(0, self._skip - 1)

    def _find_rest(self) -> None:
        """Count less and less often while there is nothing to gain: no table, no hot key, no server far too full."""
        refused = len(self.decisions) > 0 or not self.edges
        calm = self.config.adaptive and not self._started and refused and self.batch > 3
        level = max(self.spare.values(), default=0.0) <= _SPARE_FIRST
        calm = calm and level and not any(len(keys) for keys in self.hot.values())
        self._rest = min(_LONGEST_REST, 2 * self._rest or 1) if calm and not self._foreseen else 0
        self._skip = self._rest

    def look_ahead(self, stats: BatchStats) -> None:
        """Take in what the next batch will bring: the next plan places its keys for it."""
        self._unplanned, self._foreseen = [numbered(stats, self._homes, counting=False)], True

    def _state_rows(self, operator: int) -> float:
        """Return how many rows the state of a key weighs."""
        costs = self.config.forecast
        if costs is None or operator in self.free:
            return 0.0
        beside = [number for edge in self.edges if operator in edge for number in edge if number != operator]
        row_bytes = self.sizes.of_rows(len(self.operators), costs)[operator, beside or [operator]]
        return self.sizes.of_state(operator, costs) / float(row_bytes.mean())

    def _measure(self, seen: SeenBatch) -> None:
        """Set the locality and imbalance of a batch, and add it to the outcome of the tables in force."""
        stats, rows = seen.stats, sum(pairs.total for pairs in seen.stats.pairs.values())
        self.locality = local_share(self._homes, seen)
        share = check_shares(self.servers, self.shares)
        for o, counted in stats.keys.items():
            homes = self._homes[o]
            one_home = ~np.isin(counted.left, homes.split)
            at, count = homes.live(seen.keys[o][one_home]), counted.count[one_home]
            load = np.bincount(at, weights=count, minlength=self.servers).astype(np.float64)
            self.imbalance[o] = float((load / share).max() / load.sum()) if load.any() else 1.0
            if o in self.splits and self.config.adaptive:
                self.spare[o] = self._spare(load, first=all(o != b for _, b in self.edges))
        standing = self.standing
        if standing is not None and rows:
            self._watch_for_change(standing)
            standing.record(self.locality)

    def _spare(self, load: NDArray[np.float64], first: bool) -> float:
        """Return the part of the keys whose rows may be worked on elsewhere, so that servers of today's speed level.

        Homes follow speeds and affinity slowly, and never to the row. What a server has too much of goes to others
        until they do.
        """
        speeds = self.capacity.latest
        room = load.sum() * speeds / speeds.sum()
        excess = np.max(np.where(load > 0, 1 - room / np.maximum(load, 1e-9), 0.0), initial=0.0)
        part = _AMPLE * float(excess)
        least = _SPARE_FIRST if first else 0.0
        return round(min(1.0, max(part, least)), 3) if part > _SPARE else 0.0

    def _watch_for_change(self, standing: Reconfiguration) -> None:
        """Ask for new tables once rows have left their servers for two batches: affinity is not what it was."""
        usual = standing.outcome.get("locality", 0.0)
        fell = self.config.adaptive and self._affine() and usual - self.locality > CHANGED * usual
        self._below = self._below + 1 if fell else 0
        rested = self.batch - self._schedule.last >= self._pause and not self._former.rests(self.batch)
        if self._below >= 2 and rested:
            self._below = 0
            self._pairs.outdate()
            self._wished = True

    def route(self, operator: int, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the server of each key now, by its hash if no table lists it."""
        return self._homes[operator].route(hashes)

    def knows(self, operator: int, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which keys have been seen before; all others are new."""
        return self._homes[operator].find(hashes) >= 0

    # ---------------------------------------------------------------- what it plans

    @property
    def due(self) -> bool:
        """Return whether a proposal is due: a period is over, the stream is young, or one was requested."""
        if self.config.adaptive and self.edges and not self._pairs.has_older:
            return False  # nothing could judge it
        if self._proposal is not None:
            return False
        if self.config.adaptive and not self._schedule.requested and not self.budget.left:
            return False
        rests = self._former.rests(self.batch) and not self._schedule.requested
        return self._goes_back or (not rests and self._schedule.due(self.batch))

    @property
    def _goes_back(self) -> bool:
        """Return whether it is time to judge the last tables; what was requested comes first."""
        return self._former.due(self._pairs.batches) and not self._schedule.requested

    @property
    def _pause(self) -> int:
        """Return how many batches pass at least between two tables that are due to a change."""
        return max(2, self.config.batches // 5)

    def request(self) -> None:
        """Request a reconfiguration as soon as possible."""
        self._schedule.requested = True

    def snapshot(self) -> Snapshot:
        """Return a copy of what a proposal needs: batches may go on while it is computed."""
        keys, servers = [], []
        for homes in self._homes:
            faded = homes.counts.counts(_FAINT).without(homes.split)
            keys.append(faded)
            servers.append(homes.homes[homes.find(faded.left)])
        resized, former = self._schedule.resized, self._former.take() if self._goes_back else {}
        early, fresh = (False, False) if former else self._schedule.begin(self.batch)
        return Snapshot(
            replace(self.config, hierarchy=self._tree),
            self.servers,
            self.version,
            keys,
            servers,
            self._one_home(self._pairs.older(_FAINT, keys)),
            self._one_home(self._pairs.recent()),
            self._pairs.batches,
            self.shares,
            self._row_seconds(),
            sizes=replace(self.sizes, rows=dict(self.sizes.rows), states=dict(self.sizes.states)),
            newer=self._one_home(self._pairs.newer(_FAINT, keys)),
            first=not self._started or not self._pairs.has_older,
            judged=self.config.adaptive,
            relief=_LEVELLED if self.config.adaptive and self._all_split() else 0.1,
            fresh=fresh,
            early=early,
            resized=resized,
            key_groups=[homes.key_groups for homes in self._homes],
            fixed=self.fixed,
            free=self.free,
            former=former,
        )

    def _row_seconds(self) -> NDArray[np.float64] | None:
        """Return what a row takes of each operator, where load is time and all operators have shown theirs."""
        costs = self.capacity.costs
        known = [costs.get(o, 0.0) for o in range(len(self.operators)) if o not in self.free]
        if self.config.balance == "rows" or not all(known):
            return None
        return np.array([costs.get(o, 0.0) for o in range(len(self.operators))])

    def _all_split(self) -> bool:
        """Return whether rows of every operator with state may be worked on elsewhere."""
        return self.splits >= set(range(len(self.operators))) - self.free

    def _one_home(self, pairs: Mapping[Edge, PairCounts]) -> dict[Edge, PairCounts]:
        """Return pairs without keys that are split: these are everywhere, and draw nobody."""
        return {(a, b): p.without(self._homes[a].split, self._homes[b].split) for (a, b), p in pairs.items()}

    def stalled(self, computing: bool = False) -> str | None:
        """Return why keys do not move: nothing was decided for three periods, or all was refused, or failed.

        None while decisions come, and once a table is in force also while better ones are refused. ``computing`` says
        whether a proposal is being computed.
        """
        if self.config.period is None or self.batch <= STALLED * self.config.period:
            return None
        since = self.batch - STALLED * self.config.period
        recent = [decision for decision in self.decisions if decision.batch > since]
        if not recent:
            why = "one is still being computed" if computing else "none was computed"
            return f"no reconfiguration was decided on in the last {self.batch - since} batches: {why}"
        if all(decision.error for decision in recent):
            return (
                f"every reconfiguration of the last {self.batch - since} batches failed: {recent[-1].error}"
            )
        if self._started or any(decision.adopted for decision in recent):
            return None
        why = next((d.forecast.why for d in reversed(recent) if d.forecast is not None), "")
        return f"no reconfiguration was adopted in {self.batch} batches; the last was refused: {why}"

    def fail(self, error: str) -> None:
        """Note that a reconfiguration could not be computed; tables stay as they are until the next one."""
        self.failures += 1
        method = str(self.config.partitioner)
        failed = Reconfiguration(self.batch, self.version, method, False, None, 0.0, error=error)
        self.decisions.append(failed)

    def offer(self, proposal: Proposal) -> None:
        """Hand over a proposal for the next plan; one for another number of servers is dropped and requested anew."""
        if proposal.n == self.servers:
            self._proposal = proposal
        else:
            self._schedule.requested = True

    def plan_next(self) -> Plan | None:
        """Return what changes before the next batch, None if nothing does."""
        self._decide()
        foreseen = self._foreseen and bool(self._unplanned)
        ahead = foreseen and self.foresight.automatic
        if self.config.new_keys != "hash" and (ahead or (self._started and self._affine())):
            before = local_share(self._homes, self._unplanned[0]) if foreseen else 0.0
            self._place_new_keys()
            if foreseen:
                self.gained = local_share(self._homes, self._unplanned[0]) - before
                self.foresight.judge(self.gained)
        self._unplanned.clear()
        patches: dict[int, Patch] = {}
        moves: dict[int, Moves] = {}
        for o, homes in enumerate(self._homes):
            changes = homes.publish()
            if changes is not None:
                patches[o], moves[o] = changes
        if not patches:
            return None
        self.version += 1
        return Plan(self.version, patches, moves)

    def _decide(self) -> None:
        """Adopt the proposal handed over, if it pays, and record it either way."""
        proposal, self._proposal = self._proposal, None
        if proposal is None or (proposal.method == BACK and not proposal.adopt):
            return  # the tables in force pay
        if (p := proposal).adopt:
            if p.method == BACK:
                self._former.rest(self.batch)
            elif self.config.adaptive and self.edges:
                self._former.keep(self._homes, p.hashes, p.servers)
            learnt = zip(self._homes, p.hashes, p.servers, p.affinity, strict=True)
            for homes, keys, servers, affinity in learnt:
                homes.adopt(keys, servers, affinity)
            self._started = True
            self.budget.spend()
        decision = Reconfiguration(self.batch, self.version, p.method, p.adopt, p.forecast, p.seconds)
        self.decisions.append(decision)

    def _place_new_keys(self) -> None:
        """Give the keys that were seen a home near the keys they were seen with, if theirs is clearly worse."""
        if not self._unplanned:
            return
        share = check_shares(self.servers, self.shares)
        for o, homes in enumerate(self._homes):
            ties = [tie for seen in self._unplanned for tie in ties_of(self._homes, o, seen)]
            entries = self._unplanned[0].keys[o]
            if len(self._unplanned) > 1:
                entries = np.unique(np.concatenate([seen.keys[o] for seen in self._unplanned]))
            stay = self.config.stay_bonus if self._foreseen else None
            budget = states_to_move(homes) if self.foresight.automatic else None
            terms = self.config.alpha, share, self._closeness, self._state_rows(o), stay, budget
            homes.place(entries, ties, self.batch, *terms)

    # ---------------------------------------------------------------- what others ask

    def table(self, operator: int) -> Table:
        """Return the table of an operator as it is now."""
        homes = self._homes[operator]
        listed = np.flatnonzero(homes.homes >= 0)
        hashes = homes.counts.index.left[listed]
        return Table(hashes, homes.homes[listed], self.servers, self.operators[operator], self.version)

    def listed(self, operator: int) -> int:
        """Return how many keys the table of an operator lists."""
        return int((self._homes[operator].homes >= 0).sum())

    @property
    def known(self) -> tuple[int, int]:
        """Return how many keys, and how many counts of pairs, are remembered."""
        return sum(map(len, self._homes)), len(self._pairs)

    @property
    def hot(self) -> dict[int, NDArray[np.uint64]]:
        """Return the keys that are split, by operator: rows of them may be worked on anywhere."""
        return {o: self._homes[o].split for o in sorted(self.splits)}

    @property
    def standing(self) -> Reconfiguration | None:
        """Return the decision behind the tables in force."""
        return next((d for d in reversed(self.decisions) if d.adopted), None)

    def decided(self, learnt: Iterable[str]) -> dict[str, Any]:
        """Return what was decided beside tables: speeds, keys that are split, and what the ``learnt`` ones need."""
        needs = {o: round(self.heaviest(o), 2) for o, name in enumerate(self.operators) if name in learnt}
        return {
            "speeds": None if self.shares is None else self.capacity.speeds.round(3).tolist(),
            "split": {self.operators[o]: len(keys) for o, keys in self.hot.items() if len(keys)},
            "spare": {self.operators[o]: part for o, part in self.spare.items()},
            "needs": {self.operators[o]: n for o, n in needs.items() if n > 1 and o not in self.splits},
        }

    def heaviest(self, operator: int) -> float:
        """Return how many servers the key with most rows needs: its rows over the fair share of the fastest."""
        weight = self._homes[operator].counts.values()
        fair = weight.sum() * float(check_shares(self.servers, self.shares).max())
        return float(weight.max() / fair) if fair > 0 else 0.0

    def _too_hot(self, operator: int) -> NDArray[np.uint64]:
        """Return the keys that no placement balances: heavier than a server's fair share.

        Where keys have no affinity to lose, all that would make balance hard: from a fifth of a fair share on, the
        bound up to which two choices balance. A key stays split until it is clearly lighter.
        """
        homes = self._homes[operator]
        weight = homes.counts.values()
        fair = weight.sum() * float(check_shares(self.servers, self.shares).max())
        bar = fair * (_HOT if self._affine() else _HOT_APART)
        hashes = homes.counts.index.left
        heavy = np.flatnonzero(weight > _COOLED * bar)
        heavy = heavy[(weight[heavy] >= bar) | np.isin(hashes[heavy], homes.split)]
        return np.sort(hashes[heavy])

    def _affine(self) -> bool:
        """Return whether tables keep rows on their servers, as far as is known."""
        if not self.config.adaptive:
            return True
        if not self.edges:
            return False
        standing = next((d for d in reversed(self.decisions) if d.adopted and d.outcome), None)
        return standing is None or standing.outcome["locality"] - 1 / self.servers > AFFINE

    def weights(self, operator: int, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the recent rows of each key, 0 for keys never seen."""
        homes = self._homes[operator]
        if not len(homes):
            return np.zeros(len(hashes))
        at = homes.find(hashes)
        return np.where(at >= 0, homes.counts.values()[at], 0.0)

    # ---------------------------------------------------------------- what others tell

    def start_from(self, tables: Mapping[int, Table]) -> None:
        """Start with tables that were made offline."""
        for o, table in tables.items():
            self._homes[o].enter(table.hashes, table.instances)
        self._started = True

    def agree_with(self, tables: Mapping[int, Table]) -> None:
        """Take over the tables in force, whatever was remembered: after a restart or a replay."""
        for o, homes in enumerate(self._homes):
            table = tables.get(o, NO_TABLE)
            homes.agree(table.hashes, table.instances)
        self._started = self._started or bool(tables)
        self._unplanned.clear()

    def resize(
        self,
        servers: int,
        shares: NDArray[np.float64] | None = None,
        *,
        key_groups: Mapping[int, NDArray[np.int32]] | None = None,
    ) -> None:
        """Change the number of servers: keys of servers that go are placed anew, and a new plan is due.

        Call it at a batch boundary. Keys that live by hash move with the hash, or with ``key_groups``, the server
        of each key group per operator; moving their states is the caller's task. What was learnt stays.
        """
        self.servers = servers
        self.shares = None if shares is None else check_shares(servers, shares)
        self._dear = {}
        if servers != self.capacity.speeds.size:
            self.capacity = Capacity(servers)
        self._proposal = None
        self._former.take()
        self.set_hierarchy(None)
        for o, homes in enumerate(self._homes):
            homes.resize(servers, (key_groups or {}).get(o))
        self._schedule.requested = self._schedule.resized = True

    def fall_back(self, key_groups: Mapping[int, NDArray[np.int32]]) -> None:
        """Set where keys without an entry live: per operator the server of each key group."""
        for o, homes in enumerate(self._homes):
            homes.resize(self.servers, key_groups.get(o))

    def set_hierarchy(self, tree: Tree | None) -> None:
        """Set which servers share a host or a rack; later proposals and new keys take it into account."""
        if tree is not None and tree == self._tree:
            return
        if tree is not None:
            check_tree(tree, self.servers)
        self._tree = tree
        self._closeness = None if tree is None else closeness(tree, self.servers)

    # ---------------------------------------------------------------- what it keeps

    def state(self, *, copy: bool = True) -> dict[str, Any]:
        """Return everything that later answers depend on: NumPy arrays and plain JSON values, by name.

        Take it after :meth:`plan_next`. A proposal being computed is not part of it: it is computed again from the
        restored statistics. Without ``copy`` the arrays are the manager's own, and change with it.
        """
        out: dict[str, Any] = {
            "about": {
                "operators": self.operators,
                "edges": [list(e) for e in self.edges],
                "servers": self.servers,
                "version": self.version,
                "batch": self.batch,
                "last": self._schedule.last,
                "asked": self._schedule.requested or self._proposal is not None,
                "started": self._started,
                "resized": self._schedule.resized,
                "reconfigurations": self._schedule.count,
                "recent": self._pairs.batches,
                "seen": self._pairs.seen,
                "below": self._below,
                "rest": [self._rest, self._skip],
                "foresight": self.foresight.state(),
                "former": self._former.state(),
                "spare": list(self.spare.items()),
                "dear": [[o, weight.tolist()] for o, weight in self._dear.items()],
                "sizes": self.sizes.state(),
                "wished": [self._wished, self._granted],
                "budget": [self.budget.clock, self.budget.changes],
                "locality": self.locality,
                "imbalance": self.imbalance,
                "decisions": msgspec.to_builtins(list(self.decisions)),
            }
        }
        if self.shares is not None:
            out["shares"] = self.shares
        out.update({f"former.{k}": v for k, v in self._former.arrays().items()})
        out.update({f"capacity.{k}": v for k, v in self.capacity.state().items()})
        for o, homes in enumerate(self._homes):
            out.update({f"keys.{o}.{k}": v for k, v in homes.state().items()})
        out.update(self._pairs.state())
        return {k: v.copy() if copy and isinstance(v, np.ndarray) else v for k, v in out.items()}

    def understands(self, state: Mapping[str, Any]) -> bool:
        """Return whether a saved state is of the same operators and edges."""
        about = state["about"]
        return list(about["operators"]) == self.operators and [tuple(e) for e in about["edges"]] == self.edges

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        about = state["about"]
        if not self.understands(state):
            raise CheckpointMismatch(
                f"the saved locality manager is for operators {about['operators']}, this application has "
                f"{self.operators}: use the checkpoint of this application, or a new one"
            )
        self.servers, self.version, self.batch = about["servers"], about["version"], about["batch"]
        self.shares = state.get("shares")
        self.capacity = Capacity(self.servers)
        if "capacity.speeds" in state:  # not in checkpoints of version 0.2
            self.capacity.restore({k: state[f"capacity.{k}"] for k in self.capacity.state()})
        self._started = about["started"]
        self._schedule.last, self._schedule.count = about["last"], about["reconfigurations"]
        self._schedule.requested, self._schedule.resized = about["asked"], about.get("resized", False)
        self.locality, self.imbalance = about["locality"], list(about["imbalance"])
        self.decisions = deque(msgspec.convert(about["decisions"], list[Reconfiguration]), maxlen=_DECISIONS)
        for o, homes in enumerate(self._homes):
            homes.resize(self.servers)
            start = f"keys.{o}."
            homes.restore({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
        self._pairs.restore(state, about["recent"])
        self._pairs.seen, self._below = about.get("seen", self.batch), about.get("below", 0)
        self.spare = dict(about.get("spare", ()))
        self._dear = {o: np.array(weight) for o, weight in about.get("dear", ())}
        self.sizes = Sizes.restored(about.get("sizes", ([], [])))
        self._wished, self._granted = about.get("wished", (False, -self.config.batches))
        if "budget" in about:
            self.budget.clock, self.budget.changes = about["budget"]
        self._rest, self._skip = about.get("rest", (0, 0))
        if "foresight" in about:
            self.foresight.restore(about["foresight"])
        if "former" in about:
            start = "former."
            arrays = {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}
            self._former.restore(about["former"], arrays)
        self._proposal = None
        self._unplanned = []
