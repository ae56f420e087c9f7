"""Merging segments range by range equals merging them at once, and takes bounded memory."""

from __future__ import annotations

import tempfile
import tracemalloc

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import SCHEMA, assert_same, assert_same_answers, random_entries

from weir.errors import CheckpointError
from weir.state import merge
from weir.state import segment as segment_module
from weir.state.merge import merge_segments
from weir.state.reader import MappedSegment, RangedSegment
from weir.state.segment import H1, NEVER, SegmentRef, SegmentWriter, cut, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

pytestmark = pytest.mark.usefixtures("no_flush")


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    keys=st.sampled_from([1, 20, 400]),
    windows=st.sampled_from([1, 5, 50]),
    dead=st.sampled_from([0.0, 0.3, 1.0]),
    in_memory=st.sampled_from([1, 2_000, 20_000]),
    keep_dead=st.booleans(),
    start=st.integers(0, 5),
)
def test_merging_by_ranges_equals_merging_at_once(
    seed, sizes, keys, windows, dead, in_memory, keep_dead, start
):
    rng = np.random.default_rng(seed)
    storage = Storage(tempfile.mkdtemp())
    tables = [random_entries(rng, keys, rows, dead, windows) for rows in sizes]
    refs = [write_segment(storage, f"state/{n}", table) for n, table in enumerate(tables)]
    run = refs[min(start, len(refs) - 1) :]
    expected = StateView(storage, run, SCHEMA).everything(keep_dead)
    before, merge.IN_MEMORY = merge.IN_MEMORY, in_memory
    try:
        merged = merge_segments(storage, run, SCHEMA, "state/merged", keep_dead)
    finally:
        merge.IN_MEMORY = before
    if merged is None:
        assert expected.num_rows == 0
        assert not storage.exists("state/merged")
        return
    assert merged.rows == expected.num_rows
    assert merged.min_deadline == min(expected["__deadline"].to_pylist())
    assert_same(StateView(storage, [merged], SCHEMA).everything(keep_dead=True), expected)
    # the list with the merged one in the place of the run says what it said before
    if keep_dead or run == refs:
        rest = refs[: len(refs) - len(run)]
        asked = random_entries(rng, keys, 50, 0.0, windows)
        view, model = StateView(storage, [*rest, merged], SCHEMA), StateView(storage, refs, SCHEMA)
        key_hash, key_check = asked[H1].to_numpy(), asked["__h2"].to_numpy()
        assert_same(
            view.take(*view.find(key_hash, key_check))[0], model.take(*model.find(key_hash, key_check))[0]
        )
        assert_same(view.due(100, 700), model.due(100, 700))
        assert_same(view.all_of(key_hash), model.all_of(key_hash))
        assert_same(view.everything(), model.everything())


def test_memory_is_bounded_by_the_range_not_by_the_state(tmp_path, monkeypatch):
    storage = Storage(tmp_path)
    rng = np.random.default_rng(3)
    refs = [write_segment(storage, f"state/{n}", random_entries(rng, 200_000, 150_000)) for n in range(4)]
    total = sum(ref.bytes for ref in refs)
    peaks = {}
    for share in (1, 16):
        monkeypatch.setattr(merge, "IN_MEMORY", total // share)
        pool = pa.default_memory_pool()
        lowest, highest = pool.bytes_allocated(), 0
        real = SegmentWriter.block

        def block(self, table, real=real, pool=pool):
            nonlocal highest
            highest = max(highest, pool.bytes_allocated())
            return real(self, table)

        monkeypatch.setattr(SegmentWriter, "block", block)
        tracemalloc.start()
        merged = merge_segments(storage, refs, SCHEMA, f"state/merged-{share}", keep_dead=True)
        peaks[share] = tracemalloc.get_traced_memory()[1] + max(0, highest - lowest)
        tracemalloc.stop()
        assert merged is not None
    assert peaks[16] < total / 3
    assert peaks[16] < peaks[1] / 3


@pytest.mark.parametrize("seed", range(3))
def test_blocks_keep_one_hash_together_and_answer_like_one(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(segment_module, "ROWS", 100)
    rng = np.random.default_rng(seed)
    table = random_entries(rng, 3000, 2000, windows=40)
    writer = SegmentWriter(table.schema)
    storage = Storage(tmp_path)
    storage.write_chunks("blocks", [*map(writer.block, cut(table)), writer.finish()])
    ref = writer.ref("blocks")
    assert ref.directory is not None
    whole = write_segment(storage, "whole", table)
    assert (ref.rows, ref.min_deadline) == (whole.rows, whole.min_deadline)
    mapped, model = StateView(storage, [ref], SCHEMA), StateView(storage, [whole], SCHEMA)
    ranged, by_block = StateView(storage, [ref], SCHEMA), StateView(storage, [ref], SCHEMA)
    ranged.segments, by_block.segments = [RangedSegment(storage, ref)], [MappedSegment(storage, ref)]
    for view in (mapped, ranged, by_block):
        (segment,) = view.segments
        assert len(segment.firsts) > 10
        assert (segment.firsts[1:] > segment.lasts[:-1]).all()
        for rows in (1, 30, 3000):
            assert_same_answers(view, model, random_entries(rng, 4000, rows, windows=40), rng)
        assert_same_answers(view, model, table, rng)


def test_a_failure_in_mid_merge_leaves_no_file(tmp_path, monkeypatch):
    storage = Storage(tmp_path)
    rng = np.random.default_rng(3)
    refs = [write_segment(storage, f"state/{n}", random_entries(rng, 2000, 1500)) for n in range(2)]
    monkeypatch.setattr(merge, "IN_MEMORY", refs[0].bytes // 4)
    real, calls = merge.merged, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 3:
            raise CheckpointError("damaged")
        return real(*args)

    monkeypatch.setattr(merge, "merged", failing)
    with pytest.raises(CheckpointError, match="damaged"):
        merge_segments(storage, refs, SCHEMA, "state/merged", keep_dead=True)
    assert storage.files("") == ["state/0", "state/1"]


def test_references_of_older_checkpoints_are_read():
    old = msgspec.json.encode(["state/1", 3, 100, 7])
    assert msgspec.json.decode(old, type=SegmentRef) == SegmentRef("state/1", 3, 100, 7, NEVER, None)
    new = SegmentRef("state/1", 3, 100, 7, 5, (60, 20, 9))
    assert msgspec.json.decode(msgspec.json.encode(new), type=SegmentRef) == new
