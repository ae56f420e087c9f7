"""A byte that has changed, or a file that is cut off, is refused or does not matter. `weir bench fuzz` tries all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from weir_evaluation.bench import fuzz


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    whole = tmp_path_factory.mktemp("fuzz") / "whole"
    tables = fuzz.make(str(whole))
    return whole, tables


def test_some_bytes_of_every_kind_of_file(made):
    whole, tables = made
    rng, outcomes = random.Random(5), Counter()
    kinds = {}
    for path in sorted(p for p in whole.rglob("*") if p.is_file()):
        kinds.setdefault(path.relative_to(whole).parts[0], []).append(path)
    assert {"weir", "plans", "commits", "state", "outputs", "tables", "moves", "manager", "routers"} <= set(
        kinds
    )
    for files in kinds.values():
        path, way = rng.choice(files), rng.choice(("changed", "cut"))
        name, place = str(path.relative_to(whole)), rng.randrange(path.stat().st_size)
        outcome, said = fuzz.damage(whole, name, place, way, tables, rng.randrange(1, 256))
        assert outcome in ("refused", "right"), (name, place, way, said)
        outcomes[outcome] += 1
    # of files that the next batch needs, any byte matters
    for kind in ("commits", "weir"):
        name = str(max(kinds[kind]).relative_to(whole))
        outcome, said = fuzz.damage(whole, name, 0, "cut", tables, 1)
        assert outcome == "refused", (name, said)
        outcomes[outcome] += 1
    assert outcomes["refused"] >= 2
    assert outcomes["right"] >= 2


def test_the_whole_checkpoint_gives_the_right_result(made):
    whole, tables = made
    name = next(p for p in (whole / "delivered").iterdir())  # its content decides nothing
    assert fuzz.damage(whole, str(name.relative_to(whole)), 0, "changed", tables, 1) == ("right", "")
