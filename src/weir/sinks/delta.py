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
import pyarrow.fs
import pyarrow.parquet as pq

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable
from weir.extras import require
from weir.faults import reach
from weir.sinks.base import BY_SERVERS, TARGET_BYTES, Delivery, Part, Sink, check_deleted, check_servers_from
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
    merge_schema
        Whether the table gets columns that rows have and it has not. Else that is an error.
    target_file_size
        Bytes of rows in memory that one file should have; in Parquet they are fewer. Parts of a batch that are smaller
        become one file.
    servers_from
        Rows of a batch from which servers write, and must reach the table: files, which the driver adds in one commit.
        Rows with keys, and those of tables with constraints or other rules, are merged or written by one server.
        Smaller batches are written by the driver. None: all are.

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
        merge_schema: bool = False,
        target_file_size: int = TARGET_BYTES,
        servers_from: int | None = BY_SERVERS,
    ) -> None:
        self.merge_schema, self.target_file_size = merge_schema, target_file_size
        self._uri = (
            str(path) if "://" in str(path) else os.path.abspath(path)
        )  # tasks may work in another folder
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
        application = f"weir-{delivery.query}-{delivery.operator}"
        with self._translated():
            if self._has(table := self._table(), application, delivery.batch):
                return
            if delivery.rows < self._servers_from:
                reach("sink-staged", delivery.batch)
                self._write(table, delivery.schema, delivery.batches(), _noting(application, delivery.batch))
            elif (fitting := self._fitting(table, delivery.schema)) is not None:
                self._append(fitting, delivery, _noting(application, delivery.batch))
            else:  # one server does what the driver would
                delivery.staged(partial(_write_whole, self, application), 1 + sum(delivery.sizes))

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

    def _has(self, table: Any, application: str, batch: int) -> bool:
        had = None if table is None else table.transaction_version(application)
        return had is not None and had >= batch

    def _write(
        self, table: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch], properties: Any
    ) -> None:
        """Let delta-rs append or merge rows here, and commit them."""
        import deltalake

        if table is None or not self.keys:
            rows = pa.RecordBatchReader.from_batches(schema, batches)
            if self.keys:
                rows = last_of_each(rows.read_all(), self.keys)
            if self.deleted:
                alive = pc.invert(pc.fill_null(rows[self.deleted], False))
                rows = rows.filter(alive).drop_columns([self.deleted])
            deltalake.write_deltalake(
                self._uri,
                rows,
                mode="append",
                schema_mode="merge" if self.merge_schema else None,
                partition_by=self.partition_by or None,
                storage_options=self._options or None,
                target_file_size=self.target_file_size,
                commit_properties=properties,
            )
            return
        rows = last_of_each(pa.Table.from_batches(batches, schema), self.keys)
        same = " AND ".join(f"old.`{key}` = new.`{key}`" for key in self.keys)
        merge = table.merge(
            rows,
            same,
            source_alias="new",
            target_alias="old",
            merge_schema=self.merge_schema,
            commit_properties=properties,
        )
        if self.deleted:
            merge = merge.when_matched_delete(f"new.`{self.deleted}`")
        alive = f"new.`{self.deleted}` IS NOT TRUE" if self.deleted else None
        hidden = [self.deleted] if self.deleted else None
        merge.when_matched_update_all(alive, hidden).when_not_matched_insert_all(alive, hidden).execute()

    def _fitting(self, table: Any, schema: pa.Schema) -> Any:
        """Return the table if files of these columns can be added to it, with nothing that delta-rs must see to.

        It is made, or gets new columns, if need be; that is a commit of its own.
        """
        import deltalake

        if self.keys:
            return None
        wanted = deltalake.Schema.from_arrow(schema)
        if table is None:
            if any(not _is_plain(schema.field(name).type) for name in self.partition_by):
                return None
            return deltalake.DeltaTable.create(
                self._uri,
                wanted,
                mode="ignore",
                partition_by=self.partition_by or None,
                storage_options=self._options or None,
            )
        protocol, has = table.protocol(), {field.name: field for field in table.schema().fields}
        features = set(protocol.writer_features or ())
        if protocol.min_writer_version > 2 and not (features and features <= PLAIN_FEATURES):
            return None
        split = table.metadata().partition_columns
        if any(name not in schema.names or not _is_plain(schema.field(name).type) for name in split):
            return None
        new = [field for field in wanted.fields if field.name not in has]
        if any(has.get(field.name, field) != field for field in wanted.fields) or (
            not self.merge_schema and (new or len(has) > len(wanted.fields))
        ):
            return None
        if any(not field.nullable and name not in schema.names for name, field in has.items()):
            return None
        if new:
            table.alter.add_columns(new)
        return table

    def _append(self, table: Any, delivery: Delivery, properties: Any) -> None:
        """Let servers write files, and add them to the table in one commit."""
        from deltalake.transaction import AddAction

        who = f"{delivery.query}-{zlib.crc32(delivery.operator.encode()):08x}-{delivery.batch}"
        split = table.metadata().partition_columns
        writing = partial(_write_files, self._uri, self._options, who, split, self.target_file_size)
        written = delivery.staged(writing, self.target_file_size)
        actions = [
            AddAction(name, size, values, at, True, about)
            for files in written
            for name, size, values, at, about in files
        ]
        reach("sink-staged", delivery.batch)
        table.create_write_transaction(
            actions, "append", table.schema(), split or None, commit_properties=properties
        )

    def _table(self) -> Any:
        """Return the table as it is now; None if there is none."""
        import deltalake
        from deltalake.exceptions import TableNotFoundError

        try:
            return deltalake.DeltaTable(self._uri, storage_options=self._options or None)
        except TableNotFoundError:
            return None


def _noting(application: str, batch: int) -> Any:
    """Return what a commit says besides: that it has a batch."""
    import deltalake

    mark = deltalake.Transaction(app_id=application, version=batch)
    return deltalake.CommitProperties(app_transactions=[mark])


def _write_whole(sink: Delta, application: str, part: Part) -> None:
    """Write a batch and commit it, in a task, unless it is there."""
    with sink._translated():
        if not sink._has(table := sink._table(), application, part.batch):
            reach("part-staged", 100 * part.batch + part.first)
            sink._write(table, part.schema, part.batches(), _noting(application, part.batch))


File = tuple[
    str, int, dict[str, str | None], int, str
]  # name, bytes, values of its partition, time, statistics


def _write_files(
    uri: str, options: dict[str, str], who: str, split: list[str], size: int, part: Part
) -> list[File]:
    """Write a part of a batch; return its files, and what the table's log says of their content."""
    files: list[File] = []
    for values, rows in _partitions(part.table(), split):
        pieces = max(1, -(-rows.nbytes // size))
        each = -(-rows.num_rows // pieces)
        for start in range(0, rows.num_rows, each):
            piece = rows.slice(start, each)
            reach("part-staged", 100 * part.batch + part.first)
            # no other attempt writes this file: one that was thought dead can't harm it
            name = f"part-{part.first:05d}-{who}-{uuid.uuid4()}.parquet"
            files.append(
                (
                    name,
                    _write_file(uri, options, name, piece),
                    values,
                    int(1000 * time.time()),
                    statistics(piece),
                )
            )
    return files


def _write_file(uri: str, options: dict[str, str], name: str, rows: pa.Table) -> int:
    """Write a file below a table; return how long it is."""
    if "://" in uri:
        from deltalake.fs import DeltaStorageHandler

        store = pa.fs.PyFileSystem(DeltaStorageHandler(uri, options))
        pq.write_table(rows, name, filesystem=store)
        return int(store.get_file_info(name).size)
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer)
    content = buffer.getvalue()
    Storage(uri).write(name, content)
    return int(content.size)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a partition are spelt alike by everybody."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date32)
    return any(test(kind) for test in tests)


def _partitions(rows: pa.Table, split: list[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Return the rows of each partition, without its columns, and their values as the log has them.

    >>> rows = pa.table({"k": ["a", None, "a"], "n": [1, 2, 3]})
    >>> [(values, part.to_pylist()) for values, part in _partitions(rows, ["k"])]
    [({'k': 'a'}, [{'n': 1}, {'n': 3}]), ({'k': None}, [{'n': 2}])]
    """
    if not split:
        yield {}, rows
        return
    numbered = rows.select(split).append_column("", pa.array(range(rows.num_rows)))
    for group in numbered.group_by(split).aggregate([("", "list")]).to_pylist():
        values = {name: None if group[name] is None else str(group[name]) for name in split}
        for name in split:
            if isinstance(group[name], bool):
                values[name] = str(group[name]).lower()
        yield values, rows.drop_columns(split).take(group["_list"])


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
