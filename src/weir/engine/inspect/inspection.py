"""Inspect a checkpoint without Spark: its batches, state and routing tables, and whether its files are intact.

A commit names each file with its length and checksum, so anyone who can read a checkpoint can verify it, also while
the query runs: nothing here writes, locks or deletes. State can be read, too, from what the checkpoint alone says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.checkpoint import COMMITS, PLANS, CheckpointLayout, files_of
from weir.engine.documents import BatchPlan, Commit, FileRef
from weir.engine.progress import Progress
from weir.engine.task.tables import load_table
from weir.errors import CheckpointError, EngineError, ParameterError, did_you_mean
from weir.graph.model import HELD, OperatorSignature, Topology
from weir.hashing import hash_columns
from weir.operators.base import Operator
from weir.operators.instance import hashes_of
from weir.operators.saved import readable_entries, readable_values
from weir.operators.timers import TIMER, states_in
from weir.operators.windows import WINDOW_END, WINDOW_START, described_window
from weir.state.segment import DEAD, H1, H2, SegmentRef, newest
from weir.state.storage import FORMAT, Option, Storage
from weir.state.view import StateView

_COUNTERS = (
    "rows",
    "rows_local",
    "rows_exchanged",
    "bytes_exchanged",
    "locality",
    "distance",
    "table_version",
)

Ref = SegmentRef | FileRef
Hashes = tuple[NDArray[np.uint64], NDArray[np.uint64]]
Damage = list[dict[str, str]]  # file and problem of each damaged file
Document = TypeVar("Document", Commit, BatchPlan)


def inspect(
    checkpoint: str,
    *,
    last: int = 10,
    verify: bool = True,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Return a report on a checkpoint as data that JSON can hold.

    ``last`` is the number of batches to describe. With ``verify``, every file that the latest commit names is read, its
    length and checksum are compared, and keys are counted; ``advance`` is called with the bytes read so far and in all.

    Raise a CheckpointError if there is no checkpoint, or its head or latest commit cannot be read.
    """
    storage = open_checkpoint(checkpoint)
    layout = CheckpointLayout(storage)
    head = layout.head()
    latest = layout.latest_commit()  # it names the files that count: without it there is nothing to report
    did = None if latest is None else latest.progress
    damaged: Damage = []
    commits = _readable(layout.documents(COMMITS), layout.read_commit, damaged)
    plans = _readable(layout.documents(PLANS), layout.read_plan, damaged)
    files = _Files(storage, latest, verify, advance)
    damaged += files.damaged
    return {
        "checkpoint": storage.root,
        "id": head["id"],
        "mode": (latest.mode if latest else "") or head["mode"],
        "created": datetime.fromtimestamp(head["created"], UTC).isoformat(),
        "format": FORMAT,
        "servers": latest.servers if latest else None,
        "batch": latest.batch if latest else None,
        "epoch": latest.epoch if latest else 0,
        "batches": _batches(commits, last),
        "operators": files.operators,
        "edges": {n: edge.to_dict() for n, edge in did.edges.items()} if did else {},
        "tables": _tables(storage, latest, verify),
        "table_version": latest.table_version if latest else 0,
        "health": {
            "ok": not damaged and not files.wrong,
            "verified": verify,
            "files": files.count,
            "bytes": files.bytes,
            "damaged": damaged,
            "wrong": files.wrong,
            "planned": _planned(plans, latest),
            "undelivered": _undelivered(layout, latest),
            **_unnamed(layout, commits, plans),
        },
    }


def open_checkpoint(location: str, options: Mapping[str, Option] | None = None) -> Storage:
    """Return the storage of a checkpoint; refuse a folder that is not one."""
    storage = Storage(location, options)
    if CheckpointLayout(storage).check_head(storage.exists(COMMITS)):
        return storage
    if not storage.exists(""):
        raise CheckpointError(f"{storage.root}: no such folder")
    raise CheckpointError(
        f"{storage.root}: not a Weir checkpoint (it has no file '{CheckpointLayout.HEAD}'). "
        "Name the folder that the query was started with."
    )


def _readable(names: Sequence[str], read: Callable[[str], Document], damaged: Damage) -> list[Document]:
    """Return the readable documents, and add the others to ``damaged``."""
    documents = []
    for name in names:
        try:
            documents.append(read(name))
        except CheckpointError as error:
            damaged.append({"file": name, "problem": str(error)})
    return documents


class _Files:
    """The files of one commit: verifies them, and counts the keys on each server."""

    def __init__(
        self, storage: Storage, commit: Commit | None, verify: bool, advance: Callable[[int, int], None]
    ) -> None:
        self.storage, self.verify, self._advance = storage, verify, advance
        self.damaged: Damage = []
        self.wrong: list[str] = []
        self.operators: dict[str, dict[str, Any]] = {}
        unread = {ref.name: ref for ref in files_of(commit)}
        self.count = len(unread)
        self.bytes = sum(ref.bytes for ref in unread.values())
        self._bytes_read = 0
        if commit is None:
            return
        for name, servers in commit.manifest.items():
            signature, keys = commit.signature.operators.get(name), commit.keys.get(name)
            self.operators[name] = self._operator(name, servers, signature, keys)
            for segments in servers:
                for segment in segments:
                    unread.pop(segment.name, None)
        for ref in unread.values():
            self._read(ref)

    def _operator(
        self,
        name: str,
        servers: list[list[SegmentRef]],
        signature: OperatorSignature | None,
        keys: int | None,
    ) -> dict[str, Any]:
        """Describe an operator's state; ``keys`` is the number of keys on record."""
        rows: list[dict[str, Any]] = []
        hashes: list[Hashes] = []
        for number, segments in enumerate(servers):
            tables = [self._read(segment) for segment in segments]
            counted: int | None = None
            if self.verify and all(table is not None for table in tables):
                hashes.append(_live_keys(segments, tables))
                counted = len(hashes[-1][0])
            rows.append(
                {
                    "server": number,
                    "keys": counted,
                    "entries": sum(segment.entries for segment in segments),
                    "segments": len(segments),
                    "bytes": round(sum(segment.bytes * segment.share for segment in segments)),
                }
            )
        # partial states that waited, up to version 0.2, have no signature: a key may wait on several servers
        if self.verify and signature and len(hashes) == len(servers):
            self._check_keys(name, hashes, keys)
        return {
            "kind": signature and signature.operator.get("kind"),
            "key": signature.key_names if signature else [],
            "window": signature and signature.window,
            "grouping": signature and (signature.grouping or [None])[0],
            "placement": signature and signature.placement,
            "keys": keys,
            "segments": sum(row["segments"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
            "servers": rows,
        }

    def _check_keys(self, name: str, servers: list[Hashes], expected: int | None) -> None:
        """Compare the number of keys with the one on record, and look for keys on two servers."""
        counted = sum(len(key_hash) for key_hash, _ in servers)
        if expected is not None and counted != expected:
            self.wrong.append(f"operator {name!r} has {counted:,} keys, but the commit counts {expected:,}")
        pairs = [np.stack(hashes, axis=1) for hashes in servers]
        keys = np.concatenate(pairs) if pairs else np.empty((0, 2), np.uint64)
        doubled = len(keys) - len(np.unique(keys, axis=0))
        if doubled:
            self.wrong.append(f"operator {name!r}: {doubled:,} keys live on more than one server")

    def _read(self, ref: Ref) -> pa.Table | None:
        """Return a file's table; note the damage and return None if it is not as the commit says."""
        if not self.verify:
            return None
        try:
            data = self.storage.read_checked(ref.name, ref.bytes, ref.crc)
            return pa.ipc.open_file(data).read_all()
        except (CheckpointError, pa.ArrowException, OSError) as error:
            self.damaged.append({"file": ref.name, "problem": str(error)})
            return None
        finally:
            self._bytes_read += ref.bytes
            self._advance(self._bytes_read, self.bytes)


def _live_keys(refs: list[SegmentRef], segments: list[pa.Table | None]) -> Hashes:
    """Return the hashes of the keys that a server holds, given its segments, oldest first."""
    if not refs:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    parts = [table.select([H1, H2, DEAD]) for table in segments if table is not None]
    own = [part.filter(ref.holds(part[H1].to_numpy())) for ref, part in zip(refs, parts, strict=True)]
    table = newest(pa.concat_tables(own))
    return hashes_of(table.filter(pa.compute.invert(table[DEAD])))


def _batches(commits: list[Commit], last: int) -> list[dict[str, Any]]:
    """Describe the last batches, oldest first.

    A migration repeats the number of its batch and has no progress, so it is left out.
    """
    by_number = {commit.batch: commit.progress for commit in commits if commit.progress is not None}
    numbers = sorted(by_number)[-last:] if last > 0 else []
    return [_batch(number, by_number[number]) for number in numbers]


def _batch(number: int, did: Progress) -> dict[str, Any]:
    operators, dropped = did.operators, ("null_keys", "late", "ahead", "diverted")
    return {
        "batch": number,
        **{name: getattr(did, name) for name in _COUNTERS},
        "latency": did.sinks,
        "imbalance": {name: operator.imbalance for name, operator in operators.items()},
        **{name: sum(getattr(operator, name) for operator in operators.values()) for name in dropped},
        "moved_keys": did.moved_keys or 0,
        "seconds": did.seconds.plan + did.seconds.job or None,
    }


def _tables(storage: Storage, commit: Commit | None, verify: bool) -> dict[str, dict[str, Any]]:
    """Describe the routing tables in force; their number of keys is known only if their files are read."""
    tables: dict[str, dict[str, Any]] = {}
    for name, ref in (commit.tables if commit else {}).items():
        keys: int | None = None
        if verify:
            with contextlib.suppress(CheckpointError, pa.ArrowException):  # reported with the damaged files
                keys = len(load_table(storage, ref))
        size = sum(file.bytes for file in ref.files)
        tables[name] = {"version": ref.version, "keys": keys, "files": len(ref.files), "bytes": size}
    return tables


def _planned(plans: list[BatchPlan], commit: Commit | None) -> int | None:
    """Return the batch that is planned and not committed: it is running, or will be replayed."""
    following = (commit.batch + 1, commit.epoch) if commit else (0, 0)
    return next((plan.batch for plan in plans if (plan.batch, plan.epoch) == following), None)


def _undelivered(layout: CheckpointLayout, commit: Commit | None) -> int | None:
    """Return the last batch if it has rows for a sink and their delivery is not on record."""
    if commit is None or not commit.outputs or layout.storage.exists(layout.delivered(commit.batch)):
        return None
    return commit.batch


def _unnamed(
    layout: CheckpointLayout, commits: list[Commit], plans: list[BatchPlan]
) -> dict[str, dict[str, int]]:
    """Count the files that no commit and no plan names.

    Those of a batch that is not committed yet may still become part of a commit. The others were left behind by
    tasks that ran twice or were killed, and never will.
    """
    named = {ref.name for ref in files_of([*commits, *plans])}
    latest = max((commit.batch for commit in commits), default=-1)
    counts = {"in_flight": {"files": 0, "bytes": 0}, "orphans": {"files": 0, "bytes": 0}}
    for file in layout.data_files():
        if file not in named:
            kind = "in_flight" if layout.batch_of(file) > latest else "orphans"
            counts[kind]["files"] += 1
            counts[kind]["bytes"] += layout.storage.size(file)
    return counts


def readable_schema(described: OperatorSignature, operator: Operator | None = None) -> pa.Schema:
    """Return the columns of :func:`readable_state`."""
    return readable_state(described, described.entries.empty_table(), operator).schema


def readable_state(
    described: OperatorSignature, table: pa.Table, operator: Operator | None = None
) -> pa.Table:
    """Keys, windows and values from stored entries; ``operator`` is the running one, if there is."""
    schema = described.entries
    table = readable_entries(described.operator, table)
    keys = described.key_names
    table = states_in(table)
    heads = [
        *keys,
        *(name for name in (WINDOW_START, WINDOW_END) if described.window and name in schema.names),
    ]
    out: dict[str, Any] = {name: table[name] for name in heads}
    if described.window and WINDOW_END not in schema.names:
        start = table[WINDOW_START]
        ends = described_window(described.window).ends(start.cast(pa.int64()).to_numpy())
        out[WINDOW_END] = pa.array(ends).cast(start.type)
    states = table.select([name for name in schema.names[len(heads) :] if name != TIMER.name])
    for name, values in readable_values(described.operator, states, operator).items():
        out[name if name not in out else f"state.{name}"] = values
    return pa.table(out)


def running_operator(topology: Topology | None, described: OperatorSignature, name: str) -> Operator | None:
    """Return the operator of a running query, if it is still the one whose state was saved."""
    node = None if topology is None else topology.by_name.get(name)
    return node.operator if node is not None and node.operator.signature() == described.operator else None


def state_table(storage: Storage, commit: Commit, name: str, topology: Topology | None = None) -> pa.Table:
    """Return the state of an operator at a commit, from all servers."""
    described = described_operator(commit, name)
    operator = running_operator(topology, described, name)
    return pa.concat_tables(state_parts(storage, commit, name, operator=operator))


def state_parts(
    storage: Storage,
    commit: Commit,
    name: str,
    key: Sequence[str] | None = None,
    operator: Operator | None = None,
) -> Iterator[pa.Table]:
    """Yield the state of an operator at a commit, one server's after the other; that of one key alone if it is given.

    A key has a text for each of its columns. It is looked up by hash, so the rest of the state is not read.
    """
    described = described_operator(commit, name)
    stored, wanted = described.entries, None
    if key is not None:
        wanted = _key_of(name, described, key)
        hashed = hash_columns([pa.array([value.as_py()], value.type) for value in wanted.values()])
    for refs in commit.manifest[name]:
        view = StateView(storage, refs, stored)
        if wanted is None:
            yield readable_state(described, view.everything(), operator)
            continue
        found = readable_state(described, view.all_of(hashed), operator)
        for column, value in wanted.items():
            found = found.filter(pa.compute.equal(found[column], value))
        yield found


def _key_of(name: str, described: OperatorSignature, key: Sequence[str]) -> dict[str, pa.Scalar]:
    """Return the values of a key's columns that some texts are."""
    columns = described.key_names
    if len(key) != len(columns):
        raise ParameterError(
            f"the key of {name!r} is {', '.join(columns)}: {len(columns)} values, not {len(key)}"
        )
    values = {}
    for column, text in zip(columns, key, strict=True):
        kind = described.entries.field(column).type
        try:
            values[column] = pa.scalar(text).cast(kind)
        except pa.ArrowException as error:
            raise ParameterError(f"{column}={text!r} is no {kind}: {error}") from None
    return values


def described_operator(commit: Commit, name: str) -> OperatorSignature:
    """Return what a commit says about an operator that keeps state."""
    operators = commit.signature.operators
    if name not in operators:
        raise EngineError(f"no operator {name!r} keeps state; {did_you_mean(name, operators)}")
    if any(commit.manifest.get(name + HELD, [])):
        raise EngineError(
            f"operator {name!r}: version 0.2 left partial states that are not merged yet (aggregate_every); start the "
            "query once with this version, and they are"
        )
    return operators[name]
