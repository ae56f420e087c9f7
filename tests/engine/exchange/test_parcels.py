"""Blobs that are left on a host instead of sent: found, removed, and missed when they are gone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.engine.exchange.parcels import Depot, Parcels
from weir.errors import ParcelLost


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20), st.randoms())
def test_what_is_left_is_found(blobs, dice):
    with tempfile.TemporaryDirectory() as folder:
        depot = Depot(folder, "q", 3, [True])
        addresses = [(depot.leave(blob), blob) for blob in blobs]
        depot.close()
        dice.shuffle(addresses)
        parcels = Parcels()
        for address, blob in addresses:
            found = parcels.fetch(address)
            assert found.to_pybytes() == blob
            assert found.address % 64 == 0, "Arrow reads it in place"
        assert depot.bytes == sum(map(len, blobs))


def test_later_batches_remove_what_earlier_ones_left(tmp_path):
    first, again = (Depot(str(tmp_path), "q", 9, [True]) for _ in range(2))
    other = Depot(str(tmp_path), "another query", 1, [True])
    addresses = [depot.leave(b"rows") for depot in (first, other, again)]
    opened = Parcels()
    opened.fetch(addresses[0])
    Depot(str(tmp_path), "q", 10, [True])
    for gone in (addresses[0], addresses[2]):
        with pytest.raises(ParcelLost, match="can't be read"):
            Parcels().fetch(gone)
    assert Parcels().fetch(addresses[1]).to_pybytes() == b"rows"
    assert opened.fetch(addresses[0]).to_pybytes() == b"rows", "what is mapped stays"


def test_a_file_that_was_cut_off_is_noticed(tmp_path):
    depot = Depot(str(tmp_path), "q", 0, [True])
    address = depot.leave(b"x" * 1000)
    (path,) = (p for p in Path(tmp_path).rglob("*") if p.is_file())
    os.truncate(path, 10)
    with pytest.raises(ParcelLost, match="cut off"):
        Parcels().fetch(address)
