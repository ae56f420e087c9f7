"""What a process keeps of segments is bounded, and deleted files are let go."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import SCHEMA, random_entries

from weir.errors import ParameterError
from weir.state import cache, reader
from weir.state.cache import Bounded
from weir.state.segment import write_segment
from weir.state.storage import Storage
from weir.state.view import StateView

pytestmark = pytest.mark.usefixtures("no_flush")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.booleans())), st.integers(0, 30))
def test_sizes_never_exceed_the_limit_and_the_newest_stay(uses, limit):
    kept: Bounded[int] = Bounded(limit)
    model: list[tuple[int, int]] = []  # least recently used first
    for key, size, put in uses:
        held = dict(model)
        if put:
            kept.put(key, size, size)
            model = [entry for entry in model if entry[0] != key]
            if size <= limit:
                model.append((key, size))
            while sum(s for _, s in model) > limit:
                model.pop(0)
        else:
            assert kept.get(key) == held.get(key)
            if key in held:
                model = [entry for entry in model if entry[0] != key] + [(key, held[key])]
        assert kept.size == sum(s for _, s in model) <= limit
        assert len(kept) == len(model)


def test_decoded_columns_count(tmp_path, monkeypatch):
    small = Bounded(100_000)
    monkeypatch.setattr("weir.state.segment.BYTES", small)
    storage = Storage(tmp_path)
    rng = np.random.default_rng(1)
    refs = [write_segment(storage, f"state/{n}", random_entries(rng, 3000, 3000)) for n in range(10)]
    expected = StateView(storage, refs, SCHEMA).due(0, 500)
    assert 0 < small.size <= small.limit
    assert StateView(storage, refs, SCHEMA).due(0, 500).equals(expected)  # also with what had to go


def mapped(folder):
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if str(folder) in line}


def test_maps_are_bounded_in_number(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAPS", Bounded(5))
    storage = Storage(tmp_path)
    rng = np.random.default_rng(1)
    for number in range(20):
        ref = write_segment(storage, f"state/{number}", random_entries(rng, 100, 50))
        StateView(storage, [ref], SCHEMA)
        assert len(mapped(tmp_path)) <= 5


def test_deleted_segments_are_unmapped(tmp_path, monkeypatch):
    """Each batch replaces the last one's segment, as merging does; no deleted file is held for long."""
    monkeypatch.setattr(reader, "MAPS", Bounded(4096))
    storage = Storage(tmp_path)
    rng = np.random.default_rng(1)
    for number in range(3 * reader.LOOK_AFTER):
        ref = write_segment(storage, f"state/a/{number}/x", random_entries(rng, 100, 50))
        StateView(storage, [ref], SCHEMA)
        if number:
            storage.delete(f"state/a/{number - 1}/x")
        assert len(mapped(tmp_path)) <= reader.LOOK_AFTER + 2
    reader.unmap_deleted()
    assert mapped(tmp_path) == {f"{tmp_path}/{ref.name}"}
    assert os.listdir(tmp_path / "state/a") == [str(3 * reader.LOOK_AFTER - 1)]


def test_who_has_time_looks_for_deleted_segments_before_it_must(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAPS", Bounded(4096))
    monkeypatch.setattr(reader, "_opened", 0)
    storage = Storage(tmp_path)
    for name in "abc":
        ref = write_segment(storage, f"state/{name}", random_entries(np.random.default_rng(1), 100, 50))
        StateView(storage, [ref], SCHEMA)
        storage.delete(ref.name)
    held = []
    for after in (4, 3):
        reader.unmap_deleted(after)
        held.append(len(reader.MAPS))
    assert held == [3, 0]


def test_the_limit_is_set_by_the_environment(monkeypatch):
    monkeypatch.setenv("WEIR_CACHE_MB", "64")
    assert cache._cache_bytes() == 64 << 20
    monkeypatch.setenv("WEIR_CACHE_MB", "64MB")
    with pytest.raises(ParameterError, match="WEIR_CACHE_MB='64MB': expected a whole number of megabytes"):
        cache._cache_bytes()
