"""Generated streams have the shares that they should."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.hashing import hash_columns
from weir_evaluation.simulate import Arrivals, SimulatedCluster, page_views, words, zipf


@pytest.mark.parametrize("z", [0.1, 1.0, 2.0])
def test_zipf_shares(z) -> None:
    stream = zipf(200_000, 100, z, seed=1)
    share = np.bincount(stream.ids, minlength=100) / len(stream)
    expected = np.arange(1, 101) ** -z / (np.arange(1, 101) ** -z).sum()
    assert share == pytest.approx(expected, abs=0.004)
    assert np.array_equal(stream.ids, zipf(200_000, 100, z, seed=1).ids)
    assert not np.array_equal(stream.ids, zipf(200_000, 100, z, seed=2).ids)


def test_page_views_are_exact_where_promised() -> None:
    stream = page_views(100_000, 10_000, 0.2, seed=5)
    assert (len(stream), stream.distinct(), stream.top_share()) == (100_000, 10_000, 0.2)
    with pytest.raises(ValueError, match="cannot hold"):
        page_views(100, 200)


def test_words_come_in_file_order_and_hash_like_spark(tmp_path) -> None:
    found = ["b", "a", "b", "c"] * 10
    pq.write_table(
        pa.table({"word": pa.array(found, pa.large_string())}), tmp_path / "w.parquet", row_group_size=7
    )
    stream = words(tmp_path / "w.parquet")
    assert np.array_equal(stream.keys, hash_columns([pa.array(found)]))
    assert len(words(tmp_path / "w.parquet", limit=5)) == 5


def test_a_day_brings_all_messages() -> None:
    arrivals = Arrivals.day(10_000, swing=0.4)
    assert arrivals.before(86_400) == 10_000
    assert arrivals.before(43_200) < 5_000, "the morning is quieter"


def test_clusters_are_checked() -> None:
    with pytest.raises(ValueError, match="negative"):
        SimulatedCluster.of([1.0, -1.0])
    with pytest.raises(ValueError, match="follow each other"):
        SimulatedCluster.of([1.0]).then(0.0, SimulatedCluster.of([2.0]))
