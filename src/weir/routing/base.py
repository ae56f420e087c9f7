"""What a grouping is: the rule that picks the receiving instance of an operator for each row.

A :class:`Grouping` is an immutable description that a user writes down. A :class:`Router` is one running
copy of it, owned by one upstream instance ("source" in the papers). The engine, the simulator and the
figures all route through the same routers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Instances = NDArray[np.int32]
Counters = dict[str, NDArray[np.generic]]


class Router(ABC):
    """Routes the rows of one upstream instance to ``n`` downstream instances.

    Keys arrive as 64-bit hashes (see :mod:`weir.hashing`). ``route`` may change the router's counters;
    everything that later answers depend on is in :meth:`counters`, so that a router restored from them
    goes on exactly as the original would have. That is how a replayed batch routes the same.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"a router needs at least one instance, got {n}")
        self.n = n

    @abstractmethod
    def route(self, keys: Keys) -> Instances:
        """The receiving instance, 0 … n−1, of each key, in the order given."""

    def counters(self) -> Counters:
        """Everything that later answers depend on, as arrays; empty for stateless routers."""
        return {}

    def restore(self, counters: Counters) -> None:  # noqa: B027 - a stateless router has nothing to restore
        """Goes on from counters taken with :meth:`counters`."""


class Grouping(ABC):
    """An immutable, user-facing description of a grouping; compares by value.

    Class attributes say what the grouping may do, and plans are refused by them:

    * ``splits_keys``: rows of one key may reach several instances, so the operator behind it must merge.
    * ``keyed``: it needs a key; otherwise it only suits stateless operators.
    * ``order_free``: the answer for a row depends on that row alone, so rows may be routed chunk by chunk
      in any order. Other groupings are handed all rows of a task at once in a canonical order: a task that
      Spark runs again must route each row as before, although its input arrives in another order.
    """

    name: ClassVar[str]
    splits_keys: ClassVar[bool] = False
    keyed: ClassVar[bool] = True
    order_free: ClassVar[bool] = True

    @abstractmethod
    def router(self, n: int, *, seed: int = 0, source: int = 0, local: int = -1) -> Router:
        """A router to ``n`` instances for upstream instance ``source``.

        ``seed`` makes random choices repeatable; ``local`` is the instance on the same server, −1 if none.
        """
