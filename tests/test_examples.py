"""The examples that show a stream before and after its homes are learnt, in small: nothing is lost, and more stays."""

from __future__ import annotations

import runpy
from pathlib import Path

import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.usefixtures("spark", "few_starts")


def test_a_skewed_pipeline(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "skewed.py"))
    result = example["main"](["--batches", "2", "--rows", "2000", "--servers", "3", "--keep", str(tmp_path)])
    assert result["counted"] == 8000
    assert result["after"]["stay"] > result["before"]["stay"] + 0.2


def test_sessions_per_campaign(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "campaigns.py"))
    result = example["main"](["--hours", "2", "--visits", "3000", "--servers", "3", "--keep", str(tmp_path)])
    clicks = sum(pq.read_metadata(file).num_rows for file in (tmp_path / "clicks").iterdir())
    assert result["clicks"] == result["in_sessions"] + result["open"] == clicks
    assert result["after"] > result["before"] + 0.2
