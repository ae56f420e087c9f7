"""A short run of the differential test: every type, every function, against Spark SQL in ANSI mode."""

from __future__ import annotations

import random
from collections import defaultdict

from weir_evaluation.bench import semantics


def test_aggregates_windows_and_joins_are_sparks(spark, monkeypatch):
    monkeypatch.setattr(semantics, "GROUPS", 40)
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"  # as it is by default
    rng, cases, differences = random.Random(5), defaultdict(int), []
    for kind in semantics.TYPES:
        semantics._aggregates(spark, rng, kind, cases, differences)
    semantics._windows(spark, rng, cases, differences)
    semantics._joins(spark, rng, cases, differences)
    for view in ("l", "r", "rows"):
        spark.catalog.dropTempView(view)
    assert differences == []
    assert sum(cases.values()) > 5000
    assert len(cases) >= 18
