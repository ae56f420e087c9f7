"""A table of PostgreSQL: rows are copied, and the batch is noted in the same transaction."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable, TopologyError
from weir.extras import require
from weir.faults import reach
from weir.sinks.base import Delivery, Sink, check_deleted

DELIVERED = "weir_delivered"
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
        ``PGPASSWORD`` or a password file.
    table
        The table, ``"counts"`` or ``"schema.counts"``. It is created if it is not there: with columns of the
        operator's output, and the keys as primary key.
    keys
        Columns of a unique index. Without them rows are appended; with them a row replaces the one of the same
        keys (of several in one batch the last one), by ``INSERT … ON CONFLICT``.
    deleted
        A boolean column, which the table does not get: where it is true, the row of these keys is deleted.

    Guarantee: each row once; other transactions see a batch whole or not at all. Columns that are lists, maps or
    structs are written as JSON, for columns of type ``json`` or ``jsonb``.
    """

    def __init__(
        self, connection: str, table: str, *, keys: Sequence[str] = (), deleted: str | None = None
    ) -> None:
        require("psycopg", "postgres")
        self.deleted = deleted
        self.connection, self.table, self.keys = connection, table, list(keys)
        self._parts = table.split(".")
        if not all(self._parts) or len(self._parts) > 2:
            raise TopologyError(f'table={table!r}: expected "table" or "schema.table"')
        self._open: Any = None

    def __repr__(self) -> str:
        return f"Postgres({self.table!r})"

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        check_columns(self.keys, schema, f"{self!r} of operator {operator!r}")
        check_deleted(self.deleted, self.keys, schema, f"{self!r} of operator {operator!r}")
        with _Session(self) as database:
            # one query at a time: CREATE … IF NOT EXISTS is not safe against itself
            database.execute("SELECT pg_advisory_xact_lock(hashtext('weir'))")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {DELIVERED} (query text, operator text, target text, batch bigint NOT "
                "NULL, PRIMARY KEY (query, operator, target))"
            )
            if not database.execute("SELECT to_regclass(%s)", (_quoted(*self._parts),)).fetchone()[0]:
                columns = [f"{_quoted(f.name)} {_type(f.type)}" for f in schema if f.name != self.deleted]
                if self.keys:
                    columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, self.keys))})")
                database.execute(f"CREATE TABLE {_quoted(*self._parts)} ({', '.join(columns)})")

    def deliver(self, delivery: Delivery) -> None:
        with _Session(self) as database:
            noted = database.execute(
                f"INSERT INTO {DELIVERED} AS d VALUES (%s, %s, %s, %s) ON CONFLICT (query, operator, target) "
                "DO UPDATE SET batch = EXCLUDED.batch WHERE d.batch < EXCLUDED.batch",
                (delivery.query, delivery.operator, self.table, delivery.batch),
            )
            if not noted.rowcount:
                return  # this row is locked until here by whoever else delivers the batch
            self._write(database, delivery)
            reach("sink-staged", delivery.batch)

    def _write(self, database: Any, delivery: Delivery) -> None:
        names = [name for name in delivery.schema.names if name != self.deleted]
        target, columns = _quoted(*self._parts), ", ".join(map(_quoted, names))
        into = target
        if self.keys:
            into = "weir_rows"
            database.execute(
                f"CREATE TEMPORARY TABLE {into} ON COMMIT DROP AS SELECT {columns} FROM {target} WITH NO DATA"
            )
            database.execute(
                f"ALTER TABLE {into} ADD COLUMN weir_row bigserial, ADD COLUMN weir_deleted boolean"
            )
        copied = ["weir_deleted" if name == self.deleted else _quoted(name) for name in delivery.schema.names]
        with database.cursor().copy(f"COPY {into} ({', '.join(copied)}) FROM STDIN (FORMAT csv)") as copy:
            for chunk in _csv(delivery):
                copy.write(chunk)
        if self.keys:
            keys = ", ".join(map(_quoted, self.keys))
            last = f"(SELECT DISTINCT ON ({keys}) * FROM {into} ORDER BY {keys}, weir_row DESC) AS last"
            if self.deleted:
                same = " AND ".join(f"old.{_quoted(key)} = last.{_quoted(key)}" for key in self.keys)
                database.execute(f"DELETE FROM {target} AS old USING {last} WHERE weir_deleted AND {same}")
            others = [_quoted(c) for c in names if c not in self.keys]
            change = "UPDATE SET " + ", ".join(f"{c} = EXCLUDED.{c}" for c in others) if others else "NOTHING"
            database.execute(
                f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {last} WHERE weir_deleted IS NOT TRUE "
                f"ON CONFLICT ({keys}) DO {change}"
            )

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class _Session:
    """One transaction on a connection that is kept; what the database refuses becomes an error of ours."""

    def __init__(self, sink: Postgres) -> None:
        self.sink = sink

    def __enter__(self) -> Any:
        import psycopg

        if self.sink._open is None or self.sink._open.closed:
            try:
                self.sink._open = psycopg.connect(self.sink.connection, connect_timeout=10)
            except psycopg.Error as error:
                raise self._ours(error) from error
        return self.sink._open

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import psycopg

        try:
            if error is None:
                self.sink._open.commit()
            else:
                self.sink.close()  # what was under way is rolled back by the server
        except psycopg.Error as failed:
            self.sink.close()
            raise self._ours(failed) from failed
        if isinstance(error, psycopg.Error):
            raise self._ours(error) from error

    def _ours(self, error: Any) -> Exception:
        import psycopg

        text = f"{self.sink!r}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return SinkUnavailable(text) if passing and not _HOPELESS.search(str(error)) else SinkError(text)


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES.get(kind) or ("jsonb" if pa.types.is_nested(kind) else "text")


def _csv(delivery: Delivery) -> Iterator[bytes]:
    """Return rows as PostgreSQL's COPY reads them: null is nothing at all, an empty text is a pair of quotes."""
    options = pa.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for batch in delivery.batches():
        out = pa.BufferOutputStream()
        columns = [_text(column) for column in batch.columns]
        pa.csv.write_csv(pa.table(columns, names=batch.schema.names), out, options)
        yield out.getvalue().to_pybytes()


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
