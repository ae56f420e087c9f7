"""Where everything is in a checkpoint, what a commit names, what may be thrown away; and its Arrow files.

``docs/architecture.md`` has a table of all paths. Names of batches have twelve digits, so that they sort.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from weir.engine.documents import BatchPlan, Commit, FileRef, commit_of, plan_of
from weir.errors import CheckpointError
from weir.state.segment import SegmentRef
from weir.state.storage import Pieces, Storage

PLANS, COMMITS, DELIVERED, HISTORY = "plans", "commits", "delivered", "history"
REQUESTS, ANSWERS, DRIVERS, SOURCE = "requests", "answers", "drivers", "source"
STATE, OUTPUTS, TABLES, ROUTERS = "state", "outputs", "tables", "routers"
SIDE, MOVES, MANAGER, READ = "side", "moves", "manager", "read"
# files that count if a commit names them
DATA = (STATE, OUTPUTS, TABLES, ROUTERS, MOVES, MANAGER, SIDE, READ)
ENDED, PREPARING, DECISION, DONE = "-ended", "-preparing", "-decision", "-done"
_FILES = (SegmentRef, FileRef)
_PLAIN = {"progress", "graph", "signature", "counts", "feedback"}  # fields without files, some of them long


class CheckpointLayout:
    """The parts of a checkpoint by name, and its plans and commits.

    >>> CheckpointLayout.plan(7, 0), CheckpointLayout.driver(3, ENDED)
    ('plans/000000000007-0000', 'drivers/00000003-ended')
    >>> CheckpointLayout.new_file(MOVES, 7, "moves", "words").rpartition("-")[0]
    'moves/words/000000000007/moves'
    """

    HEAD, FORKING = "weir", "forking"

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # ------------------------------------------------------------------ names

    @staticmethod
    def plan(batch: int, epoch: int) -> str:
        return f"{PLANS}/{batch:012d}-{epoch:04d}"

    @staticmethod
    def commit(batch: int, epoch: int) -> str:
        return f"{COMMITS}/{batch:012d}-{epoch:04d}"

    @staticmethod
    def delivered(batch: int) -> str:
        return f"{DELIVERED}/{batch:012d}"

    @staticmethod
    def driver(turn: int, what: str = "") -> str:
        """Return the claim of a driver; ``what``: that it has :data:`ENDED`, or is :data:`PREPARING`."""
        return f"{DRIVERS}/{turn:08d}{what}"

    @staticmethod
    def request(name: str) -> str:
        return f"{REQUESTS}/{name}"

    @staticmethod
    def answer(request: str, what: str = "") -> str:
        """Return who has taken a request up; ``what``: the :data:`DECISION`, or what came of it (:data:`DONE`)."""
        return f"{ANSWERS}/{request}{what}"

    @staticmethod
    def history(chunk: object) -> str:
        return f"{HISTORY}/{chunk}"

    @staticmethod
    def offsets(batch: int) -> list[str]:
        """Return what Spark writes down about a batch's input, as patterns."""
        names = [f"{batch}", f".{batch}.crc", f"{batch}.compact", f".{batch}.compact.crc"]
        return [f"{SOURCE}/{where}/{name}" for where in ("offsets", "sources/*") for name in names]

    @staticmethod
    def new_file(kind: str, batch: int, what: str, operator: str = "") -> str:
        """Return a name in a folder of a batch that no other attempt has."""
        folder = f"{kind}/{operator}" if operator else kind
        return f"{folder}/{batch:012d}/{what}-{uuid.uuid4().hex[:12]}.arrow"

    @staticmethod
    def batch_of(name: str) -> int:
        """Return the batch of a plan, a commit, a delivery or a file; −1 where the name has none.

        >>> [CheckpointLayout.batch_of(n) for n in ("plans/000000000007-0000", "side/a/000000000012/x.arrow")]
        [7, 12]
        """
        parts = name.split("/")
        return next((int(p) for p in (*parts[-2:-1], parts[-1].split("-")[0]) if p.isdigit()), -1)

    def documents(self, folder: str) -> list[str]:
        """Return the documents of a folder, in order, without those that are being written."""
        return [f"{folder}/{name}" for name in self.storage.names(folder) if not name.endswith(".tmp")]

    def turns(self) -> list[int]:
        """Return the numbers of all drivers that have claimed the checkpoint."""
        return [int(name) for name in self.storage.names(DRIVERS) if name.isdigit()]

    def data_files(self) -> Iterator[str]:
        """Yield all files that are neither documents nor Spark's own."""
        others = tuple(
            f"{folder}/"
            # documents are verified when they are parsed; version 0.2 had probe
            for folder in (PLANS, COMMITS, DELIVERED, HISTORY, REQUESTS, ANSWERS, DRIVERS, SOURCE, "probe")
        )
        for file in self.storage.files(""):
            if file != self.HEAD and not file.startswith(others):
                yield file

    # ------------------------------------------------------------------ plans and commits

    def head(self) -> dict[str, Any]:
        """Return the checkpoint's identity and mode."""
        return dict(self.storage.read_document(self.HEAD, "checkpoint"))

    def read_plan(self, name: str) -> BatchPlan:
        return plan_of(self.storage.read_document(name, "plan"))

    def read_commit(self, name: str) -> Commit:
        return commit_of(self.storage.read_document(name, "commit"))

    def latest_commit(self) -> Commit | None:
        """Return the last commit; None if there is none."""
        names = self.documents(COMMITS)
        return self.read_commit(names[-1]) if names else None

    def commit_of(self, batch: int | None = None) -> Commit:
        """Return the commit of a batch, the last one if it is not named; say which are retained if that is not."""
        names = {
            self.batch_of(name): name for name in self.documents(COMMITS)
        }  # of one batch, the last epoch
        if not names:
            raise CheckpointError(f"{self.storage.root}: no batch has been committed there yet")
        if batch is not None and batch not in names:
            raise CheckpointError(
                f"{self.storage.root}: the state after batch {batch!r} is not there. Retained are batches "
                f"{', '.join(map(str, names))}; retain= of start says how many"
            )
        return self.read_commit(names[max(names) if batch is None else batch])

    def check_head(self, commits: bool) -> bool:
        """Return whether the checkpoint has begun; raise if only its head is gone, although it has ``commits``."""
        if self.storage.exists(self.HEAD):
            return True
        path = self.storage.path(self.HEAD)
        if commits:
            raise CheckpointError(f"{path}: missing, although there are commits. Restore it.")
        if self.storage.exists(self.FORKING):
            raise CheckpointError(
                f"{self.storage.root}: a fork that was cut off has left this, or one is still under way. Delete it, "
                "and fork again."
            )
        return False

    # ------------------------------------------------------------------ cleaning

    def delete_unfinished(self) -> None:
        """Delete documents that a driver was writing when it died."""
        for folder in (COMMITS, PLANS, DELIVERED, HISTORY):
            half = [name for name in self.storage.names(folder) if name.endswith(".tmp")]
            self.storage.delete(*(f"{folder}/{name}" for name in half))

    def delete_older(self, kept: Mapping[str, Commit]) -> int:
        """Delete what none of the last commits names, and documents before these; return how many files that were.

        Files of a batch after them may still become part of a commit.
        """
        batches = [commit.batch for commit in kept.values()]
        living = {ref.name for ref in files_of(list(kept.values()))}
        dead = [
            file
            for folder in DATA
            for file in self.storage.files(folder)
            if file not in living and self.batch_of(file) <= max(batches)
        ]
        self.storage.delete(*dead)
        old = [name for name in self.documents(COMMITS) if name < min(kept)]
        others = [name for folder in (PLANS, DELIVERED) for name in self.documents(folder)]
        self.storage.delete(*old, *(name for name in others if self.batch_of(name) < min(batches)))
        return len(dead)


def files_of(document: Any) -> list[SegmentRef | FileRef]:
    """Return every file that a commit or plan names, at any depth; with many servers there are a million."""
    found, left = [], [document]
    while left:
        part = left.pop()
        if isinstance(part, list) and part and isinstance(part[0], _FILES):
            found += part
        elif isinstance(part, _FILES):
            found.append(part)
        elif isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, dict):
            left += part.values()
        elif isinstance(part, msgspec.Struct):
            left += (getattr(part, field) for field in part.__struct_fields__ if field not in _PLAIN)
    return found


def write_table(storage: Storage, name: str, table: pa.Table) -> FileRef:
    """Write a table as one Arrow file that a plan, a report or a commit may name."""
    pieces = Pieces()
    with pa.ipc.new_file(pa.PythonFile(pieces, "w"), table.schema) as writer:
        writer.write_table(table)
    # what the table holds is not copied; object stores get it in one, and try that again
    storage.write_chunks(name, pieces.chunks if storage.is_local else [b"".join(pieces.chunks)])
    return FileRef(name, table.num_rows, pieces.size, pieces.crc)


def read_table(storage: Storage, ref: FileRef, schema: pa.Schema | None = None) -> pa.Table:
    """Return what :func:`write_table` wrote, in columns of other types if a schema says so."""
    table = pa.ipc.open_file(storage.read_checked(ref.name, ref.bytes, ref.crc)).read_all()
    return table if schema is None else table.cast(schema)


def save_arrays(storage: Storage, name: str, state: dict[str, Any]) -> FileRef:
    """Write a dict of NumPy arrays and JSON values as one Arrow file."""
    plain, columns, shapes = {}, {}, {}
    for key, value in state.items():
        if isinstance(value, np.ndarray):
            numbers = pa.array(value.ravel())
            columns[key] = pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers)
            shapes[key] = list(value.shape)
        else:
            plain[key] = value
    table = pa.table(columns) if columns else pa.table({"__empty": pa.array([0])})
    about = msgspec.json.encode({"plain": plain, "shapes": shapes})
    return write_table(storage, name, table.replace_schema_metadata({b"weir": about}))


def load_arrays(storage: Storage, ref: FileRef) -> dict[str, Any]:
    """Back from :func:`save_arrays`."""
    table = read_table(storage, ref)
    about = msgspec.json.decode(table.schema.metadata[b"weir"])
    out: dict[str, Any] = dict(about["plain"])
    for key, shape in about["shapes"].items():
        out[key] = np.array(table[key][0].values.to_numpy(zero_copy_only=False)).reshape(shape)
    return out
