"""Keys change their server: whatever is moved, every entry is in exactly one place, as it was."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.state.move import Moves, take_over
from weir.state.segment import H1, entries, newest, tombstones, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

SCHEMA = pa.schema([("window", pa.int64()), ("value", pa.int64())])
SERVERS = 3
KEYS = st.integers(0, 9)
# what happened before: per segment, (key, window) → value, None where the entry went
HISTORY = st.lists(
    st.dictionaries(st.tuples(KEYS, st.integers(0, 2)), st.one_of(st.none(), st.integers(0, 99)), min_size=1),
    max_size=6,
)
HOMES = st.lists(st.integers(0, SERVERS - 1), min_size=10, max_size=10)


def segment(storage, name, changes):
    def hashes(pairs):
        columns = np.array(pairs, np.uint64).reshape(-1, 2)
        return columns[:, 0] * 7, columns[:, 1] + 1000 * columns[:, 0]

    living = [k for k, v in changes.items() if v is not None]
    data = pa.table({"window": [w for _, w in living], "value": [changes[k] for k in living]}, schema=SCHEMA)
    deadlines = np.array([50 + w for _, w in living], np.int64)
    dead = [k for k, v in changes.items() if v is None]
    table = pa.concat_tables(
        [entries(data, *hashes(living), deadline=deadlines), tombstones(*hashes(dead), SCHEMA)]
    )
    return write_segment(storage, name, newest(table))


def contents(storage, manifest):
    out = []
    for server, refs in enumerate(manifest):
        table = StateView(storage, refs, SCHEMA).everything()
        out += [(server, *row.values()) for row in table.to_pylist()]
    return out


@given(HISTORY, HOMES, HOMES, st.data())
def test_every_entry_is_where_its_key_was_sent_and_nowhere_else(history, before, after, data):
    storage = Storage(tempfile.mkdtemp())
    manifest = [[] for _ in range(SERVERS)]
    for number, changes in enumerate(history):
        for server in range(SERVERS):
            mine = {k: v for k, v in changes.items() if before[k[0]] == server}
            if mine:
                manifest[server].append(segment(storage, f"state/{number}-{server}", mine))
    was = contents(storage, manifest)
    moving = [k for k in range(10) if before[k] != after[k]]
    moving = data.draw(st.permutations(moving))
    source = np.array([before[k] for k in moving], np.int32)
    target = np.array([after[k] for k in moving], np.int32)
    moves = Moves(np.array([k * 7 for k in moving], np.uint64), source, target, source)

    def take(server):
        own = StateView(storage, manifest[server], SCHEMA)
        return take_over(storage, SCHEMA, manifest, own, moves, server)

    made = [take(server) for server in range(SERVERS)]
    for server in range(SERVERS):  # again, as in a replay: what others have done by now makes no difference
        assert take(server).entries.equals(made[server].entries)
    committed = [
        [*refs, write_segment(storage, f"state/moved-{server}", newest(made[server].entries))]
        for server, refs in enumerate(manifest)
    ]
    expected = [(after[int(row[1]) // 7], *row[1:]) for row in was]
    assert sorted(contents(storage, committed)) == sorted(expected)
    assert sum(m.arrived for m in made) == sum(m.left for m in made)
    for server in range(SERVERS):
        own = StateView(storage, committed[server], SCHEMA).everything()
        had = StateView(storage, manifest[server], SCHEMA).everything()
        assert own.num_rows == had.num_rows + made[server].arrived - made[server].left
        assert set(own[H1].to_pylist()) == {7 * k for k in range(10) if after[k] == server} & {
            int(row[1]) for row in was
        }
