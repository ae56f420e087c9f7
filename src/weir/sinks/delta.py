"""A Delta table, through delta-rs: no JVM needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable
from weir.extras import require
from weir.faults import reach
from weir.sinks.base import Delivery, Sink, check_deleted


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
    ) -> None:
        self.path, self.keys, self.partition_by = str(path), list(keys), list(partition_by)
        self.deleted = deleted
        self._options = dict(storage_options or {})
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
            reach("sink-staged", delivery.batch)
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

    def _table(self) -> Any:
        """Return the table as it is now; None if there is none."""
        import deltalake
        from deltalake.exceptions import TableNotFoundError

        try:
            return deltalake.DeltaTable(self.path, storage_options=self._options or None)
        except TableNotFoundError:
            return None


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
