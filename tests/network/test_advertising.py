"""The advertising example, in small: every view is counted once, in its window or in one that is still open."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from pathlib import Path

from support import rows_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "advertising.py"


def test_every_view_is_counted_once(spark, tmp_path):
    example = runpy.run_path(str(EXAMPLE), run_name="advertising_example")
    result = example["main"](["--batches", "3", "--rows", "3000", "--servers", "3", "--out", str(tmp_path)])
    owner = {f"ad-{a}": f"campaign-{a % 100}" for a in range(1000)}
    views = Counter()
    for file in (tmp_path / "events").iterdir():
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == "view":
                views[owner[event["ad"]], event["time"] // 10_000 * 10] += 1
    assert result["stored_views"] + result["open_views"] == sum(views.values())
    stored = spark.read.parquet(str(tmp_path / "stored"))
    found = rows_of(stored.selectExpr("campaign", "cast(window_start as long)", "count"))
    assert len(found) == result["stored_windows"] > 100
    assert all(views[campaign, start] == count for campaign, start, count in found)
    assert not (tmp_path / "dead").exists()
