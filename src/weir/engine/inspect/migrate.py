"""Change saved state for a program that the checkpoint would refuse: a function from the rows of old to those of new.

The new state is written as segments, and one commit, in the place of the last one, names them. So the old state holds
until that commit is there, and the next start goes on from the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from weir.engine.batch.fence import Fence
from weir.engine.batch.initial import entries_of, on_first_server, write_entries
from weir.engine.checkpoint import COMMITS, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.inspect.inspection import described_operator, open_checkpoint, readable_state
from weir.errors import CheckpointError, EngineError, ParameterError, did_you_mean
from weir.faults import reach
from weir.graph.declare import Assembly
from weir.operators.timers import TIMER, states_in
from weir.state.storage import Option, Storage
from weir.state.view import StateView

Migration = Callable[[pa.Table], Any]  # old rows → new ones


def migrate(
    parts: Assembly,
    checkpoint: str,
    functions: Mapping[str, Migration],
    storage_options: Mapping[str, Option] | None = None,
) -> dict[str, tuple[int, int]]:
    """Migrate the state of operators; return how many rows there were, and how many entries there are."""
    storage = open_checkpoint(checkpoint, storage_options)
    layout = CheckpointLayout(storage)
    topology = parts.topology(layout.commit_of().servers)
    named = {n.name: n for n in topology.stateful}
    for name, function in functions.items():
        if not callable(function):
            raise ParameterError(f"the migration of {name!r} is {function!r}: expected a function of a table")
        if name not in named:
            raise ParameterError(
                f"the application has no operator {name!r} with state; {did_you_mean(name, named)}"
            )
    fence = Fence(storage)  # a query that runs stops before it writes another document
    last = layout.commit_of()
    old = {name: old_rows(storage, last, name) for name in functions}
    counts, written = {}, {}
    for name, function in functions.items():
        try:
            new = function(old[name])
        except Exception as error:
            raise EngineError(
                f"the migration of {name!r} failed ({type(error).__name__}: {error}). Nothing has changed"
            ) from error
        node = named[name]
        entries: Callable[[], Iterator[pa.Table]] = partial(
            entries_of, node, new, last.clock, "migrated state"
        )
        written[name] = write_entries(storage, node, last.batch, entries, "migrated state")
        counts[name] = old[name].num_rows, written[name][1]
    fence.check()
    if layout.documents(COMMITS)[-1] != layout.commit(last.batch, last.epoch):
        raise CheckpointError(
            f"{storage.root}: a query committed another batch meanwhile. Stop it, and migrate again"
        )
    commit = on_first_server(topology, last, written)
    storage.write_document(layout.commit(commit.batch, commit.epoch), "commit", commit)
    reach("commit-replaced", commit.batch)
    fence.end(commit.batch, None)
    return counts


def old_rows(storage: Storage, commit: Commit, name: str) -> pa.Table:
    """Return what people read of an operator's state; of aggregates, the columns of their states."""
    described = described_operator(commit, name)
    stored = described.entries
    tables = [StateView(storage, refs, stored).everything() for refs in commit.manifest[name]]
    table = pa.concat_tables(tables)
    if described.window is not None or states_in(table).num_rows < table.num_rows:
        raise EngineError(
            f"operator {name!r} has open windows or timers, which a migration would lose. Let the stream end them, or "
            "give the changed operator another name"
        )
    if described.operator["kind"] == "Aggregate":
        return table.select([c for c in stored.names if c != TIMER.name])
    return pa.concat_tables(readable_state(described, part) for part in tables)
