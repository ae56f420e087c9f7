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
    came, sources, has_state = keys[arriving], old[arriving], np.zeros(int(arriving.sum()), np.bool_)
    for source in np.unique(sources).tolist():
        mine = sources == source
        states = StateView(storage, segments[source], schema).all_of(came[mine])
        has_state[mine] = np.isin(came[mine], states[H1].to_numpy())
        parts.append(states)
    if len(came):
        _check_homes(storage, schema, segments, server, (came, sources, has_state))
    entries = pa.concat_tables(parts)
    return Changes(entries, entries.num_rows - left, left)


def _check_homes(
    storage: Storage,
    schema: pa.Schema,
    segments: Sequence[Sequence[SegmentRef]],
    server: int,
    arriving: tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.bool_]],
) -> None:
    """Refuse moves of keys whose state is on another server than they say, or on ``server`` already.

    ``arriving`` are the keys, the servers that the moves name, and whether a key's state is there.
    """
    keys, sources, has_state = arriving
    for other, refs in enumerate(segments):
        suspects = keys[~has_state & (sources != other) | has_state & (other == server)]
        if not len(suspects):
            continue
        elsewhere = StateView(storage, refs, schema).all_of(suspects)
        if not elsewhere.num_rows:
            continue
        first = elsewhere[H1][0].as_py()
        at = int(np.flatnonzero(keys == first)[0])
        head = f"{elsewhere.num_rows} keys are to move from server {sources[at]} to server {server}, "
        if has_state[at]:
            why = f"which has state of them already (the first has hash {first:016x}): one of the two is out of date"
        else:
            why = f"but their state is on server {other} (the first has hash {first:016x})"
        raise EngineError(
            f"{head}{why}. Nothing was committed. Please report this with the settings of this run and the one before."
        )


def read_moves(storage: Storage, name: str, size: int, crc: int) -> Moves:
    """Return the moves that a plan names."""
    table = pa.ipc.open_file(storage.read_checked(name, size, crc)).read_all()
    return table["h1"].to_numpy(), table["from"].to_numpy(), table["to"].to_numpy()
