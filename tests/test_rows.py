"""Rows put together keep all of them, also where columns outgrow 32-bit offsets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from weir.operators.instance import one_array
from weir.rows import one_batch

CHUNK = pa.record_batch({"text": pa.array(["x" * (1 << 20)] * 64), "n": pa.array(range(64))})  # 64 MiB


@pytest.fixture(scope="module")
def many():
    return [CHUNK] * 36  # 2.25 GiB, of one buffer


@pytest.mark.long
def test_more_than_two_gigabytes_of_text_stay_whole(many):
    batch = one_batch(many)
    assert batch.num_rows == 36 * 64
    assert batch.schema.types == [pa.large_string(), pa.int64()]
    assert batch.column("n").to_pylist() == list(range(64)) * 36
    assert len(batch.column("text")[36 * 64 - 1].as_py()) == 1 << 20


def test_columns_that_outgrow_their_offsets_get_wider_ones(monkeypatch):
    monkeypatch.setattr("weir.rows.LARGE", 100)
    parts = [pa.record_batch({"text": ["x" * 30] * 3, "n": [n] * 3}) for n in range(4)]
    batch = one_batch(parts)
    assert batch.schema.types == [pa.large_string(), pa.int64()]
    assert batch.column("n").to_pylist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert batch.column("text").to_pylist() == ["x" * 30] * 12


@pytest.mark.long
def test_a_column_of_more_than_two_gigabytes_is_one_array(many):
    column = pa.Table.from_batches(many)["text"]
    assert len(one_array(column)) == len(column)
