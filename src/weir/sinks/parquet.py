"""Parquet files, a folder per batch."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import CheckpointError, CheckpointMismatch, SinkError, SinkUnavailable
from weir.faults import reach
from weir.sinks.base import Delivery, Part, Sink
from weir.state.storage import Storage

# waiting does not help: no right, no folder, on a local disk a path that can't be
IMPOSSIBLE = (PermissionError, NotADirectoryError, IsADirectoryError)
NEVER = (errno.ENOENT, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EROFS)
MARKER = "_weir"  # readers of Parquet pass over names that begin with an underscore


class Parquet(Sink):
    """Writes Parquet: a folder ``batch_id=…`` for each batch that has rows, written by the executors in parallel.

    A batch that is delivered again replaces its files by the same ones. A folder belongs to the query that wrote to
    it first; a second run, whose batches count from 0 again, is refused. With ``shared=True`` runs and queries may
    share a folder: their files carry the query's id, so that one never touches those of another.

    Parameters
    ----------
    path
        A folder or URI that driver and executors reach: a path, ``hdfs://…``, ``s3://…``, ``gs://…``, ``az://…``.
    shared
        Whether other queries, and later runs of this one, may write to the folder, too.
    storage_options
        Settings of an object store, as in :class:`weir.Options`.

    Guarantee: each row once, whatever dies. A reader may see some files of a batch before others; when the batch is
    whole, its folder has a file ``_SUCCESS``.
    """

    def __init__(
        self,
        path: str,
        *,
        shared: bool = False,
        storage_options: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self.path, self.shared = path, shared
        self._storage = Storage(path, storage_options)
        self._marked = False

    def __repr__(self) -> str:
        return f"Parquet({self.path!r})"

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        storage = self._storage
        if storage.is_local:
            self._check_writable()
        if self.shared:
            return
        if storage.exists(MARKER):
            owner = storage.read(MARKER).to_pybytes().decode().strip()
            self._marked = owner == query
            foreign = not self._marked
        else:  # versions before wrote no marker: who goes on from a checkpoint may take the folder over
            foreign = fresh and any(name.startswith("batch_id=") for name in storage.names(""))
        if foreign:
            raise CheckpointMismatch(
                f"sink {self.path}: has batches of another checkpoint, whose numbers this query would write again. Use "
                "another folder, go on with the checkpoint that it was written from, or let runs share the folder with "
                "weir.sinks.Parquet(path, shared=True)."
            )

    def _check_writable(self) -> None:
        """Refuse a folder that can never be written; it is made with the first rows."""
        folder = os.path.abspath(self._storage.location)
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            raise SinkError(f"sink {self.path}: {folder} is no folder; use another path")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SinkError(f"sink {self.path}: {folder} can't be written by this user; use another path")

    def deliver(self, delivery: Delivery) -> None:
        storage, folder = self._storage, f"batch_id={delivery.batch}"
        who = f"{delivery.query}-{delivery.operator}"
        try:
            if not (self.shared or self._marked):
                # another query may have come since it was opened
                self.open(delivery.query, delivery.operator, delivery.schema, False)
                storage.write(MARKER, delivery.query.encode())
                self._marked = True
            if not self.shared and delivery.again:  # of an attempt by an earlier version, under other names
                for name in storage.files(folder):
                    if delivery.query not in name:  # other operators may have the same folder
                        storage.delete(name)
            delivery.staged(partial(_write, storage, f"{folder}/part-{{:05d}}-{who}.parquet"))
            reach("sink-staged", delivery.batch)
            storage.write(f"{folder}/_SUCCESS", b"")
        except (CheckpointError, OSError) as error:
            cause = error.__cause__ if isinstance(error, CheckpointError) else error
            if not isinstance(cause, OSError):
                raise
            if isinstance(cause, IMPOSSIBLE) or (storage.is_local and cause.errno in NEVER):
                raise SinkError(f"{self!r}: {error}") from error
            raise SinkUnavailable(f"{self!r}: {error}") from error


def _write(storage: Storage, name: str, part: Part) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(part.table(), buffer)
    reach("part-staged", 100 * part.batch + part.first)
    storage.write(name.format(part.first), buffer.getvalue())
