"""Consistent grouping (CG): workers of unknown and changing strength take the share that they can carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import ParameterError
from weir.routing.base import Counters, CountingGrouping, Feedback, InstanceLoad, RouterContext
from weir.routing.partial_key import taken
from weir.routing.random_choices import RandomChoicesRouter, check_bounds

IDLE, CONTENT, BUSY = -1, 0, 1
Signals = NDArray[np.int8]
SLOTS = 4  # time slots per period
# slots on end without a signal, or with the same one, after which a worker may take larger steps again
SETTLED, INSISTING = 8, 12
CLEAR = 3  # slots of a period in which a worker speaks whose share is far off, which chance does not explain
_PACE = ("step", "top", "run", "way")  # of a router, saved with its loads, as are
_ARRAYS = ("owner", "heard", "streak", "last_busy")


@dataclass(frozen=True)
class Consistent(CountingGrouping):
    """Equal virtual workers by PoRC, and virtual workers that move from busy workers to idle ones.

    Rows are spread evenly over ``virtual · n`` virtual workers, whatever the keys
    (:class:`~weir.routing.random_choices.RandomChoicesRouter`). A worker's load is the number of virtual workers that
    it owns. Once per time slot each worker compares its utilisation with two thresholds and asks for "more" or "less".
    A source pairs the first idle worker with the first busy one and moves virtual workers between them. Nobody needs
    to know anybody's capacity.

    Two things are ours, and can be switched off (``growth=1, light=0`` is the paper's algorithm, ``patience=0``
    what its figures show):

    * *Moves adapt.* A pair moves up to a tenth of a worker's first share: half as many virtual workers once a signal
      stops or turns, twice as many while it repeats. So many small virtual workers, which balance finely, find their
      places as soon as a few large ones. After a turn moves stay small for a while, unless a share is far off.
    * *Light keys stay.* Only heavy keys leave a virtual worker that is full by ``epsilon``.

    Parameters
    ----------
    epsilon
        How far above the average a virtual worker may fill.
    virtual
        Virtual workers per worker at the start; finer shares with more, a little more memory too.
    idle, busy
        Thresholds of utilisation.
    patience
        A worker that has been busy for so many slots, with nobody idle to pair it with, gives virtual workers to the
        one whose last "busy" is longest ago (section VI-A of the paper). 0 turns this off: then nothing moves while
        the load of the whole system lies above ``idle``.
    growth
        Factor by which moves grow and shrink; 1: always a single virtual worker.
    light
        How far above the average a virtual worker may fill before light keys leave it, too; 0: as ``epsilon``.

    **Guarantee.** The number of virtual workers never changes, each worker keeps at least one (without rows
    it would have no acknowledgement to send a signal with), and no virtual worker exceeds its share by more
    than the greater of ``epsilon`` and ``light``. A move concerns later rows only; nothing migrates. Sources that
    hear the same signals, slot by slot, own the same map, however late they hear them.

    References
    ----------
    M. A. U. Nasir et al.: Load balancing for skewed streams on heterogeneous clusters (Consistent Grouping).

    Examples
    --------
    Worker 0 is busy and worker 2 idle in two slots: each time a tenth of a share moves.

    >>> grouping = Consistent(virtual=20)
    >>> router = grouping.router(3)
    >>> for slot in range(2):
    ...     moved = router.feedback(grouping.signals([0.97, 0.8, 0.5]), slot)
    >>> router.owned().tolist()
    [16, 20, 24]
    """

    epsilon: float = 0.01
    virtual: int = 50
    idle: float = 0.75
    busy: float = 0.85
    patience: int = 5
    growth: float = 2.0
    light: float = 0.1
    name: ClassVar[str] = "CG"
    follows_load = True

    def __post_init__(self) -> None:
        check_bounds(self.epsilon, self.virtual)
        if not 0 <= self.idle < self.busy:
            raise ParameterError(f"thresholds must satisfy 0 <= idle < busy, got {self.idle} and {self.busy}")
        if self.patience < 0:
            raise ParameterError(f"patience is a number of time slots, got {self.patience}")
        if not 1 <= self.growth < np.inf:
            raise ParameterError(f"growth is a factor of at least 1, got {self.growth}")
        if not 0 <= self.light < np.inf:
            raise ParameterError(f"light is a share of at least 0, got {self.light}")

    @classmethod
    def of_the_paper(cls, virtual: int = 10, patience: int = 0) -> Consistent:
        """Return the paper's algorithm, for comparisons; ``patience`` above 0 with its section VI-A."""
        return cls(virtual=virtual, patience=patience, growth=1.0, light=0.0)

    def make_router(self, context: RouterContext) -> ConsistentRouter:
        return ConsistentRouter(context, self)

    def feedback(self, load: InstanceLoad) -> list[tuple[list[int], list[int]]] | None:
        """Return signals for the time slots of a period: the slot that each worker speaks about, and what it says.

        A period is cut into :data:`SLOTS` slots as long as its busiest worker takes. Who works for nearly as long is
        busy; the others are idle in the slots in which they have nothing left to do, and say nothing before.
        Utilisation is relative here, so differences within the band between both thresholds mean that all are content.
        """
        longest = load.busy.max()
        if longest <= 0:
            return None
        used = load.busy / longest
        begin = load.period * SLOTS
        within = used >= self.idle / self.busy
        if within.all():
            return [([begin] * len(used), [CONTENT] * len(used))]
        slots = []
        for slot in range(SLOTS):
            idle = ~within & (np.clip(used * SLOTS - slot, 0, 1) < self.idle)
            if idle.any():
                said = np.where(within, np.where(used > self.busy, BUSY, CONTENT), IDLE)
                when = np.where(within | idle, begin + slot, -1)
                slots.append((when.tolist(), said.tolist()))
        return slots

    def signals(self, utilisation: ArrayLike) -> Signals:
        """What each worker says for its utilisation: ``IDLE`` (−1), ``CONTENT`` (0) or ``BUSY`` (+1).

        Utilisation is busy time over time, rows over capacity, or queue length over queue capacity. Where the
        whole system may be saturated, take it relative to the busiest worker: if nobody is ever below
        ``idle``, no pair forms and nothing moves.
        """
        used = np.asarray(utilisation, dtype=np.float64)
        return (used > self.busy).astype(np.int8) - (used < self.idle).astype(np.int8)


class ConsistentRouter(RandomChoicesRouter):
    """One source's view: its loads, its map of virtual workers, its queues of idle and busy workers."""

    def __init__(self, context: RouterContext, grouping: Consistent) -> None:
        bins = grouping.virtual * context.n
        super().__init__(context.n, bins, grouping.epsilon, context.seed, grouping.light)
        n = context.n
        self.patience, self.growth = grouping.patience, grouping.growth
        self.first_owner = self.owner.copy()
        self.heard: NDArray[np.int64] = np.full(n, -1, dtype=np.int64)
        self.streak: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # slots on end that a worker was busy
        self.last_busy: NDArray[np.int64] = np.full(n, -1, dtype=np.int64)
        # one of the paper's ten virtual workers is the most that moves at once
        self.most = max(1.0, grouping.virtual / 10) if self.growth > 1 else 1.0
        self.step: NDArray[np.float64] = np.full(n, self.most)  # virtual workers in a worker's next move
        self.top: NDArray[np.float64] = np.full(n, np.inf)  # and at most so many
        self.run: NDArray[np.int64] = np.zeros(n, np.int64)  # slots on end: quiet, or −: with one signal
        self.way: NDArray[np.int8] = np.zeros(n, np.int8)  # the signal behind its last move; 0: none since
        self._idle: list[int] = []
        self._busy: list[int] = []

    def owned(self) -> NDArray[np.int64]:
        """How many virtual workers each worker has at present."""
        return np.bincount(self.owner, minlength=self.n)

    def shares(self) -> list[int]:
        return [int(count) for count in self.owned()]

    def feedback(self, signals: ArrayLike, slot: ArrayLike, since: int | None = None) -> int:
        """Takes in one signal per worker and moves virtual workers; returns how many moved.

        ``signals`` has, per worker, −1 for idle (wants more), +1 for busy (wants less), 0 for content; ``slot`` is
        the time slot that they are about, one number, or one per worker. A signal no newer than the last one heard
        from its worker is passed over, so repeated and late acknowledgements do no harm; −1 stands for "nothing
        heard".

        Slots from ``since`` on are about one and the same load, that of a period of :data:`SLOTS` slots: what a worker
        says again there is no repetition that would let its moves grow, but tells of as many slots.

        A worker waits in at most one queue, and its newest word counts: one that is content again leaves the
        queue. Workers that speak in one call queue up by slot, then by number.
        """
        said = np.broadcast_to(np.asarray(signals, dtype=np.int64), (self.n,))
        when = np.broadcast_to(np.asarray(slot, dtype=np.int64), (self.n,))
        news = when > self.heard
        if not news.any():
            return 0  # what was heard before must not let busy workers try others once more
        for worker in np.lexsort((np.arange(self.n), when)).tolist():
            if not news[worker]:
                continue
            if since is None or self.heard[worker] < since:
                self._pace(worker, int(said[worker]), 1 if since is None else SLOTS)
            self.heard[worker] = when[worker]
            self._enqueue(worker, int(said[worker]))
        owned = self.owned()
        moved = self._pair(owned)
        return moved + self._probe(owned) if self.patience else moved

    def listen(self, feedback: Feedback) -> None:
        period = max(np.max(slot) for slot, _ in feedback) // SLOTS
        spoken = sum((np.array(slot) >= 0) & (np.array(said) != CONTENT) for slot, said in feedback)
        self.top[(spoken >= CLEAR) & (self.heard < period * SLOTS)] = np.inf
        for slot, signals in feedback:
            self.feedback(np.array(signals, np.int8), slot, since=period * SLOTS)

    def _enqueue(self, worker: int, said: int) -> None:
        if said > 0:
            self.last_busy[worker] = self.heard[worker]
        self.streak[worker] = self.streak[worker] + 1 if said > 0 else 0
        for queue, member in ((self._idle, said < 0), (self._busy, said > 0)):
            if member and worker not in queue:
                queue.append(worker)
            elif not member and worker in queue:
                queue.remove(worker)

    def _pace(self, worker: int, said: int, slots: int) -> None:
        """Let moves grow while a signal repeats, and shrink once it stops or turns.

        Signals that arrive late go on for a while after a worker has its share; so the moves that led beyond it
        must not grow as large again at once. After a turn half of them are the most; that doubles when a signal
        repeats for :data:`INSISTING` slots, and no longer counts when all has been quiet for :data:`SETTLED`.
        """
        way, step, top = int(self.way[worker]), float(self.step[worker]), float(self.top[worker])
        run = int(self.run[worker])
        if said == 0:
            run, step = max(0, run) + slots, step / self.growth
            if run >= SETTLED:
                top, self.way[worker] = np.inf, 0
        elif said == way:
            run, step = min(0, run) - slots, step * self.growth
            if run <= -INSISTING and step > top:
                run, top = 0, top * self.growth
        else:
            run = 0
            if said == -way:
                step /= self.growth
                top, self.way[worker] = max(1.0, step), 0
        self.run[worker], self.top[worker] = run, top
        self.step[worker] = max(1.0, min(step, top, self.most))

    def _pair(self, owned: NDArray[np.int64]) -> int:
        moved = 0
        while self._idle and self._busy:
            busy = self._busy.pop(0)
            if owned[busy] <= 1:
                continue
            moved += self._move(busy, self._idle.pop(0), owned)
        return moved

    def _probe(self, owned: NDArray[np.int64]) -> int:
        """Nobody is idle: those who have been busy for long try the workers that have not complained."""
        calm = [w for w in np.argsort(self.last_busy, kind="stable").tolist() if not self.streak[w]]
        ready = [w for w in self._busy if self.streak[w] >= self.patience and owned[w] > 1]
        takers = [w for w in calm if self.heard[w] >= 0]
        moved = 0
        for busy, taker in zip(ready, takers, strict=False):
            self._busy.remove(busy)
            moved += self._move(busy, taker, owned)
        return moved

    def _move(self, busy: int, taker: int, owned: NDArray[np.int64]) -> int:
        """Move as many virtual workers as both are ready for, at most half of those there are."""
        amount = max(1, min(int(self.step[busy]), int(self.step[taker]), int(owned[busy]) // 2))
        self.owner[self._pick_moves(busy, taker, amount)] = taker
        owned[busy] -= amount
        owned[taker] += amount
        self.way[busy], self.way[taker] = BUSY, IDLE
        return amount

    def _pick_moves(self, busy: int, taker: int, amount: int) -> NDArray[np.int64]:
        """Send virtual workers home if it can, else borrowed ones on: fewer keys get another place."""
        mine = np.flatnonzero(self.owner == busy)
        first = self.first_owner[mine]
        rank = np.argsort(-(2 * (first == taker) + (first != busy)), kind="stable")
        return mine[rank[:amount]]

    def counters(self) -> Counters:
        queues = {"idle": np.array(self._idle, np.int32), "busy": np.array(self._busy, np.int32)}
        mine = {name: getattr(self, name).copy() for name in (*_ARRAYS, *_PACE)}
        return super().counters() | mine | queues

    def restore(self, counters: Counters) -> None:
        """Go on from saved counters.

        Taken with another number of virtual workers, they only say which share of them each worker had. Counters of
        version 0.1 lack the size of moves, which then starts anew.
        """
        saved = counters.get("owner")
        if saved is not None and len(saved) != len(self.owner) and len(counters.get("heard", ())) == self.n:
            counters = counters | self._resized(saved.astype(np.int64))
        super().restore(counters)
        for name in (*_ARRAYS, *(name for name in _PACE if "step" in counters)):
            getattr(self, name)[:] = taken(counters, name, getattr(self, name))
        self._idle = counters["idle"].astype(np.int64).tolist()
        self._busy = counters["busy"].astype(np.int64).tolist()

    def _resized(self, saved: NDArray[np.int64]) -> Counters:
        """Deal the virtual workers out in the proportions of another number of them; rows are counted anew."""
        bins = len(self.owner)
        ends = np.rint(np.cumsum(np.bincount(saved, minlength=self.n)) * bins / len(saved)).astype(np.int64)
        owner = np.repeat(np.arange(self.n), np.diff(ends, prepend=0))
        missing = np.setdiff1d(np.arange(self.n), owner)
        rich = np.argsort(-np.bincount(owner, minlength=self.n)[owner], kind="stable")
        owner[rich[: len(missing)]] = missing
        # everyone keeps what is its own at the start, and only what is over changes hands
        kept = self.first_owner.astype(np.int64)
        have, want = np.bincount(kept, minlength=self.n), np.bincount(owner, minlength=self.n)
        for worker in np.flatnonzero(have > want).tolist():
            spare = np.flatnonzero(kept == worker)[: have[worker] - want[worker]]
            lacking = np.repeat(np.arange(self.n), np.maximum(0, want - np.bincount(kept, minlength=self.n)))
            kept[spare] = lacking[: len(spare)]
        return {"owner": kept, "load": np.zeros(bins, np.int64), "cells": self.cells * 0}
