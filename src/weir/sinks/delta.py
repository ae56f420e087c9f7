"""A Delta table, through delta-rs: no JVM needed."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable
from weir.extras import require
from weir.faults import reach
from weir.sinks.base import BY_SERVERS, Delivery, Part, Sink, check_deleted, check_servers_from
from weir.state.storage import Storage

PLAIN_FEATURES = {"appendOnly", "timestampNtz"}
SHORT = 32  # characters of a text that the log holds


class Delta(Sink):
    """Appends to a Delta table, or updates its rows by key. Needs ``pip install 'weir-streams[delta]'``.

    The batch's number is an *application transaction* of the commit that adds its rows (``txn`` with an application
    id of query and operator, as in the Delta protocol): what the table has had is read from its own log, and of two
    commits with one application id one fails.

    Parameters
    ----------
    path
        The table's folder or URI; it is created with the first rows if it is not there.
    keys
        Columns that name a row. Without them rows are appended; with them a row replaces the one of the same
        keys (of several in one batch the last one).
    deleted
        A boolean column, which the table does not get: where it is true, the row of these keys is deleted.
    partition_by
        Columns by which a new table is partitioned.
    storage_options
        Settings of an object store, by their names in delta-rs.
    servers_from
        Rows of a batch from which servers write its files, and the driver adds them in one commit. Smaller ones, rows
        with keys, tables in object stores, and those that are partitioned or have constraints go through the driver.
        None: all do.

    Guarantee: each row once, a batch at a time; readers see a batch whole or not at all.
    """

    def __init__(
        self,
        path: str,
        *,
        keys: Sequence[str] = (),
        deleted: str | None = None,
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        servers_from: int | None = BY_SERVERS,
    ) -> None:
        self.path, self.keys, self.partition_by = str(path), list(keys), list(partition_by)
        self.deleted = deleted
        self._options = dict(storage_options or {})
        self._servers_from = check_servers_from(servers_from)
        require("deltalake", "delta")

    def __repr__(self) -> str:
        return f"Delta({self.path!r})"

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        check_columns([*self.keys, *self.partition_by], schema, f"{self!r} of operator {operator!r}")
        check_deleted(self.deleted, self.keys, schema, f"{self!r} of operator {operator!r}")
        with self._translated():
            self._table()

    def deliver(self, delivery: Delivery) -> None:
        import deltalake

        application = f"weir-{delivery.query}-{delivery.operator}"
        with self._translated():
            table = self._table()
            had = None if table is None else table.transaction_version(application)
            if had is not None and had >= delivery.batch:
                return
            mark = deltalake.Transaction(app_id=application, version=delivery.batch)
            self._write(table, delivery, deltalake.CommitProperties(app_transactions=[mark]))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of delta-rs into ours: a lost race for a commit passes, and so does what a store fails at."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except (OSError, CommitFailedError) as error:
            raise SinkUnavailable(f"{self!r}: {_line(error)}") from error
        except DeltaError as error:
            raise SinkError(f"{self!r}: {_line(error)}") from error

    def _write(self, table: Any, delivery: Delivery, properties: Any) -> None:
        import deltalake

        if delivery.rows >= self._servers_from and self._is_plain(table, delivery.schema):
            self._append(table, delivery, properties)
            return
        reach("sink-staged", delivery.batch)
        if table is None or not self.keys:
            rows = pa.RecordBatchReader.from_batches(delivery.schema, delivery.batches())
            if self.keys:
                rows = last_of_each(rows.read_all(), self.keys)
            if self.deleted:
                alive = pc.invert(pc.fill_null(rows[self.deleted], False))
                rows = rows.filter(alive).drop_columns([self.deleted])
            deltalake.write_deltalake(
                self.path,
                rows,
                mode="append",
                partition_by=self.partition_by or None,
                storage_options=self._options or None,
                commit_properties=properties,
            )
            return
        rows = last_of_each(pa.Table.from_batches(delivery.batches(), delivery.schema), self.keys)
        same = " AND ".join(f"old.`{key}` = new.`{key}`" for key in self.keys)
        merge = table.merge(rows, same, source_alias="new", target_alias="old", commit_properties=properties)
        if self.deleted:
            merge = merge.when_matched_delete(f"new.`{self.deleted}`")
        alive = f"new.`{self.deleted}` IS NOT TRUE" if self.deleted else None
        hidden = [self.deleted] if self.deleted else None
        merge.when_matched_update_all(alive, hidden).when_not_matched_insert_all(alive, hidden).execute()

    def _is_plain(self, table: Any, schema: pa.Schema) -> bool:
        """Return whether rows can be added as files of these columns, without anything that delta-rs must see to."""
        import deltalake

        if self.keys or self.partition_by or "://" in self.path:
            return False
        if table is None:
            return True
        protocol = table.protocol()
        features = set(protocol.writer_features or ())
        return (
            (protocol.min_writer_version <= 2 or (bool(features) and features <= PLAIN_FEATURES))
            and not table.metadata().partition_columns
            and table.schema() == deltalake.Schema.from_arrow(schema)
        )

    def _append(self, table: Any, delivery: Delivery, properties: Any) -> None:
        """Let servers write files under names that are theirs for ever, and add them to the table in one commit."""
        import deltalake
        from deltalake.transaction import AddAction

        schema = deltalake.Schema.from_arrow(delivery.schema)
        if table is None:
            table = deltalake.DeltaTable.create(
                self.path, schema, mode="ignore", storage_options=self._options or None
            )
        who = f"{delivery.query}-{zlib.crc32(delivery.operator.encode()):08x}-{delivery.batch}"
        folder = Storage(os.path.abspath(self.path))  # tasks may have another working directory
        written = delivery.staged(partial(_write_file, folder, who))
        actions = [AddAction(name, size, {}, at, True, about) for name, size, at, about in written]
        reach("sink-staged", delivery.batch)
        table.create_write_transaction(actions, "append", schema, commit_properties=properties)

    def _table(self) -> Any:
        """Return the table as it is now; None if there is none."""
        import deltalake
        from deltalake.exceptions import TableNotFoundError

        try:
            return deltalake.DeltaTable(self.path, storage_options=self._options or None)
        except TableNotFoundError:
            return None


def _write_file(folder: Storage, who: str, part: Part) -> tuple[str, int, int, str]:
    """Write a part of a batch; return the file's name, size and time, and what the table's log says of its content."""
    rows, buffer = part.table(), pa.BufferOutputStream()
    pq.write_table(rows, buffer)
    content = buffer.getvalue()
    reach("part-staged", 100 * part.batch + part.first)
    # no other attempt writes this file: one that was thought dead can't harm it
    name = f"part-{part.first:05d}-{who}-{uuid.uuid4()}.parquet"
    folder.write(name, content)
    return name, content.size, int(1000 * time.time()), statistics(rows)


def statistics(rows: pa.Table) -> str:
    """Return what readers skip files by: the number of rows and nulls, and the range of numbers and short texts.

    >>> statistics(pa.table({"n": [3, None, 1], "s": ["a", "c", "b"]}))
    '{"numRecords":3,"nullCount":{"n":1,"s":0},"minValues":{"n":1,"s":"a"},"maxValues":{"n":3,"s":"c"}}'
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        column = rows[field.name]
        if pa.types.is_nested(field.type):
            continue
        nulls[field.name] = column.null_count
        if pa.types.is_integer(field.type) or pa.types.is_string(field.type):
            ends = pc.min_max(column).as_py()
            # a text that were cut would have to be rounded up
            if all(end is not None and (isinstance(end, int) or len(end) <= SHORT) for end in ends.values()):
                lows[field.name], highs[field.name] = ends["min"], ends["max"]
    said = {"numRecords": rows.num_rows, "nullCount": nulls, "minValues": lows, "maxValues": highs}
    return json.dumps(said, separators=(",", ":"))


def last_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key.

    >>> last_of_each(pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]}), ["k"]).to_pylist()
    [{'k': 'b', 'n': 2}, {'k': 'a', 'n': 3}]
    """
    numbered = table.select(list(keys)).append_column("", pa.array(range(table.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("", "max")])[numbered.column_names[-1] + "_max"]
    return table.take(last.combine_chunks().sort())


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
