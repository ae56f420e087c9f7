"""A table turned against itself: the lower bound in the figures of locality-aware routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext, RoutingRule
from weir.routing.table import Table


@dataclass(frozen=True)
class WorstCase(Grouping):
    """Every key of a table one instance off, for experiments.

    Keys that the table would bring together are kept apart, so pairs that ought to be local always cross
    the network.

    >>> import pyarrow as pa
    >>> from weir.hashing import hash_columns
    >>> keys = hash_columns([pa.array(["US", "FR"])])
    >>> WorstCase(Table.of({"FR": 1, "US": 0})).router(2).route(keys).tolist()
    [1, 0]
    """

    table: Table

    name: ClassVar[str] = "worst"
    scales: ClassVar[bool] = False  # type: ignore[misc] # it is the opposite of one table

    def make_router(self, context: RouterContext) -> Router:
        return _ShiftedRouter(context.n, self.table)

    def rule(self, n: int) -> RoutingRule:
        shifted = ((self.table.instances + 1) % n).astype(np.int32)
        return RoutingRule(((np.arange(n) + 1) % n).astype(np.int32), self.table.hashes, shifted)

    def check(self, n: int, where: str) -> None:
        self.table.check(n, where)

    def signature(self) -> list[Any]:
        return [self.name, self.table.signature()]


class _ShiftedRouter(Router):
    def __init__(self, n: int, table: Table) -> None:
        super().__init__(n)
        self._table = table

    def route(self, keys: Keys) -> Instances:
        return ((self._table.route(keys, self.n) + 1) % self.n).astype(np.int32)
