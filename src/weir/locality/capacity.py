"""What each server can carry, from the rows and the busy seconds that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Loads = Mapping[int, NDArray[np.float64]]  # operator → a number per server

WINDOW = 3  # batches whose median counts: one strange batch changes nothing
CHANGED = (
    1.25  # a server's speed must differ by this factor from what its share says before the share follows
)
ALIKE = 1.12  # servers whose speeds differ by less are equal
FADE = 0.7  # of what is remembered of an operator's cost from batch to batch
SUDDEN = 1.5  # factor by which a speed must differ to be believed after a single batch
MIN_BUSY = 0.1  # seconds of work below which a server's batch says nothing about its speed


def slowed(now: NDArray[np.float64], before: NDArray[np.float64]) -> bool:
    """Return whether some server has become slow: its rows take half as long again as before, against the others'.

    Given are seconds per row of each server, in a batch so far and in the last one, not a number where none is known.

    >>> before = np.full(4, 0.001)
    >>> slowed(np.array([0.002, 0.002, 0.002, np.nan]), before), slowed(np.array([0.001, 0.002, 0.001, 0.001]), before)
    (False, True)
    """
    factor = now[np.isfinite(now) & (before > 0)] / before[np.isfinite(now) & (before > 0)]
    return bool(len(factor) > 1 and factor.max() > SUDDEN * np.median(factor))


class Capacity:
    """The relative speed of every server, measured, and steady: noise changes no share.

    A server's speed in a batch is the time that its rows would take at each operator's usual cost, over the time that
    they took. The usual cost is the median over servers. Of the last three batches the median counts, and a server's
    share follows only when that is off by a quarter, so a change shows after two batches and chance does not.

    >>> capacity = Capacity(4)
    >>> rows = {0: np.full(4, 1000.0)}
    >>> busy = {0: np.array([0.5, 0.5, 0.5, 1.0])}
    >>> [capacity.observe(rows, busy) for _ in range(3)]
    [False, True, False]
    >>> capacity.shares.round(3).tolist()
    [0.286, 0.286, 0.286, 0.143]
    """

    def __init__(self, servers: int) -> None:
        self.costs: dict[int, float] = {}  # operator → usual seconds per row
        self.speeds: NDArray[np.float64] = np.ones(servers)
        self._recent: NDArray[np.float64] = np.full((WINDOW, servers), np.nan)

    def observe(self, rows: Loads, busy: Loads) -> bool:
        """Take in a batch: rows and busy seconds by operator and server; return whether shares have changed."""
        expected, worked = np.zeros(len(self.speeds)), np.zeros(len(self.speeds))
        for operator, seconds in busy.items():
            done = rows[operator]
            some = (done > 0) & (seconds > 0)
            if some.any():
                usual = float(np.median(seconds[some] / done[some]))
                self.costs[operator] = usual + FADE * (self.costs.get(operator, usual) - usual)
                expected += done * usual
                worked += seconds
        known = worked >= MIN_BUSY
        if known.sum() < 2:
            return False
        now = np.where(known, expected / np.maximum(worked, MIN_BUSY), np.nan)
        now /= np.nanmedian(now)
        self._recent = np.vstack([self._recent[1:], now])
        seen = np.isfinite(self._recent).sum(axis=0) >= WINDOW - 1
        if not seen.any():
            return False
        measured = self.speeds.copy()
        measured[seen] = np.nanmedian(self._recent[:, seen], axis=0)
        off = np.maximum(measured / self.speeds, self.speeds / measured) > CHANGED
        if not off.any():
            return False
        # the others' speeds are measured as well by now: shares are of one piece
        self.speeds = measured
        return True

    @property
    def latest(self) -> NDArray[np.float64]:
        """The speed of every server, or that of the last batch where it is quite another."""
        last = np.where(np.isfinite(self._recent[-1]), self._recent[-1], self.speeds)
        sudden = np.maximum(last / self.speeds, self.speeds / last) > SUDDEN
        return np.where(sudden, last, self.speeds)

    @property
    def shares(self) -> NDArray[np.float64] | None:
        """What part of the load each server should have; None if all are alike, and the same for those that are."""
        order = np.argsort(self.speeds, kind="stable")
        ranked = self.speeds[order]
        kind = np.zeros(len(ranked), np.int64)
        for i in range(1, len(ranked)):
            kind[i] = kind[i - 1] + (ranked[i] > ALIKE * ranked[np.searchsorted(kind[:i], kind[i - 1])])
        if not kind.any():
            return None
        even = np.empty(len(ranked))
        even[order] = (np.bincount(kind, ranked) / np.bincount(kind))[kind]
        return np.asarray(even / even.sum())

    def state(self) -> dict[str, NDArray[Any]]:
        costs = np.array([[o, cost] for o, cost in self.costs.items()]).reshape(-1, 2)
        return {"speeds": self.speeds, "recent": self._recent, "costs": costs}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state["speeds"].shape == self.speeds.shape:
            self.speeds, self._recent = state["speeds"].copy(), state["recent"].copy()
        self.costs = {int(o): float(cost) for o, cost in state["costs"]}
