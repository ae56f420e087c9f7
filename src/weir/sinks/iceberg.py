"""An Iceberg table, through pyiceberg: no JVM needed."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable, TopologyError, WeirError
from weir.extras import require
from weir.faults import reach
from weir.sinks.base import BY_SERVERS, TARGET_BYTES, Delivery, Part, Sink, check_servers_from
from weir.sinks.delta import last_of_each

_RETRIES = "commit.retry.num-retries"


class Iceberg(Sink):
    """Appends to an Iceberg table, or updates its rows by key. Needs ``pip install 'weir-streams[iceberg]'``.

    The rows and a property of the table, ``weir.QUERY.OPERATOR`` with the batch's number, are one change of the
    table's metadata. The catalog makes it only if the table's head is still the snapshot that was looked at, so two
    drivers can't both add a batch. pyiceberg's own retries, which would commit on top of anything, are off.

    Parameters
    ----------
    table
        ``"namespace.table"``; both are created if they are not there.
    catalog
        The properties of its catalog, as ``{"uri": "sqlite:///catalog.db", "warehouse": "tables/"}`` or ``{"type":
        "rest", "uri": …}``; or the name of a catalog that pyiceberg's own configuration describes.
    keys
        Columns that name a row. Without them rows are appended; with them a row replaces the one of the same
        keys (of several in one batch the last one).
    servers_from
        Rows of a batch from which servers write its data files, which the driver commits. Smaller batches, and rows
        with keys, go through the driver. None: all do.

    Guarantee: each row once, a batch at a time; readers see a batch whole or not at all.
    """

    def __init__(
        self,
        table: str,
        catalog: str | Mapping[str, str] = "default",
        *,
        keys: Sequence[str] = (),
        servers_from: int | None = BY_SERVERS,
    ) -> None:
        require("pyiceberg", "iceberg")
        self._servers_from = check_servers_from(servers_from)
        self.table, self.catalog, self.keys = table, catalog, list(keys)
        if "." not in table.strip("."):
            raise TopologyError(f'table={table!r}: expected "namespace.table"')
        self._catalog: Any = None

    def __repr__(self) -> str:
        return f"Iceberg({self.table!r})"

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        check_columns(self.keys, schema, f"{self!r} of operator {operator!r}")
        with self._translated():
            try:
                self._load()
            except NoSuchTableError:
                self._catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
                self._catalog.create_table_if_not_exists(self.table, schema)

    def deliver(self, delivery: Delivery) -> None:
        mark = f"weir.{delivery.query}.{delivery.operator}"
        with self._translated():
            table = self._load()
            if int(table.properties.get(mark, -1)) >= delivery.batch:
                return
            # a commit that meets another one must come back here and look for the mark
            table.metadata = table.metadata.model_copy(
                update={"properties": {**table.properties, _RETRIES: "0"}}
            )
            change = table.transaction()
            if self._is_written_by_servers(table, delivery):
                self._append(table, change, delivery)
            else:
                rows = pa.Table.from_batches(delivery.batches(), delivery.schema)
                if self.keys:
                    change.upsert(last_of_each(rows, self.keys), self.keys)
                else:
                    change.append(rows)
            change.set_properties({mark: str(delivery.batch)})
            reach("sink-staged", delivery.batch)
            change.commit_transaction()

    def _is_written_by_servers(self, table: Any, delivery: Delivery) -> bool:
        everywhere = "://" in table.location() or os.path.isabs(table.location().removeprefix("file:"))
        return delivery.rows >= self._servers_from and not self.keys and everywhere

    def _append(self, table: Any, change: Any, delivery: Delivery) -> None:
        """Let servers write data files, and add them to a change of the table."""
        from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

        metadata = table.metadata
        _check_pyarrow_schema_compatible(
            metadata.schema(), delivery.schema, format_version=metadata.format_version
        )
        # what it was before is of no use to tasks, and long
        small: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        writing = partial(_write_files, metadata.model_copy(update=small), dict(table.io.properties))
        written = delivery.staged(writing, TARGET_BYTES)
        with change.update_snapshot().fast_append() as append:
            for files in written:
                for file in pickle.loads(base64.b64decode(files)):
                    append.append_data_file(file)

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _load(self) -> Any:
        """Return the table as it is now."""
        from pyiceberg.catalog import load_catalog

        if self._catalog is None:
            if isinstance(self.catalog, str):
                self._catalog = load_catalog(self.catalog)
            else:
                self._catalog = load_catalog("weir", **self.catalog)
        return self._catalog.load_table(self.table)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of pyiceberg into ours: a lost race for a commit passes, and so does a catalog that is away."""
        from pyiceberg import exceptions

        passing = (
            OSError,
            exceptions.CommitFailedException,
            exceptions.CommitStateUnknownException,
            exceptions.ServerError,
            exceptions.ServiceUnavailableError,
            exceptions.TooManyRequestsError,
        )
        try:
            yield
        except WeirError:
            raise
        except Exception as error:  # each catalog has errors of its own
            text = f"{self!r}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            locked = type(error).__name__ == "OperationalError"  # of the database behind a catalog
            raise (SinkUnavailable if locked or isinstance(error, passing) else SinkError)(text) from error


def _write_files(metadata: Any, properties: dict[str, str], part: Part) -> str:
    """Write a part of a batch under names that no other attempt uses; return what the files are."""
    from pyiceberg.io import load_file_io
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    files = load_file_io(properties, metadata.location)
    written = list(_dataframe_to_data_files(metadata, part.table(), files))
    reach("part-staged", 100 * part.batch + part.first)
    return base64.b64encode(pickle.dumps(written)).decode()
