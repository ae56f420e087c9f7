"""Balanced weights: shares straight from the time that receivers were busy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import ParameterError
from weir.routing.base import Counters
from weir.routing.partial_key import taken

Weights = NDArray[np.int64]
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
