"""Change saved state for a program that the checkpoint would refuse: a function from the rows of old to those of new.

The new state is written as segments, and one commit, in the place of the last one, names them. So the old state holds
until that commit is there, and the next start goes on from the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any

import pyarrow as pa

from weir.engine.batch.fence import Fence
from weir.engine.batch.initial import entries_of, on_first_server, write_entries
from weir.engine.checkpoint import COMMITS, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.inspect.inspection import described_operator, open_checkpoint, readable_state
from weir.errors import CheckpointError, EngineError, ParameterError, did_you_mean
from weir.faults import reach
from weir.flow import Application, Stream, parts_of
from weir.operators.timers import TIMER, states_in
from weir.options import check_checkpoint
from weir.state.storage import Storage
from weir.state.view import StateView


def migrate_state(
    application: Application | Stream,
    checkpoint: str,
    functions: Mapping[str, Callable[[pa.Table], Any]],
    *,
    storage_options: Mapping[str, str | int | float | bool] | None = None,
) -> dict[str, tuple[int, int]]:
    """Turn saved state into what a changed application keeps, where a start would refuse the change.

    A renamed field, another type, another key. Do it while no query runs there: one that does is stopped. It happens as
    a whole or not at all. Returns for each operator how many rows it had, and how many it has.

    Parameters
    ----------
    application
        The changed one.
    checkpoint
        The folder or URI of the query.
    functions
        For each operator whose state changes a function. It takes all old rows as a ``pyarrow.Table``, as
        :func:`weir.read_state` shows them (of ``mean`` and others that say less than they keep, the columns of their
        state), and returns the new ones: a table, or a list of dicts, one row per key.
    storage_options
        Settings of the object store that the checkpoint is in, as in :class:`weir.Options`.

    Examples
    --------
    >>> import tempfile, weir, weir.testing
    >>> folder, posts = tempfile.mkdtemp(), weir.source("place string")
    >>> with weir.testing.start(posts.count("place", column="n"), folder, servers=2) as query:
    ...     query.feed([{"place": "FR"}, {"place": "FR"}])
    >>> changed = posts.count("place", column="posts")
    >>> weir.migrate_state(changed, folder, {"place": lambda rows: rows.rename_columns(["place", "posts"])})
    {'place': (1, 1)}
    >>> with weir.testing.start(changed, folder, servers=2) as query:
    ...     query.state("place").to_pylist()
    [{'place': 'FR', 'posts': 2}]
    """
    storage = open_checkpoint(check_checkpoint(checkpoint), storage_options)
    layout = CheckpointLayout(storage)
    topology = parts_of(application).topology(layout.commit_of().servers)
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
    old = {name: _old_rows(storage, last, name) for name in functions}
    counts, written, secrets = {}, {}, {}
    for name, function in functions.items():
        try:
            new = function(old[name])
        except Exception as error:
            raise EngineError(
                f"the migration of {name!r} failed ({type(error).__name__}: {error}). Nothing has changed"
            ) from error
        secrets[name] = token_hex(16)  # all of its state is written anew
        node = replace(named[name], secret=secrets[name])
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
    commit = on_first_server(topology, last, written, secrets)
    storage.write_document(layout.commit(commit.batch, commit.epoch), "commit", commit)
    reach("commit-replaced", commit.batch)
    fence.end(commit.batch, None)
    return counts


def _old_rows(storage: Storage, commit: Commit, name: str) -> pa.Table:
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
