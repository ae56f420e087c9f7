"""Routing tables: where each known key of one operator lives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from numpy.typing import NDArray

from weir.errors import CheckpointError, CheckpointMismatch
from weir.hashing import hash_columns, spark_mod

FORMAT = 1
HASH, SERVER = "hash", "server"
_META = b"weir.table"
_RESERVED = {HASH, SERVER}


@dataclass(frozen=True)
class Patch:
    """What changed between two versions of a table: keys with a new server, or −1 for keys that left it."""

    hashes: NDArray[np.uint64]
    servers: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True)
class Moves:
    """Keys whose home differs between two tables, with the server that has each and the one that gets it."""

    hashes: NDArray[np.uint64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """An immutable, versioned map from the keys of one operator to servers.

    A key that is not in the table lives where its hash says, ``pmod(hash, servers)``, exactly as without a
    table; in a query that has been scaled, where its bucket lives. Tables are compared, patched and saved; they are
    never changed.

    Attributes
    ----------
    hashes, servers
        The known keys, by 64-bit hash in ascending order, and the server of each.
    n
        How many servers the table is for.
    operator, version, topology
        Whose table it is, its place in the sequence of tables, and the fingerprint of the application.
    keys
        The readable key columns, if known: an Arrow table with one row per hash.
    buckets
        The server of each bucket of keys that are not in the table, if these don't live by hash. Not saved: where such
        keys live is a matter of one query.

    Examples
    --------
    >>> table = RoutingTable.of(pa.table({"state": ["CA", "NY"]}), np.array([0, 2]), n=3, operator="states")
    >>> table.lookup("NY"), table.lookup("VT") is None
    (2, True)
    >>> table.find(table.hashes).tolist()  # in order of the hashes
    [2, 0]
    >>> moved = table.patch(Patch(table.hashes[:1], np.array([1], np.int32)))
    >>> table.diff(moved).target.tolist(), moved.version
    ([1], 1)
    """

    hashes: NDArray[np.uint64]
    servers: NDArray[np.int32]
    n: int
    operator: str = ""
    version: int = 0
    topology: str = ""
    keys: pa.Table | None = None
    buckets: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        order = np.argsort(self.hashes, kind="stable")
        hashes = np.asarray(self.hashes, np.uint64)[order]
        servers = np.asarray(self.servers, np.int32)[order]
        if len(hashes) > 1 and (hashes[1:] == hashes[:-1]).any():
            raise ValueError(f"table of {self.operator!r}: a key occurs twice; each key has one home")
        if len(servers) and (servers.min() < 0 or servers.max() >= self.n):
            raise ValueError(f"table of {self.operator!r}: servers must be 0 … {self.n - 1}")
        if self.keys is not None:
            object.__setattr__(self, "keys", self.keys.take(order))
        for array in (hashes, servers):
            array.flags.writeable = False
        object.__setattr__(self, "hashes", hashes)
        object.__setattr__(self, "servers", servers)

    @classmethod
    def of(cls, keys: pa.Table, servers: NDArray[Any], *, n: int, **about: Any) -> RoutingTable:
        """From readable keys: one column per key column, one row per key."""
        return cls(hash_columns(keys.columns), np.asarray(servers, np.int32), n, keys=keys, **about)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The server of each key, −1 for keys that are not in the table."""
        if not len(self):
            return np.full(len(hashes), -1, np.int32)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
        return np.where(self.hashes[at] == hashes, self.servers[at], np.int32(-1))

    def route(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The server of each key, by hash or bucket where the table doesn't know it."""
        found = self.find(hashes)
        missing = found < 0
        if self.buckets is None:
            found[missing] = spark_mod(hashes[missing], self.n)
        else:
            found[missing] = self.buckets[spark_mod(hashes[missing], len(self.buckets))]
        return found

    def lookup(self, *key: Any) -> int | None:
        """The server of one readable key (one value per key column), ``None`` if it isn't in the table."""
        types = [None] * len(key) if self.keys is None else self.keys.schema.types
        hashed = hash_columns([pa.array([k], t) for k, t in zip(key, types, strict=True)])
        server = int(self.find(hashed)[0])
        return None if server < 0 else server

    def diff(self, other: RoutingTable) -> Moves:
        """The keys that live elsewhere under ``other``, hash fallback included."""
        both = np.union1d(self.hashes, other.hashes)
        before, after = self.route(both), other.route(both)
        moved = before != after
        return Moves(both[moved], before[moved], after[moved])

    def changes(self, other: RoutingTable) -> Patch:
        """The patch that turns this table into ``other``."""
        both = np.union1d(self.hashes, other.hashes)
        after = other.find(both)
        changed = self.find(both) != after
        return Patch(both[changed], after[changed])

    def patch(self, patch: Patch, *, version: int | None = None) -> RoutingTable:
        """The next table: entries of the patch added, replaced, or (server −1) removed."""
        stays = ~np.isin(self.hashes, patch.hashes)
        enters = patch.servers >= 0
        return RoutingTable(
            np.concatenate([self.hashes[stays], patch.hashes[enters]]),
            np.concatenate([self.servers[stays], patch.servers[enters]]),
            self.n,
            self.operator,
            self.version + 1 if version is None else version,
            self.topology,
            buckets=self.buckets,
        )

    @cached_property
    def nbytes(self) -> int:
        return int(self.hashes.nbytes + self.servers.nbytes)

    def to_arrow(self) -> pa.Table:
        """Readable key columns where known, then ``hash`` and ``server``."""
        table = pa.table({HASH: self.hashes, SERVER: self.servers})
        for at, name in enumerate(self.keys.column_names if self.keys is not None else ()):
            table = table.add_column(at, name, self.keys.column(name))  # type: ignore[union-attr]
        return table

    def save(self, path: str | Path, filesystem: pafs.FileSystem | None = None) -> None:
        """Writes the table as one Arrow file, whole or not at all (local files are renamed into place)."""
        table = self.to_arrow()
        about = {
            "format": FORMAT,
            "n": self.n,
            "operator": self.operator,
            "version": self.version,
            "topology": self.topology,
        }
        about["checksum"] = _checksum(table, about)
        table = table.replace_schema_metadata({_META: msgspec.json.encode(about)})
        files, place = (filesystem, str(path)) if filesystem else pafs.FileSystem.from_uri(_uri(path))
        part = place + ".part"
        with files.open_output_stream(part) as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table)
        files.move(part, place)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        topology: str | None = None,
        n: int | None = None,
        filesystem: pafs.FileSystem | None = None,
    ) -> RoutingTable:
        """Reads a table; with ``topology`` or ``n``, only one made for that application or server count."""
        files, place = (filesystem, str(path)) if filesystem else pafs.FileSystem.from_uri(_uri(path))
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
        if topology is not None and about["topology"] != topology:
            raise CheckpointMismatch(
                f"{path} is the table of another application (topology {about['topology'] or 'unnamed'}, "
                f"this one is {topology}): make a table from this application's data"
            )
        if n is not None and about["n"] != n:
            raise CheckpointMismatch(
                f"{path} is for {about['n']} servers, not for {n}: "
                f"start with servers={about['n']} or make it again"
            )
        readable = [c for c in table.column_names if c not in _RESERVED]
        return cls(
            table.column(HASH).to_numpy(),
            table.column(SERVER).to_numpy(),
            int(about["n"]),
            about["operator"],
            int(about["version"]),
            about["topology"],
            table.select(readable) if readable else None,
        )


def _checksum(table: pa.Table, about: dict[str, Any]) -> str:
    # over values, not over file bytes: how Arrow lays a file out may change between its versions
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.json.encode({k: v for k, v in sorted(about.items()) if k != "checksum"}))
    for name in table.column_names:
        column = table.column(name)
        values = column.to_numpy() if name in _RESERVED else hash_columns([column])
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _uri(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).resolve())
