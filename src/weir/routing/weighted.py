"""Weight grouping (WG): near channels get more of the rows, slow ones less (Squirrel); and how weights follow load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.compiled import compiled, helper
from weir.errors import ParameterError
from weir.network.distance import Distance
from weir.network.profile import PAPER, Profile, initial_weights
from weir.routing.base import (
    Counters,
    CountingGrouping,
    Feedback,
    Grouping,
    InstanceLoad,
    Instances,
    Keys,
    Router,
    RouterContext,
    part_of,
)
from weir.routing.checks import answered
from weir.routing.locality_aware import LocalityAware
from weir.routing.partial_key import taken
from weir.routing.shuffle import Shuffle

Weights = NDArray[np.int64]
DEBT = 4  # rounds whose shares a receiver may have had in advance
NOISE = 0.005  # seconds; less is the scheduling of tasks and threads, not load


class ControlState:
    """The state of a control for one upstream instance's channels, as plain arrays."""

    def __init__(self, initial: Weights) -> None:
        self.initial: Weights = initial.astype(np.int64)
        self.weights: Weights = self.initial.copy()
        self.factor: NDArray[np.float64] = np.ones(len(initial))  # by which the initial weight is multiplied

    def set(self, factor: NDArray[np.float64], floor: int, ceiling: int, finer: int = 1) -> None:
        """Multiply the initial weights by a factor per receiver, within bounds; ``finer``: so much below the floor."""
        heaviest = self.initial.max()
        self.factor[:] = np.clip(factor, floor / heaviest / finer, ceiling / heaviest)
        scaled = self.initial * self.factor
        while scaled.max() < heaviest / 2:
            scaled *= 2.0  # the same shares, in more rows: small whole numbers are a coarse measure
        self.weights[:] = np.clip(np.rint(scaled), floor, ceiling)

    def counters(self) -> Counters:
        return {k: v.copy() for k, v in vars(self).items()}

    def restore(self, counters: Counters) -> None:
        """Go on from saved counters; a channel whose initial weight is another one by now starts anew."""
        saved = {k: taken(counters, k, v) for k, v in vars(self).items()}
        same = saved["initial"] == self.initial
        for name, mine in vars(self).items():
            if name != "initial":
                mine[same] = saved[name][same]
                mine[~same] = self.initial[~same] if name == "weights" else 1


@dataclass(frozen=True, kw_only=True)
class WeightControl(ABC):
    """How the weights of :class:`~weir.Weighted` follow load; they stay between ``floor`` and ``ceiling``.

    A floor of 1 keeps a trickle of rows on every channel: without rows a server could not show that it has recovered.
    """

    floor: int = 1
    ceiling: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.ceiling:
            raise ParameterError(
                f"bounds must satisfy 1 <= floor <= ceiling, got {self.floor} and {self.ceiling}"
            )

    def start(self, initial: Weights) -> ControlState:
        """Return the state of channels that nothing is known of yet."""
        return ControlState(np.clip(initial, self.floor, self.ceiling))

    @abstractmethod
    def step(self, state: Any, times: ArrayLike, busy: ArrayLike | None = None) -> Weights:
        """Change the state by the receivers' times per row and busy seconds in one period; return the weights."""


@dataclass(frozen=True)
class BalancedWeights(WeightControl):
    """Weights that make all receivers busy for equally long.

    A receiver that was busy twice as long as the average should have half the rows. So every weight is multiplied by
    the average busy time over its receiver's. Near channels stay as much heavier than far ones as they were.
    Squirrel's own control (``weir_evaluation.routing.DynamicWeights``) only learns from a period who is congested, not
    by how much: once per micro-batch, it takes tens of batches to find its shares.

    Parameters
    ----------
    gain
        Exponent of that ratio: 1 corrects at once what one source alone would see; less is calmer. Above 1, sources
        that all correct at once overshoot, and the load swings to and fro for good.
    band
        Busy times so near to the average, as a share of it, count as equal.
    most
        The most by which a weight changes in one period.

    **Guarantee.** Weights stay within bounds. Equal busy times change nothing. A receiver without rows gains weight, so
    one that has recovered gets its share back.

    Examples
    --------
    Server 2 has half of the others' speed and as many rows: its share halves, and all are busy for equally long.

    >>> control = BalancedWeights()
    >>> state = control.start(np.array([32, 32, 32]))
    >>> weights = control.step(state, [1, 1, 2], busy=[32, 32, 64])
    >>> weights.tolist()
    [32, 32, 16]
    >>> control.step(state, [1, 1, 2], busy=[32, 32, 32]).tolist()
    [32, 32, 16]
    """

    gain: float = 1.0
    band: float = 0.05
    most: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gain <= 1:
            raise ParameterError(f"gain must be above 0 and at most 1, got {self.gain}")
        if not 0 <= self.band < 1 or not self.most > 1:
            raise ParameterError(f"band must be below 1 and most above 1, got {self.band} and {self.most}")

    def step(self, state: ControlState, times: ArrayLike, busy: ArrayLike | None = None) -> Weights:
        """Change ``state`` by the receivers' busy seconds in one period and return the new weights.

        Times per row play no part. Where nothing is known of busy times (in plans of version 0.1), nothing changes.
        """
        if busy is None:
            return state.weights.copy()
        worked = np.nan_to_num(np.asarray(busy, np.float64))
        if worked.shape != state.weights.shape or (worked < 0).any():
            raise ParameterError(
                f"expected a busy time of at least 0 for each of {len(state.weights)} receivers, got {worked.tolist()}"
            )
        if worked.any():
            ratio = (worked.mean() + NOISE) / (worked + NOISE)
            ratio = np.clip(np.where(np.abs(ratio - 1) <= self.band, 1.0, ratio), 1 / self.most, self.most)
            factor = state.factor * ratio**self.gain
            # a slow server's own source prefers it by far: only a very small factor makes it send rows elsewhere
            state.set(factor / factor.max(), self.floor, self.ceiling, finer=64)
        return state.weights.copy()


Seconds = list[float | None]  # per instance


@dataclass(frozen=True)
class Weighted(CountingGrouping):
    """Any grouping, bent towards near and fast receivers by shares per round.

    Every channel from an upstream instance to a receiver has a weight: its share, in rows, of a round. A row takes
    the channel that the default grouping wants if that has share left, else the nearest that has. So receivers get
    rows in proportion to their weights, whatever the keys. Weights begin with distance
    (:func:`~weir.network.profile.initial_weights`) and follow load (:class:`BalancedWeights`).

    With a default by key, the overflow of a key goes elsewhere, so the operator must merge.

    Parameters
    ----------
    default
        Who chooses first: :class:`Shuffle` for operators without state, ``Hash()`` or another grouping by key
        for those that merge.
    profile
        What rows pay by distance; Squirrel's table if omitted. On a network several times as slow, give its own
        :class:`~weir.network.profile.Profile`, or twice the ``near``.
    control
        How weights follow load; ``None`` leaves them as they begin.
    near
        How much nearness counts: 0 not at all, 1 as much as it saves. With control it may be more, for a near
        receiver that has too much gives some away. Without control, take 1 or less if some receivers have more
        upstream instances near them than others.
    scale
        Weight of the nearest channel: finer shares with more, longer rounds too.

    **Guarantee.** While weights stand, every complete round gives each receiver exactly its weight. Every
    weight is at least 1, so every receiver gets rows in every round. The same rows, counters and reports of load
    give the same routes.

    References
    ----------
    F. Chen et al.: Squirrel, network-aware grouping, Algorithms 1 and 2.

    Examples
    --------
    One receiver in this process, one on this host, one elsewhere in the rack.

    >>> router = Weighted().router(3, distances=[0, 1, 2])
    >>> router.weights.tolist()
    [64, 11, 2]
    >>> keys = np.zeros(77, np.uint64)
    >>> np.bincount(router.route(keys)).tolist()
    [64, 11, 2]

    The nearest was busy for twice as long as the average, the farthest not at all: shares shift.

    >>> router.observe([30e-6] * 3, busy=[2.0, 1.0, 0.0]).tolist()
    [32, 11, 8]

    A hot key stays at home (receiver 2) as long as that has share left.

    >>> from weir.routing.hash import Hash
    >>> hot = np.full(5, 2**64 - 1, np.uint64)
    >>> Weighted(Hash()).router(3, distances=[0, 1, 2]).route(hot).tolist()
    [2, 2, 0, 0, 0]
    """

    default: Grouping = field(default_factory=Shuffle)
    profile: Profile = PAPER
    control: WeightControl | None = field(default_factory=BalancedWeights)
    near: float = 1.5
    scale: int = 64
    name: ClassVar[str] = "WG"
    uses_distances = True

    def __post_init__(self) -> None:
        if not isinstance(self.default, Grouping):
            raise ParameterError(
                f"default must be a grouping such as Shuffle() or Hash(), got {self.default!r}"
            )
        if isinstance(self.default, Weighted | LocalityAware):
            raise ParameterError(
                f"default must choose by itself, e.g. Shuffle(), Hash() or Table(…), got {self.default}; "
                "tables that are learnt while the stream runs cannot be weighted"
            )
        if not isinstance(self.profile, Profile):
            raise ParameterError(
                f"profile must be a weir.network.Profile, got {self.profile!r}; networks are no longer measured"
            )
        if self.scale < 1 or not self.near >= 0:
            raise ParameterError(
                f"scale must be at least 1 and near at least 0, got {self.scale} and {self.near}"
            )
        if self.control is not None and not self.control.floor <= self.scale <= self.control.ceiling:
            raise ParameterError(
                f"scale must lie between the control's floor and ceiling, {self.control.floor} and "
                f"{self.control.ceiling}, got {self.scale}"
            )

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """As the default grouping."""
        return self.default.keyed

    @property
    def follows_load(self) -> bool:  # type: ignore[override]
        """Whether weights follow load."""
        return self.control is not None

    def feedback(self, load: InstanceLoad) -> tuple[int, Seconds, Seconds, list[float]] | None:
        """Return the mean execution and waiting time of a row on each instance, None where no row came, and busy times.

        A few milliseconds are added to every waiting time: differences below that say nothing about a server.
        """
        if not load.warm or not load.rows.any():
            return None
        rows = np.where(load.rows > 0, load.rows, np.nan)
        execution, waiting = load.busy / rows, load.waited / rows + NOISE
        return load.period, _or_none(execution), _or_none(waiting), load.busy.tolist()

    def check(self, n: int, where: str) -> None:
        self.default.check(n, where)

    def make_router(self, context: RouterContext) -> WeightedRouter:
        """Return a router for one upstream instance.

        Where nobody knows distances, the receiver on the same server counts as near, and all others as hosts of
        one rack.
        """
        n, far = context.n, context.distances
        if far is None:
            far = np.full(n, Distance.RACK, np.int8)
            if context.local >= 0:
                far[context.local] = Distance.PROCESS
        initial = initial_weights(far, self.profile, scale=self.scale, near=self.near)
        chooser = self.default.make_router(context)
        travel = np.array([self.profile.travel(d) for d in Distance])[far]
        return WeightedRouter(n, chooser, far, travel, initial, self.control, context.source)


def _or_none(values: NDArray[np.float64]) -> Seconds:
    return [None if np.isnan(v) else float(v) for v in values]


class WeightedRouter(Router):
    """One upstream instance's shares: ``weights`` and what is ``used`` of them in this round."""

    def __init__(
        self,
        n: int,
        default: Router,
        distances: NDArray[np.int8],
        travel: NDArray[np.float64],
        initial: Weights,
        control: WeightControl | None,
        source: int,
    ) -> None:
        super().__init__(n)
        self.default = default
        self.distances = distances
        self.travel = travel
        self.control = control
        self.state = ControlState(initial) if control is None else control.start(initial)
        self.used: NDArray[np.int64] = np.zeros(n, np.int64)
        self.at: NDArray[np.int64] = np.zeros(2, np.int64)  # first in order that may have share; shares left
        self.heard = -1
        self.of_all = (
            False  # whether shares are of rows that others than this router have sent somewhere, too
        )
        # of receivers that are alike, each source tries another one first
        self._turn = (np.arange(n) - source) % n
        self._rank()

    @property
    def weights(self) -> Weights:
        """Rows per round, by receiver."""
        return self.state.weights

    @property
    def initial(self) -> Weights:
        """The weights by distance alone."""
        return self.state.initial

    def route(self, keys: Keys) -> Instances:
        out = answered(self.default.route(keys), len(keys), self.n)
        out = out if out.flags.writeable else out.copy()
        _share_out(out, self.weights, self.used, self.order, self.at)
        return out

    def share_all(self) -> None:
        """Let shares be of all rows, those included that others have sent somewhere, if no receiver is nearer."""
        self.of_all = bool((self.distances == self.distances[0]).all())

    def deal(self, keys: Keys, homes: Instances, dealt: NDArray[np.bool_]) -> None:
        """Change where rows that are ``dealt`` go: home while that has share left; all others count, but stay as given.

        Where shares are of all rows (:meth:`share_all`), those that are dealt fill up what others leave. Who has had
        more than its share has less of the next rounds.
        """
        homes[dealt] = self.default.route(keys[dealt])
        if self.of_all:
            _fill_up(homes, dealt, self.weights, self.used, self.order, self.at)
        else:
            some = homes[dealt]
            _share_out(some, self.weights, self.used, self.order, self.at)
            homes[dealt] = some

    def observe(
        self,
        execution: ArrayLike,
        waiting: ArrayLike | None = None,
        slot: int | None = None,
        busy: ArrayLike | None = None,
    ) -> Weights:
        """Takes in how long rows took at each receiver in the last period; returns the new weights.

        The time of the way to each receiver, which is this router's own, is added: an idle receiver far off is
        no better than a near one at which rows wait a little.

        ``execution`` and ``waiting`` are mean seconds per row and receiver, NaN for one that had no rows. Give the
        waiting time if you can: at work that never waits, the time of execution tells slow from fast, but how much
        a slow one can still carry shows in its queue. ``busy`` are the seconds that each receiver worked in all. A
        period whose number (``slot``) is no newer than the last one heard changes nothing, so hearing a report twice
        does no harm.

        Weights change at once, in the middle of a round: a receiver that has had more than its new weight gets
        nothing until the next round.
        """
        if slot is not None:
            if slot <= self.heard:
                return self.weights.copy()
            self.heard = slot
        times = np.asarray(execution, np.float64)
        if waiting is not None:
            times = times + np.asarray(waiting, np.float64)
        if times.shape != (self.n,):
            raise ParameterError(f"expected one time for each of {self.n} receivers, got {times.shape}")
        if self.control is not None:
            self.control.step(self.state, times + self.travel, busy)
            self._rank()
        return self.weights.copy()

    def listen(self, feedback: Feedback) -> None:
        slot, execution, waiting, *busy = feedback  # plans of version 0.1 have no busy times
        times, worked = np.array(execution, float), busy[0] if busy else None
        if self.of_all and np.isfinite(times).any():
            # how long a receiver works for its share is a matter of its speed; what it had beyond that is booked
            worked = np.where(np.isfinite(times), times, np.nanmean(times)) * self.weights
        self.observe(times, np.array(waiting, float), slot, worked)

    def shares(self) -> list[int]:
        return [int(w) for w in self.weights]

    def _rank(self) -> None:
        self.order: NDArray[np.int64] = np.lexsort((self._turn, -self.weights, self.distances))
        left = np.maximum(0, self.weights - self.used).sum()
        if left == 0:
            self.used[:] = 0
            left = self.weights.sum()
        self.at[:] = 0, left

    def counters(self) -> Counters:
        mine: Counters = {"used": self.used.copy(), "heard": np.array([self.heard], np.int64)}
        mine |= {f"weight.{k}": v for k, v in self.state.counters().items()}
        return mine | {f"default.{k}": v for k, v in self.default.counters().items()}

    def restore(self, counters: Counters) -> None:
        self.used[:] = taken(counters, "used", self.used)
        self.heard = int(taken(counters, "heard", np.zeros(1, np.int64))[0])
        self.state.restore(part_of(counters, "weight."))
        self.default.restore(part_of(counters, "default."))
        self._rank()


@helper
def take_share(wanted, weights, used, order, at):  # type: ignore[no-untyped-def]
    """The channel of one row: the wanted one if it has share left, else the first in order that has."""
    chosen = wanted
    if used[chosen] >= weights[chosen]:
        while used[order[at[0]]] >= weights[order[at[0]]]:
            at[0] += 1
        chosen = order[at[0]]
    used[chosen] += 1
    at[1] -= 1
    if at[1] == 0:  # a new round
        at[0] = at[1] = 0
        for channel in range(len(used)):
            used[channel] = 0
            at[1] += weights[channel]
    return chosen


@compiled("out int32[]", "int64[]", "out int64[]", "int64[]", "out int64[]")
def _share_out(out, weights, used, order, at):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = take_share(out[i], weights, used, order, at)


@compiled("out int32[]", "bool[]", "int64[]", "out int64[]", "int64[]", "out int64[]")
def _fill_up(out, dealt, weights, used, order, at):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        chosen = out[i]
        if dealt[i] and used[chosen] >= weights[chosen]:
            while used[order[at[0]]] >= weights[order[at[0]]]:
                at[0] += 1
            chosen = order[at[0]]
            out[i] = chosen
        if used[chosen] < weights[chosen]:
            at[1] -= 1
        used[chosen] += 1
        while at[1] == 0:  # a new round
            at[0] = 0
            for channel in range(len(used)):
                used[channel] = min(used[channel] - weights[channel], DEBT * weights[channel])
                at[1] += max(0, weights[channel] - used[channel])
