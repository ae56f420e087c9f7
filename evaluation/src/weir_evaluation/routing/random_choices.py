"""Power of random choices (PoRC) by itself: Consistent Grouping without virtual workers that move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weir.routing.base import CountingGrouping, Router, RouterContext
from weir.routing.random_choices import RandomChoicesRouter, check_bounds


@dataclass(frozen=True)
class RandomChoices(CountingGrouping):
    """Every key has its own endless sequence of virtual workers; a row takes the first with room.

    Room means fewer than ``(1 + epsilon) · messages / v`` rows so far, ``v = virtual · n``. Light keys live
    on the first virtual worker of their sequence; a hot key spills over to the next only when that one is
    full, so that it takes no more places than its weight demands.

    Parameters
    ----------
    epsilon
        How far above the average a virtual worker may fill. Small: better balance, more copies of keys.
    virtual
        Virtual workers per instance; virtual worker ``i`` lives on instance ``i % n``.

    **Guarantee.** After ``m`` rows no virtual worker holds more than ``ceil((1 + epsilon) · m / v)``,
    whatever the keys; hence imbalance (fullest over average, minus 1) ≤ ``epsilon + v/m``.

    References
    ----------
    M. A. U. Nasir et al.: Load balancing for skewed streams on heterogeneous clusters (Consistent Grouping),
    Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> keys = np.array([7] * 12 + [8, 9, 10, 11], dtype=np.uint64)
    >>> router = RandomChoices(epsilon=0.25, virtual=1).router(4, seed=3)
    >>> np.bincount(router.route(keys), minlength=4).max() <= np.ceil(1.25 * 16 / 4)
    np.True_
    """

    epsilon: float = 0.01
    virtual: int = 10
    name: ClassVar[str] = "PoRC"

    def __post_init__(self) -> None:
        check_bounds(self.epsilon, self.virtual)

    def make_router(self, context: RouterContext) -> Router:
        return RandomChoicesRouter(context.n, self.virtual * context.n, self.epsilon, context.seed)
