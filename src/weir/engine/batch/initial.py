"""Initial state: rows, or the state of another checkpoint, as what an operator keeps before its first batch.

It is written as segments, and a commit names them: that of a batch which has no rows and is ours alone. So it is there
exactly when that commit is, and a start that dies before begins anew. The commit says that the operator lives on the
first server; the next plan spreads it like the state of a restart with more servers, by reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from weir.engine.batch.ledger import Ledger
from weir.engine.checkpoint import STATE, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.task.ownership import ranged
from weir.errors import CheckpointError, CheckpointMismatch, TopologyError, WeirError, did_you_mean
from weir.faults import reach
from weir.graph.declare import State
from weir.graph.model import HELD, Node, Topology, fingerprint
from weir.state.index import group_rows
from weir.state.segment import H1, H2, SegmentRef, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

AT_ONCE = 1 << 20  # rows that are turned into entries at a time
INITIAL = "initial state"
Tables = Callable[[], Iterator[pa.Table]]


def begin_with(ledger: Ledger, given: Mapping[str, Any]) -> bool:
    """Give operators that the checkpoint does not know yet the state they begin with; return whether there are any."""
    last, topology = ledger.last, ledger.topology
    known = {} if last is None else last.signature.operators
    new = [name for name in given if name not in known]
    if not new:
        return False
    clock, parts, secrets = ledger.read_clock(), dict[str, tuple[Node, Tables]](), ledger.secrets
    for name in new:
        node = replace(topology.by_name[name], secret=secrets[name])
        if isinstance(given[name], State):
            tables, until, secrets[name] = _saved(node, given[name])
            clock = min(clock, until)  # what has come due since is due with the first batch
        else:
            tables = partial(entries_of, node, given[name], clock, INITIAL)
        parts[name] = node, tables
    last = last or _nothing(ledger, clock)
    written = {
        name: write_entries(ledger.storage, node, last.batch, tables, INITIAL)
        for name, (node, tables) in parts.items()
    }
    ledger.replace(on_first_server(topology, last, written, secrets))
    return True


def _nothing(ledger: Ledger, clock: int) -> Commit:
    """Return the commit of a batch before the first one of the source."""
    topology = ledger.topology
    none: list[Any] = [[] for _ in range(topology.servers)]
    return Commit(
        batch=0,
        epoch=-1,
        fingerprint="",
        signature=topology.signature(),
        servers=topology.servers,
        clock=clock,
        manifest={n.name: none for n in topology.stateful},
        keys={n.name: 0 for n in topology.stateful},
        counts={n.name: [0] * topology.servers for n in topology.stateful},
        ranged=ranged(topology, None),
        source_batch=-1,
    )


def on_first_server(
    topology: Topology,
    last: Commit,
    written: Mapping[str, tuple[list[SegmentRef], int]],
    secrets: Mapping[str, str],
) -> Commit:
    """Return a commit in the place of the last one, in which some operators have other state, on one server.

    ``secrets`` are those of their hashes.
    """
    rest: list[list[SegmentRef]] = [[] for _ in range(last.servers - 1)]
    now = topology.signature().operators
    operators, manifest = dict(last.signature.operators), dict(last.manifest)
    keys, counts, tables = dict(last.keys), dict(last.counts), dict(last.tables)
    for name, (refs, count) in written.items():
        operators[name] = msgspec.structs.replace(now[name], placement=[0])
        manifest[name], keys[name] = [refs, *rest], count
        counts[name] = [count, *(0 for _ in rest)]
        tables.pop(name, None)
    layout = last.layout
    if layout is not None:
        groups = {name: file for name, file in layout.key_groups.items() if name not in written}
        layout = msgspec.structs.replace(layout, key_groups=groups)
    return msgspec.structs.replace(
        last,
        epoch=last.epoch + 1,
        fingerprint=fingerprint(topology),
        secrets={**last.secrets, **{name: secrets[name] for name in written}},
        signature=msgspec.structs.replace(last.signature, operators=operators),
        manifest=manifest,
        keys=keys,
        counts=counts,
        tables=tables,
        layout=layout,
        ranged=None if last.ranged is None else [*{*last.ranged, *written}],
        graph=topology.outline(),
    )


def write_entries(
    storage: Storage, node: Node, batch: int, tables: Tables, what: str
) -> tuple[list[SegmentRef], int]:
    """Write entries as segments of a batch; return these, and their number. Each key comes once."""
    refs, hashes = [], list[np.ndarray[Any, Any]]()
    for table in tables():
        if table.num_rows:
            name = CheckpointLayout.new_file(STATE, batch, "initial", node.name)
            refs.append(write_segment(storage, name, table))
            hashes.append(np.stack([table[H1].to_numpy(), table[H2].to_numpy()]))
        reach("initial-written", batch)
    if not hashes:
        return [], 0
    key_hash, key_check = np.concatenate(hashes, axis=1)
    groups, first = group_rows(key_hash, key_check)
    if len(first) < len(groups):
        twice = np.flatnonzero(np.bincount(groups) > 1)
        one = first[twice[0]]
        raise TopologyError(
            f"{node.declared.where}, {what}: {len(twice)} keys come more than once, "
            f"{_named(node, tables, key_hash[one], key_check[one])} for one; give one row for each key"
        )
    return refs, len(groups)


def _named(node: Node, tables: Tables, key_hash: np.uint64, key_check: np.uint64) -> str:
    """Return a key by its hashes, as a text."""
    for table in tables():
        at = np.flatnonzero((table[H1].to_numpy() == key_hash) & (table[H2].to_numpy() == key_check))
        if len(at):
            return str(table.select(list(node.key)).take(pa.array(at[:1])).to_pylist()[0])
    return "?"


def entries_of(node: Node, given: Any, clock: int, what: str) -> Iterator[pa.Table]:
    """Yield entries for rows as users give them; ``what`` they are, for errors."""
    where = f"{node.declared.where}, {what}"
    for table in _tables(given, where):
        try:
            yield node.operator.initial(node, table, clock)
        except WeirError as error:
            raise TopologyError(f"{where}: {error}") from None


def _tables(given: Any, where: str) -> Iterator[pa.Table]:
    if isinstance(given, str | os.PathLike):
        try:
            source = ds.dataset(os.fspath(given), format="parquet")
            empty = source.schema.empty_table()
            yield empty  # a schema that does not fit is told without reading
            for batch in source.to_batches(batch_size=AT_ONCE):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise TopologyError(f"{where}: {given}: cannot be read as Parquet ({error})") from None
        return
    table = given.toArrow() if hasattr(given, "toArrow") else given  # a DataFrame of Spark
    try:
        table = pa.Table.from_pylist(table) if isinstance(table, list) else pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise TopologyError(f"{where}: no rows of named columns ({error})") from None
    yield table.slice(0, 0)
    for start in range(0, table.num_rows, AT_ONCE):
        yield table.slice(start, AT_ONCE)


def _saved(node: Node, given: State) -> tuple[Tables, int, str]:
    """Return the state of another checkpoint as entries, until when what was due there has happened, and its secret.

    Entries stay as they are, so the hash of their keys stays keyed as it was there.
    """
    storage = Storage(given.checkpoint, given.storage_options)
    commit = CheckpointLayout(storage).commit_of(given.batch)
    operators, where = commit.signature.operators, f"{node.declared.where}, {INITIAL}"
    if given.operator not in operators:
        raise CheckpointError(
            f"{where}: {storage.root} has no operator {given.operator!r} with state; "
            f"{did_you_mean(given.operator, operators)}"
        )
    before = operators[given.operator]
    key = [[name, str(node.state.field(name).type)] for name in node.key]
    window = node.window.signature() if node.window else None
    now = node.operator.signature()
    for what, old, new in (("key", before.key, key), ("window", before.window, window)):
        if old != new:
            raise CheckpointMismatch(
                f"{where}: {given.operator!r} has another {what} there ({old}, here {new})"
            )
    columns = {f.name: str(f.type) for f in node.state}
    if not node.operator.accepts(before.operator) or any(columns.get(n) != t for n, t in before.state):
        raise CheckpointMismatch(
            f"{where}: {given.operator!r} is defined in another way there ({before.operator}, here {now}). Where its "
            "values say it all, give rows: weir.read_state(…)"
        )
    if any(commit.manifest.get(given.operator + HELD, [])):
        raise CheckpointError(f"{where}: {storage.root} is of version 0.2; start it once with this version")

    def tables() -> Iterator[pa.Table]:
        for refs in commit.manifest[given.operator]:
            yield StateView(storage, refs, node.state).everything()

    return tables, commit.clock, commit.secrets.get(given.operator, "")
