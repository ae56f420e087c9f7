"""Dynamic weight control (DWC): greater shares for receivers whose rows take less time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import ParameterError
from weir.routing.base import Counters
from weir.routing.weighted import ControlState, WeightControl, Weights

FINEST = 1 / 32  # of a full step
# factors of a step while its direction stands, downwards and upwards, and after it has turned
QUICKER_DOWN, QUICKER_UP, AFTER_A_TURN = 2.0, 1.2, 0.5


@dataclass(frozen=True)
class DynamicWeights(WeightControl):
    """Additive increase, multiplicative decrease of weights, in the manner of TCP.

    Once per period every receiver's time per row ``t`` (waiting and execution) is compared with the median ``m``
    of all receivers (the lower one of an even number: of two receivers one can be congested):

    * ``t > alpha · m``: it is congested, its weight halves;
    * ``t < m / alpha``: it has time, its weight grows by ``delta``;
    * between: nothing is wrong, its weight goes back towards its initial value by ``delta``.

    These are the paper's rules but for the third, and for three things that make them settle
    (:class:`PrintedWeights` is the algorithm to the letter):

    * *Recovery.* The paper grows every channel that is not congested, so that weights say ever less about
      distance; its prose only grows those far better than the others, so that a server once halved never gets
      its share back, for a server that has recovered is like the others, not better. Hence the third rule.
    * *Finer steps at each turn.* A queue tells which server is overloaded, not by how much: under full load a
      little too much on one server gathers all waiting rows there. Halving it overloads the next one,
      and so on round the cluster. So a weight that changes direction takes half the step from then on (down
      to 1/32 of one: a factor of 0.98 instead of 0.5), and greater ones again while its direction stands
      (doubling on the way down, by a fifth on the way up): weights close in on what a server can carry, and a
      server that fails is still left quickly.
    * *Shares are relative.* If no factor is at 1 any more, all grow together until one is; and if all weights have
      become small, they are doubled together, for small whole numbers are a coarse measure.

    What changes is one factor per receiver by which its initial weight is multiplied; so near channels stay as
    much heavier than far ones as they were. ``delta`` counts on the heaviest channel.

    Parameters
    ----------
    alpha
        How far from the median is far, above 1.
    delta
        Growth per period.

    **Guarantee.** Weights stay within bounds. From the moment when no receiver is far from the median, all weights
    are back at their initial values after at most ``20 + ceiling / delta`` periods.

    References
    ----------
    F. Chen et al.: Squirrel, network-aware grouping, Algorithm 2. M. Riedmiller, H. Braun: RPROP, 1993, for steps
    that follow the sign of a signal alone.

    Examples
    --------
    Server 2 is slow for two periods, then well again.

    >>> control = DynamicWeights()
    >>> state = control.start(np.array([32, 32, 32]))
    >>> for times in ([1, 1, 5], [1, 1, 5]):
    ...     weights = control.step(state, times)
    >>> weights.tolist()
    [32, 32, 8]
    >>> for calm in range(8):
    ...     weights = control.step(state, [1, 1, 1.2])
    >>> weights.tolist()
    [32, 32, 32]
    """

    alpha: float = 1.2
    delta: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha > 1:
            raise ParameterError(f"alpha must be above 1, got {self.alpha}")
        if self.delta < 1:
            raise ParameterError(f"delta must be at least 1, got {self.delta}")

    def start(self, initial: Weights) -> DynamicState:
        """Return the state of channels that nothing is known of yet."""
        return DynamicState(np.clip(initial, self.floor, self.ceiling))

    def step(self, state: DynamicState, times: ArrayLike, busy: ArrayLike | None = None) -> Weights:
        """Change ``state`` by the receivers' times per row in one period and return the new weights.

        How long receivers were ``busy`` in all plays no part here.

        A time that is not a number stands for "no rows, nothing known": such a receiver goes back towards its
        initial weight. If no receiver has a time, nothing changes.
        """
        t = np.asarray(times, dtype=np.float64)
        if t.shape != state.weights.shape:
            raise ParameterError(
                f"expected one time for each of {len(state.weights)} receivers, got {t.shape}"
            )
        measured = np.isfinite(t)
        if not measured.any():
            return state.weights.copy()
        if (t[measured] < 0).any():
            raise ParameterError(f"times per row must not be negative, got {t[measured].min()}")
        median = np.sort(t[measured])[(measured.sum() - 1) // 2]
        slow = measured & (t > self.alpha * median)
        fast = measured & (t < median / self.alpha)
        goal = np.where(fast, np.inf, 1.0)
        way = np.where(slow, -1, np.sign(goal - state.factor)).astype(np.int8)
        stands = (way == state.way) & (way != 0)
        change = np.where(stands, np.where(slow, QUICKER_DOWN, QUICKER_UP), 1.0)
        change[way * state.way < 0] = AFTER_A_TURN
        step = np.clip(state.step * change, FINEST, 1.0)
        heaviest = state.initial.max()
        grown = self.delta * step / heaviest
        factor = state.factor + np.clip(goal - state.factor, -grown, grown)
        factor = np.where(slow, state.factor * 0.5**step, factor)
        factor /= min(1.0, factor.max())
        state.step[:], state.way[:] = step, way
        state.set(factor, self.floor, self.ceiling)
        return state.weights.copy()


class DynamicState(ControlState):
    """What :class:`DynamicWeights` remembers of one upstream instance's channels."""

    def __init__(self, initial: Weights) -> None:
        super().__init__(initial)
        self.step: NDArray[np.float64] = np.ones(len(initial))  # share of a full step that it takes now
        self.way: NDArray[np.int8] = np.zeros(len(initial), np.int8)  # −1 down, +1 up, 0 at rest

    def restore(self, counters: Counters) -> None:
        """Go on from saved counters; those of another control know nothing of steps, which then start anew."""
        super().restore({"step": np.ones_like(self.step), "way": np.zeros_like(self.way), **counters})
        self.way[counters["initial"] != self.initial] = 0


@dataclass(frozen=True)
class PrintedWeights(WeightControl):
    """Squirrel's Algorithm 2 to the letter.

    Once per period every receiver's time per row is compared with ``alpha`` times the median ``m``: above it the weight
    halves, below it the weight grows by ``delta``. So a receiver like the others grows, too, and the text around the
    algorithm, which only grows those that are far better, says something else. Ours are only the bounds, since shares
    are whole rows, the lower of two medians, and that a receiver without rows, whose time nobody knows, stays.

    Parameters
    ----------
    alpha
        How far from the median is far, above 1.
    delta
        Growth per period.

    **Guarantee.** Weights stay within bounds.

    References
    ----------
    F. Chen et al.: Squirrel, network-aware grouping, Algorithm 2.

    Examples
    --------
    Near and far become alike while nobody is slow; a slow one halves.

    >>> control = PrintedWeights(delta=64)
    >>> state = control.start(np.array([64, 2]))
    >>> control.step(state, [1, 1]).tolist(), control.step(state, [1, 1]).tolist(), control.step(state, [1, 2]).tolist()
    ([128, 66], [192, 130], [256, 65])
    """

    alpha: float = 1.2
    delta: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha > 1 or self.delta < 1:
            raise ParameterError(
                f"alpha must be above 1 and delta at least 1, got {self.alpha} and {self.delta}"
            )

    def step(self, state: ControlState, times: ArrayLike, busy: ArrayLike | None = None) -> Weights:
        """Change ``state`` by the receivers' times per row in one period and return the new weights."""
        t = np.asarray(times, dtype=np.float64)
        measured = np.isfinite(t)
        if measured.any():
            median = np.sort(t[measured])[(measured.sum() - 1) // 2]
            slow, grows = measured & (t > self.alpha * median), measured & (t < self.alpha * median)
            weights = np.where(slow, state.weights // 2, state.weights + self.delta * grows)
            state.weights[:] = np.clip(weights, self.floor, self.ceiling)
        return state.weights.copy()
