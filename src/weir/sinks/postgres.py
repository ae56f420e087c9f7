"""A table of PostgreSQL: rows are copied, and the batch is noted in the same transaction."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable, TopologyError
from weir.extras import require
from weir.faults import reach
from weir.sinks.base import BY_SERVERS, Delivery, Part, Sink, check_deleted, check_servers_from

DELIVERED = "weir_delivered"
LOCK_SECONDS = 60  # that a task waits for another attempt at its part
_TYPES = {
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}
# no amount of waiting helps against these
_HOPELESS = re.compile(r"authentication failed|no password supplied|does not exist|no pg_hba.conf entry")


class Postgres(Sink):
    """Copies rows into a table of PostgreSQL, or updates its rows by key.

    Needs ``pip install 'weir-streams[postgres]'``.

    A batch is one transaction, which also notes the batch in the table ``weir_delivered`` (query, operator, target,
    batch). A batch that is noted there changes nothing when it comes again.

    Parameters
    ----------
    connection
        As libpq takes it: ``"host=db dbname=shop user=weir"`` or ``"postgresql://weir@db/shop"``. Leave passwords to
        ``PGPASSWORD`` or a password file, which executors need as well.
    table
        The table, ``"counts"`` or ``"schema.counts"``. It is created if it is not there: with columns of the
        operator's output, and the keys as primary key.
    keys
        Columns of a unique index. Without them rows are appended; with them a row replaces the one of the same
        keys (of several in one batch the last one), by ``INSERT … ON CONFLICT``.
    deleted
        A boolean column, which the table does not get: where it is true, the row of these keys is deleted.
    servers_from
        Rows of a batch from which servers copy it, into unlogged tables ``weir_part_…`` that the batch's transaction
        empties into the table and drops. Smaller ones pass through the driver. None: all do.

    Guarantee: each row once; other transactions see a batch whole or not at all. Columns that are lists, maps or
    structs are written as JSON, for columns of type ``json`` or ``jsonb``.
    """

    def __init__(
        self,
        connection: str,
        table: str,
        *,
        keys: Sequence[str] = (),
        deleted: str | None = None,
        servers_from: int | None = BY_SERVERS,
    ) -> None:
        require("psycopg", "postgres")
        self.deleted = deleted
        self.connection, self.table, self.keys = connection, table, list(keys)
        self._names = table.split(".")
        if not all(self._names) or len(self._names) > 2:
            raise TopologyError(f'table={table!r}: expected "table" or "schema.table"')
        self._servers_from = check_servers_from(servers_from)
        self._database = _Database(connection, repr(self))
        self._swept: set[str] = set()  # who has no tables of batches before

    def __repr__(self) -> str:
        return f"Postgres({self.table!r})"

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        check_columns(self.keys, schema, f"{self!r} of operator {operator!r}")
        check_deleted(self.deleted, self.keys, schema, f"{self!r} of operator {operator!r}")
        with self._database.transaction() as transaction:
            # one query at a time: CREATE … IF NOT EXISTS is not safe against itself
            transaction.execute("SELECT pg_advisory_xact_lock(hashtext('weir'))")
            transaction.execute(
                f"CREATE TABLE IF NOT EXISTS {DELIVERED} (query text, operator text, target text, batch bigint NOT "
                "NULL, PRIMARY KEY (query, operator, target))"
            )
            if not transaction.execute("SELECT to_regclass(%s)", (_quoted(*self._names),)).fetchone()[0]:
                columns = [f"{_quoted(f.name)} {_type(f.type)}" for f in schema if f.name != self.deleted]
                if self.keys:
                    columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, self.keys))})")
                transaction.execute(f"CREATE TABLE {_quoted(*self._names)} ({', '.join(columns)})")

    def deliver(self, delivery: Delivery) -> None:
        names = [name for name in delivery.schema.names if name != self.deleted]
        about = json.dumps([delivery.query, delivery.operator, self.table])
        loading = _Loading(
            self._database,
            f"weir_part_{hashlib.sha256(about.encode()).hexdigest()[:16]}",
            _quoted(*self._names),
            names,
            self.keys,
            self.deleted,
        )
        staged: list[str] = []
        if delivery.rows >= self._servers_from:
            with self._database.transaction() as transaction:
                if transaction.execute(
                    f"SELECT 1 FROM {DELIVERED} WHERE query = %s AND operator = %s AND target = %s AND batch >= %s",
                    (delivery.query, delivery.operator, self.table, delivery.batch),
                ).fetchone():
                    return
            staged = [name for name in delivery.staged(loading.copy_part) if name]
        with self._database.transaction() as transaction:
            noted = transaction.execute(
                f"INSERT INTO {DELIVERED} AS d VALUES (%s, %s, %s, %s) ON CONFLICT (query, operator, target) "
                "DO UPDATE SET batch = EXCLUDED.batch WHERE d.batch < EXCLUDED.batch",
                (delivery.query, delivery.operator, self.table, delivery.batch),
            )
            if not noted.rowcount:
                return  # this row is locked until here by whoever else delivers the batch
            if staged:
                loading.move(transaction, staged)
            else:
                loading.load(transaction, delivery.schema, delivery.batches())
            if staged or delivery.owner not in self._swept:
                loading.sweep(transaction)
            reach("sink-staged", delivery.batch)
        self._swept.add(delivery.owner)

    def close(self) -> None:
        self._database.close()


@dataclass(frozen=True)
class _Loading:
    """How rows of one operator come into a table: at once, or by tables of parts that tasks fill.

    A table of a part is made and filled in one transaction, so if it is there, it is whole; after a crash of PostgreSQL
    it is there and empty.
    """

    database: _Database
    prefix: str  # of tables for parts of this query and operator
    target: str
    columns: list[str]
    keys: list[str]
    deleted: str | None

    def copy_part(self, part: Part) -> str:
        """Copy a part of a batch into a table of its own, unless it is there; return its name if it has rows."""
        layout = zlib.crc32(repr((part.schema.names, self.columns, self.keys)).encode())
        name = f"{self.prefix}_{part.batch}_{part.first}_{layout:08x}"
        with contextlib.closing(self.database), self.database.transaction() as transaction:
            transaction.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            # another attempt at the same part may be at work
            transaction.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
            if transaction.execute("SELECT to_regclass(%s)", (_quoted(name),)).fetchone()[0]:
                if self._has_rows(transaction, name):
                    return name
                transaction.execute(f"DROP TABLE {_quoted(name)}")
            self._make(transaction, "UNLOGGED", name)
            rows = self._copy(transaction, _quoted(name), part.schema, part.batches())
            reach("part-staged", 100 * part.batch + part.first)
            if not rows:
                transaction.execute(f"DROP TABLE {_quoted(name)}")
        return name if rows else ""

    def load(self, transaction: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Bring rows into the table."""
        if not self.keys:
            self._copy(transaction, self.target, schema, batches)
            return
        self._make(transaction, "TEMPORARY", "weir_rows", "ON COMMIT DROP")
        self._copy(transaction, "weir_rows", schema, batches)
        self._upsert(transaction, "weir_rows")

    def move(self, transaction: Any, names: list[str]) -> None:
        """Bring the rows of parts into the table, in their order."""
        columns = ", ".join(map(_quoted, self.columns))
        for name in names:
            if not self._has_rows(transaction, name):
                raise SinkUnavailable(
                    f"{self.database.label}: {name} has lost its rows, as unlogged tables do when PostgreSQL crashes"
                )
            if self.keys:
                self._upsert(transaction, name)
            else:
                transaction.execute(
                    f"INSERT INTO {self.target} ({columns}) SELECT {columns} FROM {_quoted(name)}"
                )

    def sweep(self, transaction: Any) -> None:
        """Drop all tables of parts: those of this batch, and what earlier ones have left."""
        mine = self.prefix.replace("_", r"\_") + r"\_%"
        found = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname LIKE %s"
        for (name,) in transaction.execute(found, (mine,)).fetchall():
            transaction.execute(f"DROP TABLE IF EXISTS {name}")

    def _has_rows(self, transaction: Any, name: str) -> bool:
        return bool(transaction.execute(f"SELECT EXISTS (SELECT FROM {_quoted(name)})").fetchone()[0])

    def _make(self, transaction: Any, kind: str, name: str, more: str = "") -> None:
        """Make a table for rows on their way: with columns as the target's, and what only the way needs."""
        columns = ", ".join(map(_quoted, self.columns))
        transaction.execute(
            f"CREATE {kind} TABLE {_quoted(name)} {more} AS SELECT {columns} FROM {self.target} WITH NO DATA"
        )
        if self.keys:
            transaction.execute(
                f"ALTER TABLE {_quoted(name)} ADD COLUMN weir_row bigserial, ADD COLUMN weir_deleted boolean"
            )

    def _copy(self, transaction: Any, into: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        """Copy rows into a table; return how many."""
        columns = ", ".join("weir_deleted" if n == self.deleted else _quoted(n) for n in schema.names)
        rows = 0
        with transaction.cursor().copy(f"COPY {into} ({columns}) FROM STDIN (FORMAT csv)") as copy:
            for batch in batches:
                copy.write(_csv(batch))
                rows += batch.num_rows
        return rows

    def _upsert(self, transaction: Any, name: str) -> None:
        """Let the last row of each key take the place of the one in the table, or delete it."""
        keys, columns = ", ".join(map(_quoted, self.keys)), ", ".join(map(_quoted, self.columns))
        last = f"(SELECT DISTINCT ON ({keys}) * FROM {_quoted(name)} ORDER BY {keys}, weir_row DESC) AS last"
        if self.deleted:
            same = " AND ".join(f"old.{_quoted(key)} = last.{_quoted(key)}" for key in self.keys)
            transaction.execute(
                f"DELETE FROM {self.target} AS old USING {last} WHERE weir_deleted AND {same}"
            )
        others = [_quoted(c) for c in self.columns if c not in self.keys]
        change = "UPDATE SET " + ", ".join(f"{c} = EXCLUDED.{c}" for c in others) if others else "NOTHING"
        transaction.execute(
            f"INSERT INTO {self.target} ({columns}) SELECT {columns} FROM {last} WHERE weir_deleted IS NOT TRUE "
            f"ON CONFLICT ({keys}) DO {change}"
        )


class _Database:
    """A database: one transaction at a time, on a connection that is kept and does not travel to tasks."""

    def __init__(self, connection: str, label: str) -> None:
        self.connection, self.label = connection, label
        self._open: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Database, (self.connection, self.label)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commit what is done within, or nothing of it; what the database refuses becomes an error of ours."""
        import psycopg

        try:
            if self._open is None or self._open.closed:
                self._open = psycopg.connect(self.connection, connect_timeout=10)
            yield self._open
            self._open.commit()
        except BaseException as error:
            self.close()  # what was under way is rolled back by the server
            if not isinstance(error, psycopg.Error):
                raise
            text = f"{self.label}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            hopeless = not passing or _HOPELESS.search(str(error))
            raise (SinkError if hopeless else SinkUnavailable)(text) from error

    def close(self) -> None:
        """Let go of the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES.get(kind) or ("jsonb" if pa.types.is_nested(kind) else "text")


def _csv(batch: pa.RecordBatch) -> bytes:
    """Return rows as PostgreSQL's COPY reads them: null is nothing at all, an empty text is a pair of quotes."""
    options = pa.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    out = pa.BufferOutputStream()
    columns = [_text(column) for column in batch.columns]
    pa.csv.write_csv(pa.table(columns, names=batch.schema.names), out, options)
    return out.getvalue().to_pybytes()


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_nested(kind):
        spell = (lambda v: "\\x" + v.hex()) if pa.types.is_binary(kind) else _json
        return pa.array([None if v is None else spell(v) for v in column.to_pylist()], pa.string())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pc.cast(column, pa.string())
    return column


def _json(value: Any) -> str:
    return json.dumps(value, default=str)
