"""Blobs that are left on a host instead of sent: found, removed, and missed when they are gone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.engine.exchange.host_handoff import HandoffReader, HostHandoff
from weir.errors import HandoffLost


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20), st.randoms())
def test_what_is_left_is_found(blobs, dice):
    with tempfile.TemporaryDirectory() as folder:
        handoff = HostHandoff(folder, "q", 3, [True])
        addresses = [(handoff.leave(blob), blob) for blob in blobs]
        handoff.close()
        dice.shuffle(addresses)
        reader = HandoffReader()
        for address, blob in addresses:
            found = reader.fetch(address)
            assert found.to_pybytes() == blob
            assert found.address % 64 == 0, "Arrow reads it in place"
        assert handoff.bytes == sum(map(len, blobs))


def test_later_batches_remove_what_earlier_ones_left(tmp_path):
    first, again = (HostHandoff(str(tmp_path), "q", 9, [True]) for _ in range(2))
    other = HostHandoff(str(tmp_path), "another query", 1, [True])
    addresses = [handoff.leave(b"rows") for handoff in (first, other, again)]
    opened = HandoffReader()
    opened.fetch(addresses[0])
    HostHandoff(str(tmp_path), "q", 10, [True])
    for gone in (addresses[0], addresses[2]):
        with pytest.raises(HandoffLost, match="can't be read"):
            HandoffReader().fetch(gone)
    assert HandoffReader().fetch(addresses[1]).to_pybytes() == b"rows"
    assert opened.fetch(addresses[0]).to_pybytes() == b"rows", "what is mapped stays"


def test_a_file_that_was_cut_off_is_noticed(tmp_path):
    handoff = HostHandoff(str(tmp_path), "q", 0, [True])
    address = handoff.leave(b"x" * 1000)
    (path,) = (p for p in Path(tmp_path).rglob("*") if p.is_file())
    os.truncate(path, 10)
    with pytest.raises(HandoffLost, match="cut off"):
        HandoffReader().fetch(address)
