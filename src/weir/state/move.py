"""State changes its server: the new owner fetches it from where the last commit says it is.

Segments never change and the last commit names all of them, so nobody has to send anything. Before a server reads
any state of its own in a batch, it looks up the keys that the plan gives to it in their old owners' segments and
writes them as a segment of its own; the old owner writes that they are gone. Both look at the last commit only,
never at what the other does in this batch, so they need not wait for each other, a task that runs twice finds the
same, and until this batch's commit nothing has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import EngineError
from weir.state.segment import H1, H2, SegmentRef, stored_schema, tombstones
from weir.state.storage import Storage
from weir.state.view import StateView

Moves = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int32]]  # hashes, old servers, new servers


@dataclass(frozen=True)
class Changes:
    """What a move changes on one server: entries of keys that arrive, tombstones of keys that leave."""

    entries: pa.Table
    arrived: int
    left: int


def take_over(
    storage: Storage, schema: pa.Schema, segments: Sequence[Sequence[SegmentRef]], moves: Moves, server: int
) -> Changes:
    """Return what ``moves`` change on ``server``, given the operator's committed ``segments`` of every server.

    Entries come with all that they hold: deadlines, and every window of a key. A key without state changes nothing.
    """
    keys, old, new = moves
    parts = [stored_schema(schema).empty_table()]
    leaving = keys[(old == server) & (new != server)]
    if len(leaving):
        gone = StateView(storage, segments[server], schema).all_of(leaving)
        parts.append(tombstones(gone[H1].to_numpy(), gone[H2].to_numpy(), schema))
    left = parts[-1].num_rows
    arriving = (new == server) & (old != server)
    for source in np.unique(old[arriving]).tolist():
        mine = keys[arriving & (old == source)]
        found = StateView(storage, segments[source], schema).all_of(mine)
        there = found[H1].to_numpy()
        _check_absent(storage, schema, segments, np.setdiff1d(mine, there), source, server)
        _check_new(storage, schema, segments, there, source, server)
        parts.append(found)
    entries = pa.concat_tables(parts)
    return Changes(entries, entries.num_rows - left, left)


def _check_absent(
    storage: Storage,
    schema: pa.Schema,
    segments: Sequence[Sequence[SegmentRef]],
    keys: NDArray[np.uint64],
    source: int,
    server: int,
) -> None:
    """Refuse to start a key anew on ``server`` whose state is on another one than the move says."""
    for other, refs in enumerate(segments):
        if other == source or not len(keys):
            continue
        elsewhere = StateView(storage, refs, schema).all_of(keys)
        if elsewhere.num_rows:
            raise EngineError(
                f"{elsewhere.num_rows} keys are to move from server {source} to server {server}, but their state is on "
                f"server {other} (the first has hash {int(elsewhere[H1][0].as_py()):016x}). Nothing was committed. "
                "Please report this with the settings of this run and the one before."
            )


def _check_new(
    storage: Storage,
    schema: pa.Schema,
    segments: Sequence[Sequence[SegmentRef]],
    keys: NDArray[np.uint64],
    source: int,
    server: int,
) -> None:
    """Refuse to replace state that ``server`` has of keys which a move brings there."""
    own = StateView(storage, segments[server], schema).all_of(keys)
    if own.num_rows:
        raise EngineError(
            f"{own.num_rows} keys are to move from server {source} to server {server}, which has state of them already "
            f"(the first has hash {int(own[H1][0].as_py()):016x}): one of the two is out of date. Nothing was "
            "committed. Please report this with the settings of this run and the one before."
        )


def read_moves(storage: Storage, name: str, size: int, crc: int) -> Moves:
    """Return the moves that a plan names."""
    table = pa.ipc.open_file(storage.read_checked(name, size, crc)).read_all()
    return table["h1"].to_numpy(), table["from"].to_numpy(), table["to"].to_numpy()
