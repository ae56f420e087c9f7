"""The examples, in small: nothing is lost, more stays once homes are learnt, and features are those of all rows."""

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


def test_features_that_fade(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "decayed.py"))
    result = example["main"](["--hours", "3", "--rows", "2000", "--users", "300", "--keep", str(tmp_path)])
    assert result["users"] == result["expected"] > 100
    assert result["wrong"] < 1e-6


def test_a_model_in_the_stream(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    example = runpy.run_path(str(EXAMPLES / "scored.py"))
    result = example["main"](["--batches", "4", "--rows", "2000", "--cards", "150", "--keep", str(tmp_path)])
    assert result["payments"] == 8000
    assert result["caught"] >= 18
    assert result["unusual"] < 300


def test_naive_bayes_learns_the_counts_of_all_messages(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "naive_bayes.py"))
    result = example["main"](["--batches", "3", "--rows", "1500", "--servers", "3", "--keep", str(tmp_path)])
    expected: dict[str, list[int]] = {}
    for text, spam in zip(*(result["learnt"][name].to_pylist() for name in ("text", "spam")), strict=True):
        for word in text.split(" "):
            seen = expected.setdefault(word, [0, 0])
            seen[0] += 1
            seen[1] += spam
    found = {row["word"]: [row["all"], row["spam"]] for row in result["model"].to_pylist()}
    assert found == expected
    assert result["right"] > 0.85
