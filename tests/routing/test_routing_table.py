"""Routing tables: one home per key, saved whole or not at all, refused when they don't fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CheckpointError, CheckpointMismatch
from weir.hashing import spark_mod
from weir.locality import Patch, RoutingTable

homes = st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 3), max_size=30)


def table_of(entries, **about):
    return RoutingTable(
        np.array(list(entries), np.uint64), np.array(list(entries.values()), np.int32), 4, **about
    )


@given(homes, homes)
def test_patches_turn_one_table_into_the_other(one, two):
    before, after = table_of(one), table_of(two)
    patched = before.patch(before.changes(after))
    assert patched.hashes.tolist() == after.hashes.tolist() == sorted(two)
    assert patched.servers.tolist() == after.servers.tolist()
    assert patched.version == before.version + 1


@given(homes, homes)
def test_moves_are_between_real_homes(one, two):
    before, after = table_of(one), table_of(two)
    moves = before.diff(after)
    for key, source, target in zip(moves.hashes.tolist(), moves.source, moves.target, strict=True):
        fallback = int(spark_mod(np.array([key], np.uint64), 4)[0])
        assert (one.get(key, fallback), two.get(key, fallback)) == (source, target)
        assert source != target
    assert len(before.diff(before)) == 0


def test_unknown_keys_are_left_to_the_hash():
    table = table_of({5: 1, 9: 3})
    keys = np.array([9, 6, 5], np.uint64)
    assert table.find(keys).tolist() == [3, -1, 1]
    assert table.route(keys).tolist() == [3, int(spark_mod(keys[1:2], 4)[0]), 1]
    assert table_of({}).find(keys).tolist() == [-1, -1, -1]


def test_a_key_has_one_home_and_tables_do_not_change():
    with pytest.raises(ValueError, match="twice"):
        RoutingTable(np.array([1, 1], np.uint64), np.array([0, 1], np.int32), 2)
    with pytest.raises(ValueError, match="servers"):
        RoutingTable(np.array([1], np.uint64), np.array([2], np.int32), 2)
    with pytest.raises(ValueError):
        table_of({1: 1}).servers[0] = 2


def test_saved_and_loaded_readable(tmp_path):
    keys = pa.table({"state": ["CA", "NY", None], "day": pa.array([1, 2, 3], pa.int32())})
    table = RoutingTable.of(keys, np.array([0, 2, 1]), n=3, operator="states", version=7, topology="abc")
    table.save(tmp_path / "t.arrow")
    back = RoutingTable.from_file(tmp_path / "t.arrow", topology="abc", n=3)
    assert (back.operator, back.version, back.n) == ("states", 7, 3)
    assert back.to_arrow().equals(table.to_arrow())
    assert back.lookup("NY", 2) == 2
    assert back.lookup("NY", 1) is None
    assert [p.name for p in tmp_path.iterdir()] == ["t.arrow"]


def test_refuses_what_does_not_fit(tmp_path, monkeypatch):
    path = tmp_path / "t.arrow"
    table_of({i: i % 4 for i in range(100)}, topology="abc").save(path)
    with pytest.raises(CheckpointMismatch, match=r"t\.arrow is the table of another application"):
        RoutingTable.from_file(path, topology="other")
    with pytest.raises(CheckpointMismatch, match="for 4 servers, not for 5"):
        RoutingTable.from_file(path, n=5)
    with pytest.raises(CheckpointError, match="no routing table at"):
        RoutingTable.from_file(tmp_path / "none.arrow")
    monkeypatch.setattr("weir.locality.table.FORMAT", 0)
    with pytest.raises(CheckpointError, match=r"t\.arrow has table format 1.*upgrade"):
        RoutingTable.from_file(path)


def test_every_damaged_byte_is_noticed(tmp_path):
    path = tmp_path / "t.arrow"
    table = table_of({i * 7919: i % 4 for i in range(50)})
    table.save(path)
    sound = path.read_bytes()
    for at in range(0, len(sound), 97):
        damaged = bytearray(sound)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        try:
            loaded = RoutingTable.from_file(path)
        except CheckpointError:
            continue
        # padding: nothing that matters was hit
        assert loaded.hashes.tolist() == table.hashes.tolist()
        assert loaded.servers.tolist() == table.servers.tolist()
    path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(CheckpointError, match=r"t\.arrow"):
        RoutingTable.from_file(path)


def test_removing_by_patch():
    assert len(table_of({1: 1}).patch(Patch(np.array([1], np.uint64), np.array([-1], np.int32)))) == 0
