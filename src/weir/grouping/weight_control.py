"""Dynamic weight control (DWC): which channels deserve a greater share, judged by how long their rows take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.grouping.base import Counters
from weir.grouping.partial_key import taken

Weights = NDArray[np.int64]


@dataclass(frozen=True)
class DynamicWeights:
    """Additive increase, multiplicative decrease of weights, in the manner of TCP.

    Once per period every channel's time per row ``t`` (waiting and execution at the receiver) is compared with
    the median ``m`` of all channels:

    * ``t > alpha · m``: the receiver is congested, the weight halves;
    * ``t < m / alpha``: the receiver has time, the weight grows by ``delta``;
    * between: nothing is wrong, and the weight goes back towards its initial value by ``delta``.

    The last rule is ours: the paper grows *every* channel that is not congested, so that weights only ever
    stop growing by congestion, and its prose grows only those far below the others, so that a server once
    halved never gets its share back, for a server that has recovered is like the others, not better. Going back
    must not be hasty, though: a server that is slow for good looks fine at a small weight, and every attempt
    to give it more ends in congestion. So a channel rests after it was halved, twice as long each time
    that an attempt has failed, at most ``patience`` periods.

    The median is the lower one of an even number: of two channels one can be congested.

    Parameters
    ----------
    alpha
        How far from the median is far, above 1.
    delta
        Growth per period.
    floor, ceiling
        Bounds of every weight. A floor of 1 keeps a trickle of rows on every channel: without rows a server
        could not show that it has recovered.
    patience
        Longest rest after a halving, in periods; 0 for none.

    **Guarantee.** Weights stay within bounds. From the moment when no channel is far from the median, all weights
    are back at their initial values after at most ``patience + |weight − initial| / delta`` periods (rounded up).

    References
    ----------
    F. Chen et al.: Squirrel, network-aware grouping, Algorithm 2.

    Examples
    --------
    Server 2 is slow for two periods, then well again.

    >>> control = DynamicWeights(delta=4)
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

    alpha: float = 1.5
    delta: int = 1
    floor: int = 1
    ceiling: int = 128
    patience: int = 32

    def __post_init__(self) -> None:
        if not self.alpha > 1:
            raise ValueError(f"alpha must be above 1, got {self.alpha}")
        if self.delta < 1 or self.patience < 0:
            raise ValueError(
                f"delta must be at least 1 and patience at least 0, got {self.delta} and {self.patience}"
            )
        if not 1 <= self.floor <= self.ceiling:
            raise ValueError(
                f"bounds must satisfy 1 <= floor <= ceiling, got {self.floor} and {self.ceiling}"
            )

    def start(self, initial: Weights) -> ControlState:
        """The state of channels that nothing is known of yet."""
        return ControlState(np.clip(initial, self.floor, self.ceiling))

    def step(self, state: ControlState, times: ArrayLike) -> Weights:
        """One period: changes ``state`` by the channels' times per row and returns the new weights.

        A time that is not a number stands for "no rows, nothing known": such a channel goes back towards its
        initial weight. Times that nobody knows at all change nothing.
        """
        t = np.asarray(times, dtype=np.float64)
        if t.shape != state.weights.shape:
            raise ValueError(f"expected one time for each of {len(state.weights)} channels, got {t.shape}")
        known = np.isfinite(t)
        if not known.any():
            return state.weights.copy()
        if (t[known] < 0).any():
            raise ValueError(f"times per row must not be negative, got {t[known].min()}")
        median = np.sort(t[known])[(known.sum() - 1) // 2]
        slow = known & (t > self.alpha * median)
        fast = known & (t < median / self.alpha)
        calm = ~slow & ~fast
        weights, initial = state.weights, state.initial
        # these times were measured at the present weights: only they show whether an attempt has succeeded
        well = ~slow & (weights >= initial)
        state.backoff[well], state.rest[well], state.trying[well] = 0, 0, False
        state.rest[calm] = np.maximum(0, state.rest[calm] - 1)
        back = calm & (state.rest == 0)
        state.trying |= (back | fast) & (weights < initial)
        weights += np.where(back, np.clip(initial - weights, -self.delta, self.delta), 0)
        weights += np.where(fast, self.delta, 0)
        failed = slow & state.trying
        state.backoff[failed] *= 2
        state.backoff[slow] = np.clip(state.backoff[slow], min(1, self.patience), self.patience)
        state.rest[slow] = state.backoff[slow]
        state.trying[slow] = False
        weights[slow] //= 2
        np.clip(weights, self.floor, self.ceiling, out=weights)
        return weights.copy()


class ControlState:
    """What the control remembers of one upstream instance's channels, as plain arrays."""

    def __init__(self, initial: Weights) -> None:
        n = len(initial)
        self.initial: Weights = initial.astype(np.int64)
        self.weights: Weights = self.initial.copy()
        self.rest: NDArray[np.int64] = np.zeros(n, np.int64)  # periods until it may go back
        self.backoff: NDArray[np.int64] = np.zeros(n, np.int64)  # how long it last had to rest
        self.trying: NDArray[np.bool_] = np.zeros(n, np.bool_)  # on the way back since it was last halved

    def counters(self) -> Counters:
        return {k: v.copy() for k, v in vars(self).items()}

    def restore(self, counters: Counters) -> None:
        """Goes on from saved counters; a channel whose initial weight is another one by now starts anew."""
        saved = {k: taken(counters, k, v) for k, v in vars(self).items()}
        same = saved["initial"] == self.initial
        for name, mine in vars(self).items():
            if name != "initial":
                mine[same] = saved[name][same]
