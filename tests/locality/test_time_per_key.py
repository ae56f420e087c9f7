"""Keys weigh what they take: a key of few rows that cost much is a heavy one."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import weir
from support import rows_of
from weir.hashing import hash_columns, hash_home
from weir.locality.counts import count_keys, weighed
from weir.locality.manager import LocalityManager
from weir.testing import start

KEYS = np.arange(50, dtype=np.uint64)
CHEAP, DEAR = 0.0003, 0.006  # seconds that a row takes
DEAR_KEYS = [f"dear {i}" for i in range(8)]


def seconds_of(counts, cost, speed=1.0):
    return type(counts)(counts.left, counts.right, counts.count * cost / speed)


@pytest.mark.parametrize("speed", [1.0, 0.3])
def test_a_dear_key_weighs_more_and_how_fast_its_server_is_plays_no_part(speed):
    counts = count_keys(KEYS, np.full(50, 40.0))
    cost = np.where(KEYS == 7, 0.01, 0.001)
    weights = weighed(counts, seconds_of(counts, cost, speed)).count
    assert weights[7] == pytest.approx(400, rel=0.2)
    assert (np.delete(weights, 7) == 40).all()


def test_times_in_lumps_even_out_over_batches():
    # a function that flushes something now and then takes long for whoever comes
    rng = np.random.default_rng(0)
    counts, weights = count_keys(KEYS, np.full(50, 4.0)), np.zeros(50)
    for _ in range(40):
        weights += weighed(counts, seconds_of(counts, np.where(rng.random(50) < 0.5, 0.001, 0.0))).count
    assert weights.max() < 1.6 * weights.min()


def test_servers_of_dear_keys_do_not_look_slow():
    manager = LocalityManager(weir.Auto(), ["a"], [], 4)
    rows, busy = {0: np.full(4, 100.0)}, {0: np.array([1.0, 0.2, 0.2, 0.2])}
    for weighed_rows in [{0: np.array([500.0, 100.0, 100.0, 100.0])}, None, None]:
        manager.observe_load(rows, busy, weighed_rows)
    assert manager.shares is None
    again = LocalityManager(weir.Auto(), ["a"], [], 4)
    again.restore(manager.state())
    for _ in range(3):
        again.observe_load(rows, busy)
    assert again.shares is None
    for _ in range(3):
        again.observe_load(rows, busy, {0: np.full(4, 100.0)})
    assert again.shares is not None


@dataclass
class Seen:
    rows: int = 0


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_dear_keys_are_spread_over_servers(execution):
    def work(key, rows, state: Seen):
        time.sleep((DEAR if key.startswith("dear") else CHEAP) * len(rows))
        state.rows += len(rows)

    words = [*DEAR_KEYS, *(f"w{i}" for i in range(120))]
    table = pa.table({"word": words * 4})
    app = weir.source("word string").process("word", work, state=Seen, name="words")
    query = start(app, servers=4, routing="auto", execution=execution)
    for _ in range(5):
        query.feed(table)
    hashes = hash_columns([pa.array(DEAR_KEYS)])
    homes = query._driver.learner.manager.route(0, hashes)
    assert (
        np.bincount(hash_home(hashes, 4)).max() >= 5
    )  # by their hash, one server has more of them than others
    assert np.bincount(homes).max() <= 3
    assert sum(rows for _, rows in rows_of(query.state("words"))) == 5 * table.num_rows
