"""Key grouping by an explicit table, with the hash for keys that it does not list.

In a file a table is one Arrow file, checksummed, and written whole or not at all.
"""

from __future__ import annotations

import copy
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from numpy.typing import ArrayLike

from weir.errors import CheckpointError, CheckpointMismatch, GroupingError
from weir.hashing import hash_columns, hash_home
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext, RoutingRule
from weir.routing.lookup import Lookup

FORMAT = 1
HASH, SERVER = "hash", "server"
_META = b"weir.table"
_RESERVED = {HASH, SERVER}


def write_table(table: pa.Table, about: dict[str, Any], path: str | Path) -> None:
    """Write the columns of a table, with ``about`` in the metadata; a local file is renamed into place."""
    about = {"format": FORMAT, **about}
    about["checksum"] = _checksum(table, about)
    table = table.replace_schema_metadata({_META: msgspec.json.encode(about)})
    files, place = _open(path)
    part = place + ".part"
    with files.open_output_stream(part) as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    files.move(part, place)


def read_table(path: str | Path, *, n: int | None = None) -> tuple[pa.Table, pa.Table | None, dict[str, Any]]:
    """Return the hashes and homes of a table, its readable keys if it has any, and its metadata.

    Raises :class:`~weir.errors.CheckpointError` for a file that is missing, damaged or too new, and
    :class:`~weir.errors.CheckpointMismatch` for one of another number of servers.
    """
    files, place = _open(path)
    try:
        with files.open_input_file(place) as source:
            table = pa.ipc.open_file(source).read_all()
        about = msgspec.json.decode(table.schema.metadata[_META])
        newer = int(about["format"]) > FORMAT
        sound = newer or about["checksum"] == _checksum(table, about)
    except FileNotFoundError:
        raise CheckpointError(f"no routing table at {path}: check the path") from None
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a routing table or is damaged ({error}): restore the file or make it again"
        ) from error
    if newer:
        raise CheckpointError(
            f"{path} has table format {about['format']}, this version of Weir reads up to {FORMAT}: "
            "upgrade Weir"
        )
    if not sound:
        raise CheckpointError(f"{path} is damaged, its checksum doesn't match: restore or make it again")
    if n is not None and about["n"] not in (None, n):
        raise CheckpointMismatch(
            f"{path} is for {about['n']} servers, not for {n}: "
            f"start with servers={about['n']} or make it again"
        )
    readable = [c for c in table.column_names if c not in _RESERVED]
    return table.select([HASH, SERVER]), table.select(readable) if readable else None, about


def _open(path: str | Path) -> tuple[pafs.FileSystem, str]:
    return pafs.FileSystem.from_uri(str(path) if "://" in str(path) else str(Path(path).resolve()))


def _checksum(table: pa.Table, about: dict[str, Any]) -> str:
    # over values, not over file bytes: how Arrow lays a file out may change between its versions
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.json.encode({k: v for k, v in sorted(about.items()) if k != "checksum"}))
    for name in table.column_names:
        column = table.column(name)
        values = column.to_numpy() if name in _RESERVED else hash_columns([column])
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


KEY_GROUPS = 1 << 14
INDEXED = 4  # a look-up of a key is worth indexing so many entries of a table


@dataclass(frozen=True)
class Patch:
    """The difference between two versions of a table: keys with their new instance, −1 for keys that left it."""

    hashes: Keys
    instances: Instances

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True)
class Moves:
    """Keys whose home differs between two tables, with the instance that has each and the one that gets it."""

    hashes: Keys
    source: Instances
    target: Instances

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, eq=False)
class Table(Grouping):
    """Sends each listed key to the instance that the table names, all others by their hash.

    A table is immutable. It holds 64-bit hashes, not keys: two keys with one hash would share a home. Make one with
    :meth:`of` from a dict, with :meth:`from_keys` from an Arrow table of keys, or with :meth:`from_file`.

    Parameters
    ----------
    hashes, instances
        Hashes of the listed keys (:func:`weir.hashing.hash_columns`), distinct, and the instance of each. They are
        kept in ascending order of the hashes.
    n
        How many instances the table was made for, if that is known: :meth:`route` and :meth:`diff` then know where
        keys live that are not listed.
    operator, version
        Whose table it is, and its place in the sequence of that operator's tables.
    keys
        The readable key columns, if known: an Arrow table with one row per hash.
    key_groups
        The instance of each key group of unlisted keys, in a query that has been scaled. Not saved. How evenly they
        can be spread is a matter of their number: with 16,384 over 256 instances one is 1.6 % of an instance.

    Examples
    --------
    >>> table = Table.of({"FR": 1, "US": 0}, n=2)
    >>> keys = hash_columns([pa.array(["US", "FR", "US"])])
    >>> table.router(2).route(keys).tolist(), table.lookup("FR")
    ([0, 1, 0], 1)

    Tables are compared and patched:

    >>> moved = table.patch(Patch(keys[:1], np.array([1], np.int32)))
    >>> moved.lookup("US"), moved.version, table.diff(moved).target.tolist()
    (1, 1, [1])
    """

    hashes: Keys = field(repr=False)
    instances: Instances = field(repr=False)
    n: int | None = None
    operator: str = ""
    version: int = 0
    keys: pa.Table | None = field(default=None, repr=False)
    key_groups: Instances | None = field(default=None, repr=False)
    _index: list[Lookup] = field(default_factory=list, init=False, repr=False)  # made when first needed

    name: ClassVar[str] = "table"
    scales_by_key_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        hashes = np.ascontiguousarray(self.hashes, np.uint64)
        instances = np.ascontiguousarray(self.instances, np.int32)
        which = f"the routing table of {self.operator!r}" if self.operator else "a routing table"
        if len(hashes) != len(instances) or (self.keys is not None and self.keys.num_rows != len(hashes)):
            raise GroupingError(
                f"{which} of {len(hashes)} keys needs as many instances and readable keys, "
                f"got {len(instances)} and {'none' if self.keys is None else self.keys.num_rows}"
            )
        order = np.argsort(hashes, kind="stable")
        hashes, instances = hashes[order], instances[order]
        if len(hashes) and (hashes[1:] == hashes[:-1]).any():
            raise GroupingError(f"{which} lists a key twice; every key has one home")
        if len(instances) and instances.min() < 0:
            raise GroupingError(f"{which} names a negative instance; instances count from 0")
        if self.n is not None and len(instances) and instances.max() >= self.n:
            raise GroupingError(
                f"{which} names instance {int(instances.max())}: those of {self.n} servers are 0 … {self.n - 1}"
            )
        if self.key_groups is not None:
            self._check_key_groups(self.n)
        if self.keys is not None:
            object.__setattr__(self, "keys", self.keys.take(order))
        for array in (hashes, instances):
            array.flags.writeable = False
        object.__setattr__(self, "hashes", hashes)
        object.__setattr__(self, "instances", instances)

    @classmethod
    def of(
        cls,
        homes: Mapping[Any, int],
        types: Sequence[pa.DataType] | None = None,
        *,
        n: int | None = None,
    ) -> Table:
        """Make a table from ``{key: instance}``; a key of several columns is a tuple.

        ``types`` are the key columns' Arrow types; needed when they aren't what Arrow would guess (a Python
        int is taken as a 64-bit integer).
        """
        hashes = np.empty(0, np.uint64)
        if homes:
            keys = [k if isinstance(k, tuple) else (k,) for k in homes]
            columns = [
                pa.array(values, None if types is None else types[i])
                for i, values in enumerate(zip(*keys, strict=True))
            ]
            hashes = hash_columns(columns)
        return cls(hashes, np.array(list(homes.values()), np.int32), n)

    @classmethod
    def from_keys(
        cls,
        keys: pa.Table,
        instances: ArrayLike,
        *,
        n: int | None = None,
        operator: str = "",
        version: int = 0,
    ) -> Table:
        """Make a table from readable keys, one column per key column and one row per key; they stay readable.

        >>> table = Table.from_keys(pa.table({"state": ["CA", "NY"]}), [0, 2], n=3, operator="states")
        >>> table.lookup("NY"), table.lookup("VT") is None
        (2, True)
        >>> table.find(table.hashes).tolist()  # in order of the hashes
        [2, 0]
        """
        homes = np.asarray(instances, np.int32)
        return cls(hash_columns(keys.columns), homes, n, operator, version, keys)

    @classmethod
    def from_file(cls, path: str | Path, *, n: int | None = None) -> Table:
        """Read a saved table, from a path or a URI; with ``n``, only one made for that number of servers."""
        entries, keys, about = read_table(path, n=n)
        return cls(
            entries.column(HASH).to_numpy(),
            entries.column(SERVER).to_numpy(),
            n if about["n"] is None else int(about["n"]),
            about["operator"],
            int(about["version"]),
            keys,
        )

    def save(self, path: str | Path) -> None:
        """Write the table as one Arrow file, whole or not at all (local files are renamed into place)."""
        about = {name: getattr(self, name) for name in ("n", "operator", "version")}
        write_table(self.to_arrow(), about, path)

    def to_arrow(self) -> pa.Table:
        """Return the readable key columns where known, then ``hash`` and ``server``."""
        table = pa.table({HASH: self.hashes, SERVER: self.instances})
        for at, name in enumerate(self.keys.column_names if self.keys is not None else ()):
            table = table.add_column(at, name, self.keys.column(name))  # type: ignore[union-attr]
        return table

    def __len__(self) -> int:
        return len(self.hashes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and self.n == other.n
            and np.array_equal(self.hashes, other.hashes)
            and np.array_equal(self.instances, other.instances)
            and (self.key_groups is None) == (other.key_groups is None)
            and (self.key_groups is None or np.array_equal(self.key_groups, other.key_groups))  # type: ignore[arg-type]
        )

    def __hash__(self) -> int:
        return hash((self.n, self.hashes.tobytes(), self.instances.tobytes()))

    def find(self, hashes: Keys) -> Instances:
        """Return the listed instance of each key, −1 for keys that are not listed."""
        if not len(self):
            return np.full(len(hashes), -1, np.int32)
        if not self._index and INDEXED * len(hashes) >= len(self):
            self._index.append(Lookup(self.hashes, self.instances))
        if self._index:
            return self._index[0].find(hashes)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
        return np.where(self.hashes[at] == hashes, self.instances[at], np.int32(-1))

    def lookup(self, *key: Any) -> int | None:
        """Return the instance of one readable key (one value per key column), ``None`` if it isn't listed."""
        types = [None] * len(key) if self.keys is None else self.keys.schema.types
        if len(types) != len(key):
            raise GroupingError(
                f"a key of this table has {len(types)} columns, got {len(key)} values: {key!r}"
            )
        hashed = hash_columns([pa.array([k], t) for k, t in zip(key, types, strict=True)])
        instance = int(self.find(hashed)[0])
        return None if instance < 0 else instance

    def route(self, hashes: Keys, n: int | None = None) -> Instances:
        """Return the instance of each key among ``n``, by hash or key group where the key is not listed.

        ``n`` is the number that the table was made for, if it is not given.
        """
        count = self.n if n is None else n
        if count is None and self.key_groups is None:
            raise GroupingError(
                "where unlisted keys live depends on the number of instances, which this table doesn't say: "
                "make it with n=…, or ask route(hashes, n)"
            )
        homes = self.find(hashes)
        missing = np.flatnonzero(homes < 0)
        if len(missing):
            homes[missing] = hash_home(hashes[missing], count or 0, self.key_groups)
        return homes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": []}

    def check(self, n: int, where: str) -> None:
        """Raise unless every listed instance is one of ``n``, and all other keys live by their hash."""
        if len(self.instances) and self.instances.max() >= n:
            raise GroupingError(
                f"{where}: its routing table names instance {int(self.instances.max())}, but there are only "
                f"{n} (0 … {n - 1}); raise the parallelism or make the table anew for {n}"
            )
        if self.key_groups is not None:
            raise GroupingError(
                f"{where}: its routing table is of a query that was scaled, and only there unlisted keys live by "
                "these key groups; save the table and open it again to route by its listed keys"
            )

    def make_router(self, context: RouterContext) -> Router:
        self._check_key_groups(context.n)
        return _TableRouter(context.n, self)

    def rule(self, n: int) -> RoutingRule:
        homes = np.arange(n, dtype=np.int32) if self.key_groups is None else self.key_groups
        return RoutingRule(homes, self.hashes, self.instances)

    def with_key_groups(self, homes: ArrayLike | None) -> Table:
        """Return a table of the same entries whose unlisted keys live by key group.

        >>> table = NO_TABLE.with_key_groups(finer([1, 0], 5))
        >>> table.key_groups.tolist(), table.router(2).route(np.array([0, 2**63], np.uint64)).tolist()
        ([1, 1, 1, 0, 0, 0], [1, 0])
        """
        if homes is None:
            return self
        table = copy.copy(self)
        table.__dict__["_index"] = self._index  # of the same entries
        object.__setattr__(table, "key_groups", np.ascontiguousarray(homes, np.int32))
        table._check_key_groups(None)
        return table

    def _check_key_groups(self, n: int | None) -> None:
        if self.key_groups is not None and (not len(self.key_groups) or self.key_groups.min() < 0):
            raise GroupingError("key groups need a home each; instances count from 0")
        if self.key_groups is not None and n is not None and self.key_groups.max() >= n:
            raise GroupingError(
                f"key groups name instance {int(self.key_groups.max())}, but there are only {n}; rescale them to the "
                "parallelism"
            )

    def signature(self) -> list[Any]:
        return [self.name, zlib.crc32(self.hashes.tobytes() + self.instances.tobytes())]

    def diff(self, other: Table) -> Moves:
        """Return the keys that live elsewhere under ``other``, unlisted ones by their hash."""
        both = np.union1d(self.hashes, other.hashes)
        before, after = self.route(both), other.route(both)
        moved = before != after
        return Moves(both[moved], before[moved], after[moved])

    def patch(self, patch: Patch, *, version: int | None = None) -> Table:
        """Return the next table: entries of the patch added, replaced, or (instance −1) removed."""
        stays = ~np.isin(self.hashes, patch.hashes)
        enters = patch.instances >= 0
        return Table(
            np.concatenate([self.hashes[stays], patch.hashes[enters]]),
            np.concatenate([self.instances[stays], patch.instances[enters]]),
            self.n,
            self.operator,
            self.version + 1 if version is None else version,
            key_groups=self.key_groups,
        )


NO_TABLE = Table(np.empty(0, np.uint64), np.empty(0, np.int32))


def finer(homes: ArrayLike, key_groups: int = KEY_GROUPS) -> Instances:
    """Return the homes of some thousands of key groups that route exactly as these few do."""
    few = np.asarray(homes, np.int32)
    return np.repeat(few, -(-key_groups // len(few)))


class _TableRouter(Router):
    def __init__(self, n: int, table: Table) -> None:
        super().__init__(n)
        self._table = table

    def route(self, keys: Keys) -> Instances:
        return self._table.route(keys, self.n)
