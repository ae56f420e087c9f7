"""Consistent grouping (CG): workers of unknown and changing strength take the share that they can carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import CheckpointError, ParameterError
from weir.routing.base import Counters, CountingGrouping, Feedback, InstanceLoad, RouterContext
from weir.routing.partial_key import taken
from weir.routing.random_choices import RandomChoicesRouter, check_bounds

IDLE, CONTENT, BUSY = -1, 0, 1
Signals = NDArray[np.int8]
SLOTS = 4  # time slots per batch
_ARRAYS = ("owner", "heard", "streak", "last_busy")  # of a router, saved with its loads


@dataclass(frozen=True)
class Consistent(CountingGrouping):
    """Equal virtual workers by PoRC, and virtual workers that move from busy workers to idle ones.

    Rows are spread over ``virtual · n`` virtual workers by
    :class:`~weir.routing.random_choices.RandomChoices`, so each carries the same load whatever the keys.
    A worker's load is then the number of virtual workers it owns, and that is left to the workers
    (*worker delegation*): once per time slot each compares its utilisation with two thresholds and sends one
    bit, "more" or "less", on the back of its acknowledgements. A source pairs the first idle worker with the
    first busy one and moves one virtual worker between them. Nobody needs to know anybody's capacity.

    Parameters
    ----------
    epsilon
        How far above the average a virtual worker may fill.
    virtual
        Virtual workers per worker at the start; finer shares with more, slower changes too.
    idle, busy
        Thresholds of utilisation.
    patience
        A worker that has been busy for so many slots on end, with nobody idle to pair it with, gives a virtual
        worker to one that is merely content: the one whose last "busy" is longest ago. 0 turns this off.
        It matters when the load of the whole system lies above ``idle``: without it nothing moves then.

    **Guarantee.** The number of virtual workers never changes, each worker keeps at least one (without rows
    it would have no acknowledgement to send a signal with), and no virtual worker exceeds its share by more
    than ``epsilon``, as in PoRC. A move concerns later rows only; nothing migrates. Sources that hear the
    same signals, slot by slot, own the same map, however late they hear them.

    References
    ----------
    M. A. U. Nasir et al.: Load balancing for skewed streams on heterogeneous clusters (Consistent Grouping).

    Examples
    --------
    Worker 0 is busy and worker 2 idle in two slots: two virtual workers move.

    >>> grouping = Consistent(virtual=4)
    >>> router = grouping.router(3)
    >>> for slot in range(2):
    ...     moved = router.feedback(grouping.signals([0.97, 0.8, 0.5]), slot)
    >>> router.owned().tolist()
    [2, 4, 6]
    """

    epsilon: float = 0.01
    virtual: int = 10
    idle: float = 0.75
    busy: float = 0.85
    patience: int = 0
    name: ClassVar[str] = "CG"

    def __post_init__(self) -> None:
        check_bounds(self.epsilon, self.virtual)
        if not 0 <= self.idle < self.busy:
            raise ParameterError(f"thresholds must satisfy 0 <= idle < busy, got {self.idle} and {self.busy}")
        if self.patience < 0:
            raise ParameterError(f"patience is a number of time slots, got {self.patience}")

    def make_router(self, context: RouterContext) -> ConsistentRouter:
        return ConsistentRouter(
            context.n, self.virtual * context.n, self.epsilon, context.seed, self.patience
        )

    def feedback(self, load: InstanceLoad) -> list[tuple[int, list[int]]] | None:
        """Return one signal per worker and time slot.

        A batch is cut into :data:`SLOTS` slots as long as its busiest worker takes, and a worker is busy in a slot
        as long as it still has work left.
        """
        longest = load.busy.max()
        if longest <= 0:
            return None
        slots = []
        for slot in range(SLOTS):
            left = np.clip(load.busy / longest * SLOTS - slot, 0, 1)
            slots.append((load.batch * SLOTS + slot, [int(s) for s in self.signals(left)]))
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

    def __init__(self, n: int, bins: int, epsilon: float, seed: int, patience: int = 0) -> None:
        super().__init__(n, bins, epsilon, seed)
        self.patience = patience
        self.first_owner = self.owner.copy()
        self.heard: NDArray[np.int64] = np.full(n, -1, dtype=np.int64)
        self.streak: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # slots on end that a worker was busy
        self.last_busy: NDArray[np.int64] = np.full(n, -1, dtype=np.int64)
        self._idle: list[int] = []
        self._busy: list[int] = []

    def owned(self) -> NDArray[np.int64]:
        """How many virtual workers each worker has at present."""
        return np.bincount(self.owner, minlength=self.n)

    def shares(self) -> list[int]:
        return [int(count) for count in self.owned()]

    def feedback(self, signals: ArrayLike, slot: ArrayLike) -> int:
        """Takes in one signal per worker and moves virtual workers; returns how many moved.

        ``signals`` has, per worker, −1 for idle (wants more), +1 for busy (wants less), 0 for content; ``slot`` is
        the time slot that they are about, one number, or one per worker. A signal no newer than the last one heard
        from its worker is passed over, so repeated and late acknowledgements do no harm; −1 stands for "nothing
        heard".

        A worker waits in at most one queue, and its newest word counts: one that is content again leaves the
        queue. Workers that speak in one call queue up by slot, then by number.
        """
        said = np.broadcast_to(np.asarray(signals, dtype=np.int64), (self.n,))
        when = np.broadcast_to(np.asarray(slot, dtype=np.int64), (self.n,))
        for worker in np.lexsort((np.arange(self.n), when)).tolist():
            if when[worker] <= self.heard[worker]:
                continue
            self.heard[worker] = when[worker]
            self._enqueue(worker, int(said[worker]))
        moved = self._pair()
        return moved + self._probe() if self.patience else moved

    def listen(self, feedback: Feedback) -> None:
        for slot, signals in feedback:
            self.feedback(np.array(signals, np.int8), slot)

    def _enqueue(self, worker: int, said: int) -> None:
        if said > 0:
            self.last_busy[worker] = self.heard[worker]
        self.streak[worker] = self.streak[worker] + 1 if said > 0 else 0
        for queue, member in ((self._idle, said < 0), (self._busy, said > 0)):
            if member and worker not in queue:
                queue.append(worker)
            elif not member and worker in queue:
                queue.remove(worker)

    def _pair(self) -> int:
        moved = 0
        owned = self.owned()
        while self._idle and self._busy:
            busy = self._busy.pop(0)
            if owned[busy] <= 1:
                continue
            idle = self._idle.pop(0)
            self._move(busy, idle, owned)
            moved += 1
        return moved

    def _probe(self) -> int:
        """Nobody is idle: those who have been busy for long try the workers that have not complained."""
        owned = self.owned()
        calm = [w for w in np.argsort(self.last_busy, kind="stable").tolist() if not self.streak[w]]
        ready = [w for w in self._busy if self.streak[w] >= self.patience and owned[w] > 1]
        takers = [w for w in calm if self.heard[w] >= 0]
        for busy, taker in zip(ready, takers, strict=False):
            self._busy.remove(busy)
            self._move(busy, taker, owned)
        return min(len(ready), len(takers))

    def _move(self, busy: int, taker: int, owned: NDArray[np.int64]) -> None:
        self.owner[self._pick_move(busy, taker)] = taker
        owned[busy] -= 1
        owned[taker] += 1

    def _pick_move(self, busy: int, idle: int) -> int:
        """Sends a virtual worker home if it can, else a borrowed one on: fewer keys get another place."""
        mine = np.flatnonzero(self.owner == busy)
        first = self.first_owner[mine]
        return int(mine[np.argmax(2 * (first == idle) + (first != busy))])

    def counters(self) -> Counters:
        queues = {"idle": np.array(self._idle, np.int32), "busy": np.array(self._busy, np.int32)}
        return super().counters() | {name: getattr(self, name).copy() for name in _ARRAYS} | queues

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        for name in _ARRAYS:
            getattr(self, name)[:] = taken(counters, name, getattr(self, name))
        try:
            self._idle = counters["idle"].astype(np.int64).tolist()
            self._busy = counters["busy"].astype(np.int64).tolist()
        except KeyError as missing:
            raise CheckpointError(f"saved routing counters lack the queue {missing}") from None
