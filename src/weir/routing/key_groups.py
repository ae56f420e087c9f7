"""Key grouping by key groups: the hash, made movable. What scaling in mid-stream turns a hash into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from weir.errors import GroupingError
from weir.hashing import key_group
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext, RoutingRule
from weir.routing.table import Table

KEY_GROUPS = 1 << 14


@dataclass(frozen=True, eq=False)
class KeyGroups(Grouping):
    """Sends each key where its key group lives, and keys with a home of their own there.

    Every key has one home, as with a table; scaling moves key groups. How evenly they can be spread is a matter of
    their number: with 16,384 over 256 instances one key group is 1.6 % of an instance.

    Parameters
    ----------
    homes
        The instance of each key group, see :func:`weir.hashing.key_group`.
    listed
        Keys that live elsewhere than their key group (heavy ones, or those a locality table places).

    Examples
    --------
    >>> keys = np.arange(1_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    >>> two = KeyGroups.like_hash(2)
    >>> bool((two.router(2).route(keys) == key_group(keys, 2)).all())
    True

    :func:`weir.elasticity.keys.regroup` moves key groups when instances come or go.
    """

    homes: Instances = field(repr=False)
    listed: Table | None = None

    name: ClassVar[str] = "key groups"

    def __post_init__(self) -> None:
        homes = np.ascontiguousarray(self.homes, np.int32)
        if not len(homes) or homes.min() < 0:
            raise GroupingError("key groups need a home each; instances count from 0")
        homes.flags.writeable = False
        object.__setattr__(self, "homes", homes)

    @classmethod
    def like_hash(cls, n: int, key_groups: int = KEY_GROUPS) -> KeyGroups:
        """Return key groups that route to ``n`` instances exactly as the plain hash does."""
        return cls(np.repeat(np.arange(n, dtype=np.int32), -(-key_groups // n)))

    @classmethod
    def of_rule(cls, rule: RoutingRule, key_groups: int = KEY_GROUPS) -> KeyGroups:
        """Return key groups that route unlisted keys exactly as a rule does, some thousands of them.

        >>> KeyGroups.of_rule(RoutingRule(np.array([1, 0], np.int32)), 5).homes.tolist()
        [1, 1, 1, 0, 0, 0]
        """
        return cls(np.repeat(rule.homes, -(-key_groups // len(rule.homes))))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, KeyGroups)
            and np.array_equal(self.homes, other.homes)
            and self.listed == other.listed
        )

    def __hash__(self) -> int:
        return hash((self.homes.tobytes(), self.listed))

    def check(self, n: int, where: str) -> None:
        """Raises unless every named instance exists."""
        if self.homes.max() >= n:
            raise GroupingError(
                f"{where}: its key groups name instance {int(self.homes.max())}, but there are only {n}; "
                "rescale the key groups to the parallelism"
            )
        if self.listed is not None:
            self.listed.check(n, where)

    def make_router(self, context: RouterContext) -> Router:
        self.check(context.n, "grouping")
        return _KeyGroupRouter(context.n, self)

    def rule(self, n: int) -> RoutingRule:
        if self.listed is None:
            return RoutingRule(self.homes)
        return RoutingRule(self.homes, self.listed.hashes, self.listed.instances)

    def with_listed(self, listed: Table | None) -> KeyGroups:
        """Return the same key groups with other keys that have homes of their own."""
        return KeyGroups(self.homes, listed if listed is not None and len(listed) else None)


class _KeyGroupRouter(Router):
    def __init__(self, n: int, rule: KeyGroups) -> None:
        super().__init__(n)
        self._rule = rule

    def route(self, keys: Keys) -> Instances:
        home = self._rule.homes[key_group(keys, len(self._rule.homes))]
        if self._rule.listed is None:
            return home
        own = self._rule.listed.find(keys)
        return np.where(own < 0, home, own).astype(np.int32)
