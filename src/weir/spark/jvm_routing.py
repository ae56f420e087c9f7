"""Routing inside the JVM: the first hop, as Spark column expressions.

The slot of a row is computed by code that Spark generates, so rows on their way to the first operator never
pass through Python. Hashes agree with :mod:`weir.hashing` bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba as nb
import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from weir.hashing import spark_mod
from weir.routing.base import Grouping
from weir.routing.buckets import Buckets
from weir.routing.hash import Hash
from weir.routing.locality_aware import NO_TABLE, Learnt, LearntSplit
from weir.routing.table import Table, WorstCase

if TYPE_CHECKING:
    from weir.graph.model import Node

LITERAL_LIMIT = 30_000  # listed keys that a literal look-up table may hold
_SMALLEST = 4096  # places of a look-up table that may yet be learnt


def can_route(grouping: Grouping) -> bool:
    """Whether the JVM can route by this grouping."""
    if isinstance(grouping, WorstCase):
        return can_route(grouping.table)
    if isinstance(grouping, Learnt):
        return can_route(grouping.homes)
    if isinstance(grouping, Table):
        return len(grouping) <= LITERAL_LIMIT
    if isinstance(grouping, Buckets):
        listed = 0 if grouping.listed is None else len(grouping.listed)
        return listed + len(grouping.homes) <= LITERAL_LIMIT
    return isinstance(grouping, Hash)


def slot_of(
    node: Node, grouping: Grouping, slots: list[int], columns: dict[str, str], everything: list[str]
) -> Column:
    """The slot of the server to which each row of a source goes.

    ``columns`` maps the key's columns to their names in the source's DataFrame. Rows without a key are spread by
    their content; the operator's policy decides about them on arrival.
    """
    keys = [F.col(f"`{columns[k]}`") for k in node.key]
    missing = keys[0].isNull()
    for key in keys[1:]:
        missing = missing | key.isNull()
    spread = F.xxhash64(*[F.col(f"`{c}`") for c in everything])
    hashed = F.when(missing, spread).otherwise(F.xxhash64(*keys))
    shift, table, buckets = 0, None, None
    rule = grouping.homes if isinstance(grouping, Learnt) else grouping
    if isinstance(rule, WorstCase):
        shift, table = 1, rule.table
    elif isinstance(rule, Table):
        table = rule
    elif isinstance(rule, Buckets):
        table, buckets = rule.listed, rule.homes
    n = len(node.placement)
    by_instance = [slots[node.placement[(i + shift) % n]] for i in range(n)]
    homes = F.array(*[F.lit(s) for s in by_instance])
    if isinstance(grouping, LearntSplit) and len(grouping.hot):
        # a key too hot for one server is spread by its rows' content
        hot = hashed.isin([int(h) for h in grouping.hot.view(np.int64)])
        hashed = F.when(hot, spread).otherwise(hashed)
    if buckets is None:
        fallback = F.element_at(homes, (F.pmod(hashed, F.lit(n)) + 1).cast("int"))
    else:
        by_bucket = _literal(np.array(by_instance, np.int32)[buckets], "int")
        fallback = F.element_at(by_bucket, (F.pmod(hashed, F.lit(len(buckets))) + 1).cast("int"))
    # Spark's code is the same for all tables of one size: one that is still empty, or grows, must not have the JVM
    # compile and warm up other code in the middle of the stream
    least, factor = (_SMALLEST, 4) if isinstance(grouping, Learnt) else (0, 2)
    if table is None:
        table = NO_TABLE
    if not len(table) and not least:
        return fallback
    # a key whose home is its hash anyway needs no entry
    by_hash = (
        spark_mod(table.hashes, n) if buckets is None else buckets[spark_mod(table.hashes, len(buckets))]
    )
    listed = table.instances != by_hash
    keys_at, home_at = two_choice_table(table.hashes[listed], table.instances[listed], least or 8, factor)
    mask = len(keys_at) - 1
    known = _literal(keys_at.view(np.int64), "bigint")
    where = _literal(np.array([*by_instance, -1], np.int32)[home_at], "int")
    first = (hashed.bitwiseAND(F.lit(mask)) + 1).cast("int")
    second = (F.shiftrightunsigned(hashed, 32).bitwiseAND(F.lit(mask)) + 1).cast("int")
    return (
        F.when(F.element_at(known, first) == hashed, F.element_at(where, first))
        .when(F.element_at(known, second) == hashed, F.element_at(where, second))
        .otherwise(fallback)
    )


def _literal(values: NDArray[np.generic], kind: str) -> Column:
    """A constant array, made from one string: folded once per query instead of built element by element."""
    text = ",".join(map(str, values.tolist()))
    return F.split(F.lit(text), ",").cast(f"array<{kind}>")


@nb.njit(cache=True)
def _place(hashes, homes, size):  # type: ignore[no-untyped-def]
    keys = np.zeros(size, np.uint64)
    values = np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    for i in range(len(hashes)):
        key, home = hashes[i], homes[i]
        at = key & mask
        placed = False
        for _ in range(200):
            if values[at] < 0:
                keys[at], values[at] = key, home
                placed = True
                break
            other_key, other_home = keys[at], values[at]
            keys[at], values[at] = key, home
            key, home = other_key, other_home
            one, two = key & mask, (key >> np.uint64(32)) & mask
            at = two if at == one else one
        if not placed:
            return keys, values, False
    return keys, values, True


def two_choice_table(
    hashes: NDArray[np.uint64], homes: NDArray[np.int32], least: int = 8, factor: int = 2
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """A cuckoo table: every key is in one of two places, so a look-up is two comparisons.

    Its size is ``least``, or that times the smallest power of ``factor`` that will do. Empty places hold −1 as home.
    An empty place's key is one that could never be found there.

    >>> keys, homes = two_choice_table(np.array([5, 9], np.uint64), np.array([1, 0], np.int32))
    >>> int(homes[keys == 9][0])
    0
    """
    size = least
    while size < 2.5 * len(hashes):
        size *= factor
    while True:
        keys, values, done = _place(hashes, homes, size)
        if done:
            break
        size *= factor
    # 0 would match the hash 0 in an empty place; give empty places a key whose first choice is elsewhere
    empty = values < 0
    places = np.flatnonzero(empty).astype(np.uint64)
    flipped = places ^ np.uint64(1)
    keys[empty] = flipped | (flipped << np.uint64(32))
    return keys, values
