"""Key grouping by hash (KG, "fields grouping"): the default of every stream engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir.hashing import key_group
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext, RoutingRule


@dataclass(frozen=True)
class Hash(Grouping):
    """Every key has one home, chosen by its hash.

    Perfect for memory (a key lives in one place), helpless against hot keys, blind to locality: the next
    hop of a row stays on its server with probability 1/n.

    An instance has a contiguous range of the hashes.

    >>> keys = np.array([1, 2**62, 2**63, 1], np.uint64)
    >>> Hash().router(4).route(keys).tolist()
    [0, 1, 2, 0]
    """

    name: ClassVar[str] = "KG"
    scales_by_key_group: ClassVar[bool] = True

    def make_router(self, context: RouterContext) -> Router:
        return _HashRouter(context.n)

    def rule(self, n: int) -> RoutingRule:
        return RoutingRule(np.arange(n, dtype=np.int32))


class _HashRouter(Router):
    def route(self, keys: Keys) -> Instances:
        return key_group(keys, self.n)
