"""Keys change their server: the new owner fetches their state from where the last commit says it is.

Segments never change and the last commit names all of them, so nobody has to send anything. Before a server reads
any state of its own in a batch, it looks up the keys that the plan gives to it in their old owners' segments and
writes them as a segment of its own; who still holds an old entry writes that it is gone. Both look at the last commit
only, so they need not wait for each other, a task that runs twice finds the same, and until this batch's commit
nothing has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import EngineError
from weir.state.segment import H1, H2, SegmentRef, stored_schema, tombstones
from weir.state.storage import Storage
from weir.state.view import StateView


class Moves(NamedTuple):
    """Keys whose state is written anew: by hash, with the owner before and after, and who must forget it or −1.

    Where the numbers of servers change, owners before count by the old numbers, the others by the new.
    """

    keys: NDArray[np.uint64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    stale: NDArray[np.int32]


@dataclass(frozen=True)
class Changes:
    """What moves change on one server: entries of keys that arrive, tombstones of keys that leave."""

    entries: pa.Table
    arrived: int
    left: int


def take_over(
    storage: Storage,
    schema: pa.Schema,
    segments: Sequence[Sequence[SegmentRef]],
    own: StateView,
    moves: Moves,
    server: int,
) -> Changes:
    """Return what ``moves`` change on ``server``, which sees ``own`` state, given the committed ``segments`` of all.

    Entries come with all that they hold: deadlines, and every window of a key. A key without state changes nothing.
    """
    parts = [stored_schema(schema).empty_table()]
    leaving = moves.keys[moves.stale == server]
    if len(leaving):
        gone = own.all_of(leaving)
        parts.append(tombstones(gone[H1].to_numpy(), gone[H2].to_numpy(), schema))
    left = parts[-1].num_rows
    arriving = moves.target == server
    came, sources = moves.keys[arriving], moves.source[arriving]
    for source in np.unique(sources).tolist():
        parts.append(StateView(storage, segments[source], schema).all_of(came[sources == source]))
    entries = pa.concat_tables(parts)
    return Changes(entries, entries.num_rows - left, left)


def check_homes(
    storage: Storage, schema: pa.Schema, segments: Sequence[Sequence[SegmentRef]], moves: Moves, server: int
) -> None:
    """Refuse moves of keys whose state is on another server than they say, or on ``server`` already."""
    arriving = moves.target == server
    keys, sources = moves.keys[arriving], moves.source[arriving]
    has_state = np.zeros(len(keys), np.bool_)
    for source in np.unique(sources).tolist():
        mine = sources == source
        found = StateView(storage, segments[source], schema).all_of(keys[mine])
        has_state[mine] = np.isin(keys[mine], found[H1].to_numpy())
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
