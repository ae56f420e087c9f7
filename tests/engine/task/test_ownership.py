"""Owners of state change: whatever changes, every key's state is with its owner, as it was, and nowhere else."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.engine.task.ownership import Transfer
from weir.hashing import mix
from weir.routing.table import Table
from weir.state.merge import merge_segments
from weir.state.move import take_over
from weir.state.segment import H1, entries, newest, tombstones, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

SCHEMA = pa.schema([("value", pa.int64())])
KEYS = mix(np.arange(24, dtype=np.uint64), np.uint64(5))
GROUPS = 6


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[int], dict[int, int]]:
    """A number of servers, the server of each key group, and that of some listed keys."""
    servers = draw(st.integers(1, 4))
    server = st.integers(0, servers - 1)
    groups = draw(st.lists(server, min_size=GROUPS, max_size=GROUPS))
    return servers, groups, draw(st.dictionaries(st.integers(0, len(KEYS) - 1), server, max_size=10))


def owners(groups: list[int], listed: dict[int, int]) -> Table:
    hashes = KEYS[list(listed)] if listed else np.empty(0, np.uint64)
    return Table(hashes, np.array(list(listed.values()), np.int32)).with_key_groups(groups)


# what happens between two changes: keys that get a value, or go (None), and whether segments are merged
BATCHES = st.tuples(
    st.dictionaries(st.integers(0, len(KEYS) - 1), st.none() | st.integers(0, 99), max_size=12), st.booleans()
)


@settings(deadline=None, max_examples=150)
@given(layouts(), st.lists(st.tuples(BATCHES, layouts(), st.randoms()), min_size=1, max_size=6))
def test_every_key_is_with_its_owner_and_nowhere_else(first, story) -> None:
    storage, number = Storage(tempfile.mkdtemp()), 0
    servers, groups, listed = first
    now, truth = owners(groups, listed), {}
    manifest: list[list] = [[] for _ in range(servers)]

    def append(server: int, table: pa.Table) -> None:
        nonlocal number
        number += 1
        if table.num_rows:
            manifest[server].append(write_segment(storage, f"state/{number}", newest(table)))

    for (changes, merges), (after_servers, groups, listed), random in story:
        homes = now.route(KEYS)
        for server in range(servers):
            mine = {k: v for k, v in changes.items() if homes[k] == server and (v is not None or k in truth)}
            living = [k for k, v in mine.items() if v is not None]
            dead = [k for k, v in mine.items() if v is None]
            data = pa.table({"value": [mine[k] for k in living]}, schema=SCHEMA)
            hashes = KEYS[living], KEYS[living]
            append(
                server, pa.concat_tables([entries(data, *hashes), tombstones(KEYS[dead], KEYS[dead], SCHEMA)])
            )
        truth = {k: v for k, v in {**truth, **changes}.items() if v is not None}
        if merges:
            for server, refs in enumerate(manifest):
                number += 1
                merged = (
                    merge_segments(storage, refs, SCHEMA, f"state/{number}", keep_dead=False)
                    if refs
                    else None
                )
                manifest[server] = [] if merged is None else [merged]
        # some servers keep their process under another number, some go, some are new
        stay = random.sample(range(servers), random.randint(0, min(servers, after_servers)))
        origin = [*stay, *[-1] * (after_servers - len(stay))]
        random.shuffle(origin)
        change = Transfer(now, owners(groups, listed), origin)
        before, manifest = manifest, change.slices(manifest)
        views = [StateView(storage, refs, SCHEMA) for refs in manifest]
        for server, own in enumerate(views):
            append(server, take_over(storage, SCHEMA, before, own, change.moves, server).entries)
        servers, now = after_servers, change.after
        found = {}
        for server, refs in enumerate(manifest):
            table = StateView(storage, refs, SCHEMA).everything()
            for key, value in zip(table[H1].to_pylist(), table["value"].to_pylist(), strict=True):
                assert key not in found
                found[key] = server, value
        homes = now.route(KEYS)
        assert found == {int(KEYS[k]): (int(homes[k]), v) for k, v in truth.items()}
        for k in range(len(KEYS)):  # looked up, too
            view = StateView(storage, manifest[homes[k]], SCHEMA)
            table, _ = view.take(*view.find(KEYS[k : k + 1], KEYS[k : k + 1]))
            assert table["value"].to_pylist() == ([truth[k]] if k in truth else [])
