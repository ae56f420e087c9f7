"""Routing tables: one home per key, saved whole or not at all, refused when they don't fit."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from weir.errors import CheckpointError, CheckpointMismatch, GroupingError
from weir.hashing import hash_columns, key_group
from weir.routing.table import Patch, Table

# a table saved by version 0.2.0: states CA and NY on servers 0 and 2 of 3
SAVED = (
    "c-rk$KTE?v6n|;cG?XA2iWCu%n-qgIiK($TSlku5h~u?AZLu|)L`76^aFPx#qN5+c58%)b;p#VW(|6ZP4H3b~$p<g*e!q9`?)^E^"
    "Xg0TZY=94xI|aZ5E+v=(4GN&+3Pn*Tyn$a;^3P(8ZdA_e_~kww*Voc_jCw)#f^a}%QnxK~Nb0Udf+H5vI0#9dL@|w7L@aX3!l)OZ"
    "f7K#!a1``|{d4rwRvVq|E^8k|Cj%sW)^ckd->y=hIcwB$R;XLEU9aPNj$?Zsxe}QIoUvZG9Me{x0pt<ipl-;#9<g4`Jjd&rmmC)j"
    "HDV#=GOkC5qNs<L$@jgc;$~BE+;(Zy<tONfG<lZ^WyBhuVhA+uqf*Gm7x=xr6M|DGJfF)u+Oot3Ov}j_;zY=+P(f3LL`sN_$&7|D"
    "o@oxgqzFHYA+4FJi%TW5uaeofknty2PjUH79`FmCa7i9pyPFMe@8^~rXXYUo-7b#k@a-~}>Q|DNfnC!?r%YLw3hOer<lR0gGEmy;"
    "x7+{U{9nHL7i?@p{F6Qb{Bw@h"
)

homes = st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 3), max_size=30)


def table_of(entries, **about):
    return Table(np.array(list(entries), np.uint64), np.array(list(entries.values()), np.int32), 4, **about)


@given(homes, homes)
def test_patches_turn_one_table_into_the_other(one, two):
    before, after = table_of(one), table_of(two)
    both = np.union1d(before.hashes, after.hashes)
    patched = before.patch(Patch(both, after.find(both)))
    assert patched.hashes.tolist() == after.hashes.tolist() == sorted(two)
    assert patched.instances.tolist() == after.instances.tolist()
    assert patched.version == before.version + 1


@given(homes, homes)
def test_moves_are_between_real_homes(one, two):
    before, after = table_of(one), table_of(two)
    moves = before.diff(after)
    for key, source, target in zip(moves.hashes.tolist(), moves.source, moves.target, strict=True):
        fallback = int(key_group(np.array([key], np.uint64), 4)[0])
        assert (one.get(key, fallback), two.get(key, fallback)) == (source, target)
        assert source != target
    assert len(before.diff(before)) == 0


def test_unknown_keys_are_left_to_the_hash():
    table = table_of({5: 1, 9: 3})
    keys = np.array([9, 6, 5], np.uint64)
    assert table.find(keys).tolist() == [3, -1, 1]
    assert table.route(keys).tolist() == [3, int(key_group(keys[1:2], 4)[0]), 1]
    assert table_of({}).find(keys).tolist() == [-1, -1, -1]


def test_a_key_has_one_home_and_tables_do_not_change():
    with pytest.raises(GroupingError, match="twice"):
        Table(np.array([1, 1], np.uint64), np.array([0, 1], np.int32), 2)
    with pytest.raises(GroupingError, match="servers"):
        Table(np.array([1], np.uint64), np.array([2], np.int32), 2)
    with pytest.raises(ValueError):
        table_of({1: 1}).instances[0] = 2


def test_saved_and_loaded_readable(tmp_path):
    keys = pa.table({"state": ["CA", "NY", None], "day": pa.array([1, 2, 3], pa.int32())})
    table = Table.from_keys(keys, np.array([0, 2, 1]), n=3, operator="states", version=7)
    table.save(tmp_path / "t.arrow")
    back = Table.from_file(tmp_path / "t.arrow", n=3)
    assert (back.operator, back.version, back.n) == ("states", 7, 3)
    assert back.to_arrow().equals(table.to_arrow())
    assert back.lookup("NY", 2) == 2
    assert back.lookup("NY", 1) is None
    assert [p.name for p in tmp_path.iterdir()] == ["t.arrow"]


def test_refuses_what_does_not_fit(tmp_path, monkeypatch):
    path = tmp_path / "t.arrow"
    table_of({i: i % 4 for i in range(100)}).save(path)
    with pytest.raises(CheckpointMismatch, match="for 4 servers, not for 5"):
        Table.from_file(path, n=5)
    with pytest.raises(CheckpointError, match="no routing table at"):
        Table.from_file(tmp_path / "none.arrow")
    monkeypatch.setattr("weir.routing.table.FORMAT", 0)
    with pytest.raises(CheckpointError, match=r"t\.arrow has table format 1.*upgrade"):
        Table.from_file(path)


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
            loaded = Table.from_file(path)
        except CheckpointError:
            continue
        # padding: nothing that matters was hit
        assert loaded.hashes.tolist() == table.hashes.tolist()
        assert loaded.instances.tolist() == table.instances.tolist()
    path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(CheckpointError, match=r"t\.arrow"):
        Table.from_file(path)


def test_removing_by_patch():
    assert len(table_of({1: 1}).patch(Patch(np.array([1], np.uint64), np.array([-1], np.int32)))) == 0


def test_a_table_of_an_older_version_still_opens(tmp_path):
    (tmp_path / "t.arrow").write_bytes(zlib.decompress(base64.b85decode(SAVED)))
    table = Table.from_file(tmp_path / "t.arrow", n=3)
    assert (table.lookup("CA"), table.lookup("NY"), table.lookup("VT")) == (0, 2, None)
    assert (table.operator, table.version, table.keys.column_names) == ("states", 7, ["state"])
    table.save(tmp_path / "again.arrow")
    assert Table.from_file(tmp_path / "again.arrow").to_arrow().equals(table.to_arrow())


def test_one_class_is_made_from_a_dict_and_from_arrow_and_routes():
    by_dict = weir.Table.of({"CA": 0, "NY": 2}, n=3)
    by_keys = weir.Table.from_keys(pa.table({"state": ["NY", "CA"]}), [2, 0], n=3)
    keys = hash_columns([pa.array(["CA", "VT", "NY"])])
    assert by_dict == by_keys
    assert by_dict.lookup("NY") == by_keys.lookup("NY") == 2
    assert by_dict.route(keys).tolist() == by_keys.router(3).route(keys).tolist()
    assert by_dict != weir.Table.of({"CA": 0, "NY": 2}, n=4)


def test_a_table_that_says_no_number_of_servers_is_saved_and_asked_with_one(tmp_path):
    table = Table.of({"CA": 0, "NY": 2})
    table.save(tmp_path / "t.arrow")
    assert Table.from_file(tmp_path / "t.arrow").n is None
    assert Table.from_file(tmp_path / "t.arrow", n=3).n == 3
    with pytest.raises(GroupingError, match="those of 2 servers"):
        Table.from_file(tmp_path / "t.arrow", n=2)
    with pytest.raises(GroupingError, match="make it with n="):
        table.route(table.hashes)
    assert table.route(table.hashes, 3).tolist() == table.instances.tolist()


def test_where_unlisted_keys_live_in_a_scaled_query_is_part_of_its_table():
    key_groups = np.array([3, 3], np.int32)
    table = Table(np.array([4], np.uint64), np.array([1], np.int32), 4, key_groups=key_groups)
    keys = np.array([4, 5, 6], np.uint64)
    assert table.route(keys).tolist() == table.router(4).route(keys).tolist() == [1, 3, 3]
    with pytest.raises(GroupingError, match="of a query that was scaled"):
        table.check(4, "operator 'states'")


def test_wrong_tables_are_refused():
    with pytest.raises(GroupingError, match="as many instances"):
        Table(np.array([1], np.uint64), np.array([1, 2], np.int32))
    with pytest.raises(GroupingError, match="negative"):
        Table.of({"CA": -1})
    with pytest.raises(GroupingError, match="2 columns"):
        Table.from_keys(pa.table({"a": [1], "b": [2]}), [0]).lookup(1)
