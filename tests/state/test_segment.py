"""Segments against the simplest model of keyed state there is: a dict."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import watch_fsync
from weir.errors import CheckpointError
from weir.hashing import SECOND_SEED, hash_columns
from weir.state.cache import MAPS
from weir.state.segment import (
    H1,
    MERGE_AT,
    SegmentRef,
    _size_class,
    entries,
    newest,
    run_to_merge,
    tombstones,
    write_segment,
)
from weir.state.storage import Storage
from weir.state.view import StateView

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
KEYS = st.sampled_from([f"k{i}" for i in range(12)])
BATCHES = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 9)), min_size=1), max_size=12)


def segment_of(storage, number, changes):
    living = {k: v for k, v in changes.items() if v is not None}
    dead = [k for k, v in changes.items() if v is None]
    parts = []
    if living:
        keys = pa.array(list(living))
        data = pa.table({"key": keys, "value": pa.array(list(living.values()), pa.int64())}, schema=SCHEMA)
        parts.append(entries(data, hash_columns([keys]), hash_columns([keys], SECOND_SEED)))
    if dead:
        keys = pa.array(dead)
        parts.append(tombstones(hash_columns([keys]), hash_columns([keys], SECOND_SEED), SCHEMA))
    return write_segment(storage, f"state/{number}.arrow", pa.concat_tables(parts))


def read(view):
    table = view.everything()
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


@given(BATCHES, st.data())
def test_a_list_of_segments_behaves_like_a_dict(batches, data):
    storage = Storage(tempfile.mkdtemp())
    model: dict[str, int] = {}
    refs: list[SegmentRef] = []
    for number, changes in enumerate(batches):
        refs.append(segment_of(storage, number, changes))
        for key, value in changes.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
        if refs and data.draw(st.booleans(), label="merge"):
            start = data.draw(st.integers(0, len(refs) - 1))
            merged = StateView(storage, refs[start:], SCHEMA).everything(keep_dead=start > 0)
            refs[start:] = [write_segment(storage, f"state/{number}-merged.arrow", merged)]
    view = StateView(storage, refs, SCHEMA)
    assert read(view) == model
    asked = pa.array([f"k{i}" for i in range(12)] + ["never seen"])
    which, row = view.find(hash_columns([asked]), hash_columns([asked], SECOND_SEED))
    found, positions = view.take(which, row)
    answer = {asked[int(p)].as_py(): v for p, v in zip(positions, found["value"].to_pylist(), strict=True)}
    assert answer == model


@given(
    st.lists(st.tuples(KEYS, st.integers(0, 100)), min_size=1, max_size=60),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_what_comes_due_is_the_newest_entry_in_the_interval(touches, a, b):
    after, until = min(a, b), max(a, b)
    storage = Storage(tempfile.mkdtemp())
    refs, model = [], {}
    for number, (key, deadline) in enumerate(touches):
        keys = pa.array([key])
        table = entries(
            pa.table({"key": keys, "value": pa.array([number])}, schema=SCHEMA),
            hash_columns([keys]),
            hash_columns([keys], SECOND_SEED),
            deadline=np.array([deadline]),
        )
        refs.append(write_segment(storage, f"s/{number}", table))
        model[key] = deadline
    due = StateView(storage, refs, SCHEMA).due(after, until)
    assert sorted(due["key"].to_pylist()) == sorted(k for k, d in model.items() if after < d <= until)


@given(st.lists(st.sampled_from([1, 70, 600, 5000, 40_000]), max_size=30))
def test_the_longest_run_with_enough_of_its_largest_class_is_merged(sizes):
    refs = [SegmentRef("s", rows, 0, 0) for rows in sizes]
    runs = []
    for start in range(len(sizes)):
        classes = [_size_class(rows) for rows in sizes[start:]]
        if classes.count(max(classes)) >= MERGE_AT:
            runs.append((start, len(sizes)))
    assert run_to_merge(refs) == (runs[0] if runs else None)


@given(st.lists(st.integers(1, 10**6), max_size=200))
def test_merging_keeps_segments_few_and_every_row_rarely_rewritten(sizes):
    refs: list[SegmentRef] = []
    rewritten = 0
    for rows in sizes:
        refs.append(SegmentRef("s", rows, 0, 0))
        run = run_to_merge(refs)
        if run:
            merged = sum(r.rows for r in refs[run[0] : run[1]])
            rewritten += merged
            refs[run[0] : run[1]] = [SegmentRef("m", merged, 0, 0)]
    classes = 1 + int(np.log(max(sizes, default=1) * max(1, len(sizes))) / np.log(MERGE_AT))
    assert len(refs) <= MERGE_AT * (classes + 1)
    assert rewritten <= sum(sizes) * (classes + 2)


def test_a_damaged_segment_is_named(tmp_path):
    storage = Storage(str(tmp_path))
    ref = segment_of(storage, 1, {"a": 1, "b": 2})
    path = tmp_path / ref.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"1\.arrow: damaged"):
        StateView(storage, [ref], SCHEMA)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"1\.arrow: missing"):
        StateView(storage, [ref], SCHEMA)


def test_who_takes_over_a_slice_verifies_its_blocks_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("weir.state.segment.BY_RANGE", 100)
    monkeypatch.setattr("weir.state.reader.BY_RANGE", 100)
    monkeypatch.setattr("weir.state.segment.BYTES_OF_LOCAL_BLOCK", 1000)
    storage = Storage(str(tmp_path))
    ref = segment_of(storage, 1, {f"k{n}": n for n in range(1000)})
    whole = StateView(storage, [ref], SCHEMA)
    key_hash = whole.everything()[H1].to_numpy()
    half = int(key_hash[len(key_hash) // 2])
    lower, upper = ref.sliced([(0, half - 1)], 0.5), ref.sliced([(half, (1 << 64) - 1)], 0.5)
    path = tmp_path / ref.name
    data = bytearray(path.read_bytes())
    data[2000] ^= 1  # in one of the first blocks
    path.unlink()  # where it is mapped, it is as it was
    path.write_bytes(bytes(data))
    MAPS.discard(lambda key: True)
    assert StateView(storage, [upper], SCHEMA).everything().num_rows == int((key_hash >= half).sum())
    with pytest.raises(CheckpointError, match=r"1\.arrow: damaged \(bytes"):
        StateView(storage, [lower], SCHEMA).everything()
    with pytest.raises(CheckpointError, match=r"1\.arrow: damaged \(bytes"):
        StateView(storage, [lower], SCHEMA).all_of(key_hash)


def test_newest_keeps_the_last_of_equal_keys():
    keys = pa.array(["a", "b", "a"])
    table = entries(
        pa.table({"key": keys, "value": pa.array([1, 2, 3])}, schema=SCHEMA),
        hash_columns([keys]),
        hash_columns([keys], SECOND_SEED),
    )
    kept = newest(table)
    assert dict(zip(kept["key"].to_pylist(), kept["value"].to_pylist(), strict=True)) == {"a": 3, "b": 2}
    assert (np.diff(kept[H1].to_numpy().astype(object)) > 0).all()


def test_what_a_commit_names_is_on_disk_before_it(tmp_path, monkeypatch):
    """A file's bytes, then the names of the file and of all folders it is in; only then a document may name it."""
    synced = watch_fsync(monkeypatch, tmp_path)
    storage = Storage(f"{tmp_path}/checkpoint")
    storage.write("state/places/7/s0.arrow", b"rows")
    assert synced[0] == "checkpoint/state/places/7/s0.arrow"
    assert set(synced[1:]) == {
        "checkpoint/state/places/7",
        "checkpoint/state/places",
        "checkpoint/state",
        "checkpoint",
        ".",
    }
    synced.clear()
    storage.write("state/places/7/s1.arrow", b"rows")
    assert synced == ["checkpoint/state/places/7/s1.arrow", "checkpoint/state/places/7"]
    synced.clear()
    storage.write_document("commits/7", "commit", {"batch": 7})
    assert synced[0].startswith("checkpoint/commits/7.")
    assert synced[1:3] == ["checkpoint/commits", "checkpoint"]
