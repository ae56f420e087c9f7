"""Key grouping by an explicit table, with the hash for keys that it does not list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import GroupingError
from weir.hashing import hash_columns, spark_mod
from weir.routing.base import Grouping, Instances, Keys, Router


@dataclass(frozen=True, eq=False)
class Table(Grouping):
    """Sends each listed key to the instance that the table names, all others by their hash.

    A table holds 64-bit hashes, not keys: two keys with one hash would simply share a home.

    Parameters
    ----------
    hashes
        Hashes of the listed keys (:func:`weir.hashing.hash_columns`), distinct.
    instances
        The instance of each.

    Examples
    --------
    >>> table = Table.of({"FR": 1, "US": 0})
    >>> keys = hash_columns([pa.array(["US", "FR", "US"])])
    >>> table.router(2).route(keys).tolist()
    [0, 1, 0]
    """

    hashes: NDArray[np.uint64] = field(repr=False)
    instances: NDArray[np.int32] = field(repr=False)

    name: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        hashes = np.ascontiguousarray(self.hashes, np.uint64)
        instances = np.ascontiguousarray(self.instances, np.int32)
        if len(hashes) != len(instances):
            raise GroupingError(
                f"a table of {len(hashes)} keys needs as many instances, got {len(instances)}"
            )
        order = np.argsort(hashes, kind="stable")
        hashes, instances = hashes[order], instances[order]
        if len(hashes) and (hashes[1:] == hashes[:-1]).any():
            raise GroupingError("a routing table lists a key twice; every key has one home")
        if len(instances) and instances.min() < 0:
            raise GroupingError("a routing table names a negative instance; instances count from 0")
        object.__setattr__(self, "hashes", hashes)
        object.__setattr__(self, "instances", instances)

    def __len__(self) -> int:
        return len(self.hashes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and np.array_equal(self.hashes, other.hashes)
            and np.array_equal(self.instances, other.instances)
        )

    def __hash__(self) -> int:
        return hash((self.hashes.tobytes(), self.instances.tobytes()))

    @classmethod
    def of(cls, homes: Mapping[Any, int], types: Sequence[pa.DataType] | None = None) -> Table:
        """A table from ``{key: instance}``; a key of several columns is a tuple.

        ``types`` are the key columns' Arrow types; needed when they aren't what Arrow would guess (a Python
        int is taken as a 64-bit integer).
        """
        if not homes:
            return cls(np.empty(0, np.uint64), np.empty(0, np.int32))
        keys = [k if isinstance(k, tuple) else (k,) for k in homes]
        columns = [
            pa.array(values, None if types is None else types[i])
            for i, values in enumerate(zip(*keys, strict=True))
        ]
        return cls(hash_columns(columns), np.array(list(homes.values()), np.int32))

    def lookup(self, keys: Keys) -> Instances:
        """The listed instance of each key, −1 for those not listed."""
        if not len(self.hashes):
            return np.full(len(keys), -1, np.int32)
        at = np.searchsorted(self.hashes, keys)
        at[at == len(self.hashes)] = 0
        return np.where(self.hashes[at] == keys, self.instances[at], np.int32(-1)).astype(np.int32)

    def check(self, n: int, where: str) -> None:
        """Raises unless every listed instance exists."""
        if len(self.instances) and self.instances.max() >= n:
            raise GroupingError(
                f"{where}: its routing table names instance {int(self.instances.max())}, but there are only "
                f"{n} (0 … {n - 1}); raise the parallelism or make the table anew for {n}"
            )

    def router(self, n: int, *, seed: int = 0, source: int = 0, local: int = -1) -> Router:
        return _TableRouter(n, self, 0)


class _TableRouter(Router):
    def __init__(self, n: int, table: Table, shift: int) -> None:
        super().__init__(n)
        self._table = table
        self._shift = shift

    def route(self, keys: Keys) -> Instances:
        home = self._table.lookup(keys)
        home = np.where(home < 0, spark_mod(keys, self.n), home)
        return ((home + self._shift) % self.n).astype(np.int32) if self._shift else home


@dataclass(frozen=True)
class WorstCase(Grouping):
    """A table turned against itself: every key one instance off, for experiments.

    Keys that the table would bring together are kept apart, so pairs that ought to be local always cross
    the network: the lower bound in the locality paper's figures.

    Examples
    --------
    >>> keys = hash_columns([pa.array(["US", "FR"])])
    >>> WorstCase(Table.of({"FR": 1, "US": 0})).router(2).route(keys).tolist()
    [1, 0]
    """

    table: Table

    name: ClassVar[str] = "worst"

    def router(self, n: int, *, seed: int = 0, source: int = 0, local: int = -1) -> Router:
        return _TableRouter(n, self.table, 1)
