"""Key grouping by hashed buckets: the hash, made movable. What scaling in mid-stream turns a hash into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import GroupingError
from weir.hashing import spark_mod
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext, RoutingRule
from weir.routing.table import Table

BUCKETS = 4096


@dataclass(frozen=True, eq=False)
class Buckets(Grouping):
    """Sends each key where its bucket lives, and keys with a home of their own there.

    Every key has one home, as with a table; scaling moves buckets. How evenly they can be spread is a matter of
    their number: with 4096 over 64 instances one bucket is 1.6 % of an instance.

    Parameters
    ----------
    homes
        The instance of each bucket; a key's bucket is its hash modulo their number.
    listed
        Keys that live elsewhere than their bucket (heavy ones, or those a locality table places).

    Examples
    --------
    >>> keys = np.arange(1_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    >>> two = Buckets.like_hash(2)
    >>> bool((two.router(2).route(keys) == spark_mod(keys, 2)).all())
    True

    :func:`weir.elasticity.keys.spread` moves buckets when instances come or go.
    """

    homes: Instances = field(repr=False)
    listed: Table | None = None

    name: ClassVar[str] = "buckets"

    def __post_init__(self) -> None:
        homes = np.ascontiguousarray(self.homes, np.int32)
        if not len(homes) or homes.min() < 0:
            raise GroupingError("buckets need a home each; instances count from 0")
        homes.flags.writeable = False
        object.__setattr__(self, "homes", homes)

    @classmethod
    def like_hash(cls, n: int, buckets: int = BUCKETS, listed: Table | None = None) -> Buckets:
        """Buckets that route to ``n`` instances exactly as the plain hash does (or a table with it)."""
        size = n * max(1, -(-buckets // n))
        return cls((np.arange(size) % n).astype(np.int32), listed)

    @classmethod
    def of_rule(cls, rule: RoutingRule, buckets: int = BUCKETS) -> Buckets:
        """Return buckets that route unlisted keys exactly as a rule does, some thousands of them.

        >>> Buckets.of_rule(RoutingRule(np.array([1, 0], np.int32)), 5).homes.tolist()
        [1, 0, 1, 0, 1, 0]
        """
        return cls(np.tile(rule.homes, max(1, -(-buckets // len(rule.homes)))))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Buckets)
            and np.array_equal(self.homes, other.homes)
            and self.listed == other.listed
        )

    def __hash__(self) -> int:
        return hash((self.homes.tobytes(), self.listed))

    def bucket(self, keys: Keys) -> NDArray[np.int32]:
        """The bucket of each key."""
        return spark_mod(keys, len(self.homes))

    def count(self, keys: Keys, weights: ArrayLike | None = None) -> NDArray[np.float64]:
        """Keys, or their weights, per bucket, without those that have a home of their own."""
        load = np.ones(len(keys)) if weights is None else np.asarray(weights, np.float64)
        if self.listed is not None:
            load = np.where(self.listed.find(keys) < 0, load, 0.0)
        return np.bincount(self.bucket(keys), load, minlength=len(self.homes)).astype(np.float64)

    def check(self, n: int, where: str) -> None:
        """Raises unless every named instance exists."""
        if self.homes.max() >= n:
            raise GroupingError(
                f"{where}: its buckets name instance {int(self.homes.max())}, but there are only {n}; "
                "rescale the buckets to the parallelism"
            )
        if self.listed is not None:
            self.listed.check(n, where)

    def make_router(self, context: RouterContext) -> Router:
        self.check(context.n, "grouping")
        return _BucketRouter(context.n, self)

    def rule(self, n: int) -> RoutingRule:
        if self.listed is None:
            return RoutingRule(self.homes)
        return RoutingRule(self.homes, self.listed.hashes, self.listed.instances)

    def with_listed(self, listed: Table | None) -> Buckets:
        """Return the same buckets with other keys that have homes of their own."""
        return Buckets(self.homes, listed if listed is not None and len(listed) else None)


class _BucketRouter(Router):
    def __init__(self, n: int, rule: Buckets) -> None:
        super().__init__(n)
        self._rule = rule

    def route(self, keys: Keys) -> Instances:
        home = self._rule.homes[self._rule.bucket(keys)]
        if self._rule.listed is None:
            return home
        own = self._rule.listed.find(keys)
        return np.where(own < 0, home, own).astype(np.int32)
