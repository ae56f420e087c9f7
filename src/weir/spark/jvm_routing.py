"""Routing inside the JVM: the first hop, as Spark column expressions.

The slot of a row is computed by code that Spark generates, so rows on their way to the first operator never
pass through Python. It is made from a grouping's rule (:class:`weir.routing.RoutingRule`), and agrees with its
routers bit for bit: hashes are those of :mod:`weir.hashing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from weir.hashing import key_group
from weir.routing.base import RoutingRule
from weir.routing.cuckoo import two_choice_table

LITERAL_LIMIT = 30_000  # listed keys and key groups that literal look-up tables may hold
_ROOM = 4096  # places of a look-up table that may yet fill


def compiles(rule: RoutingRule | None, instances: int) -> bool:
    """Return whether the JVM can route by a rule."""
    if rule is None:
        return False
    key_groups = len(rule.homes) if len(rule.homes) > instances else 0
    return len(rule.listed) + key_groups <= LITERAL_LIMIT


def slot_of(rule: RoutingRule, slots: Sequence[int], keys: Sequence[Column], row: Sequence[Column]) -> Column:
    """Return the slot of the server to which each row of a source goes.

    ``slots`` has the slot of each instance's server, ``keys`` the key's columns, ``row`` all columns. Rows without
    a key are spread by their content; the operator's policy decides about them on arrival.
    """
    missing = keys[0].isNull()
    for key in keys[1:]:
        missing = missing | key.isNull()
    spread = F.xxhash64(*row)
    hashed = F.when(missing, spread).otherwise(F.xxhash64(*keys))
    if len(rule.spread):
        hot = hashed.isin([int(h) for h in rule.spread.view(np.int64)])
        hashed = F.when(hot, spread).otherwise(hashed)
    by_group = np.array(slots, np.int32)[rule.homes]
    if len(by_group) <= len(slots):
        homes = F.array(*[F.lit(int(s)) for s in by_group])
    else:
        homes = _literal(by_group, "int")
    group = F.shiftright(F.shiftrightunsigned(hashed, 32) * F.lit(len(by_group)), 32)
    fallback = F.element_at(homes, (group + 1).cast("int"))
    if not len(rule.listed) and not rule.grows:
        return fallback
    # a key whose home is its key group's anyway needs no entry
    elsewhere = rule.instances != rule.homes[key_group(rule.listed, len(rule.homes))]
    # Spark's code is the same for all tables of one size: one that is still empty, or grows, must not have the JVM
    # compile and warm up other code in the middle of the stream
    least, factor = (_ROOM, 4) if rule.grows else (8, 2)
    keys_at, home_at = two_choice_table(rule.listed[elsewhere], rule.instances[elsewhere], least, factor)
    mask = len(keys_at) - 1
    listed = _literal(keys_at.view(np.int64), "bigint")
    where = _literal(np.array([*slots, -1], np.int32)[home_at], "int")
    first = (hashed.bitwiseAND(F.lit(mask)) + 1).cast("int")
    second = (F.shiftrightunsigned(hashed, 32).bitwiseAND(F.lit(mask)) + 1).cast("int")
    return (
        F.when(F.element_at(listed, first) == hashed, F.element_at(where, first))
        .when(F.element_at(listed, second) == hashed, F.element_at(where, second))
        .otherwise(fallback)
    )


def _literal(values: NDArray[np.generic], kind: str) -> Column:
    """Return a constant array, made from one string: folded once per query instead of built element by element."""
    text = ",".join(map(str, values.tolist()))
    return F.split(F.lit(text), ",").cast(f"array<{kind}>")
