"""Key grouping by hash (KG, "fields grouping"): the default of every stream engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir.hashing import spark_mod
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext, RoutingRule


@dataclass(frozen=True)
class Hash(Grouping):
    """Every key has one home, chosen by its hash.

    Perfect for memory (a key lives in one place), helpless against hot keys, blind to locality: the next
    hop of a row stays on its server with probability 1/n.

    >>> keys = np.array([1, 2, 1, 9], dtype=np.uint64)
    >>> Hash().router(4).route(keys).tolist()
    [1, 2, 1, 1]
    """

    name: ClassVar[str] = "KG"
    scales_by_bucket: ClassVar[bool] = True

    def make_router(self, context: RouterContext) -> Router:
        return _HashRouter(context.n)

    def rule(self, n: int) -> RoutingRule:
        return RoutingRule(np.arange(n, dtype=np.int32))


class _HashRouter(Router):
    def route(self, keys: Keys) -> Instances:
        return spark_mod(keys, self.n)
