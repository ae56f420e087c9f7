"""A short run of the differential test: every type, every function, against Spark SQL in ANSI mode."""

from __future__ import annotations

import random
from collections import defaultdict

from weir_evaluation.bench import semantics


def test_aggregates_windows_and_joins_are_sparks(spark, monkeypatch):
    monkeypatch.setattr(semantics, "GROUPS", 40)
    ansi = spark.newSession()
    ansi.conf.set("spark.sql.ansi.enabled", "true")
    rng, cases, differences = random.Random(5), defaultdict(int), []
    for kind in semantics.TYPES:
        semantics._aggregates(ansi, rng, kind, cases, differences)
    semantics._windows(ansi, rng, cases, differences)
    semantics._joins(ansi, rng, cases, differences)
    assert differences == []
    assert sum(cases.values()) > 5000
    assert len(cases) >= 18
