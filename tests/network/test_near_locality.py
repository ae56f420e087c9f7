"""Locality-aware routing and distances together: what can't share a server goes next door."""

from __future__ import annotations

import numpy as np
import pytest

import weir
from weir.locality.counts import count_keys, count_pairs
from weir.locality.manager import LocalityManager
from weir.locality.stats import BatchStats
from weir.network.distance import Place
from weir.network.locator import tree_of
from weir_evaluation.partition import Metis


def places(racks):
    return [Place(str(i), f"host-{i}", f"rack-{rack}") for i, rack in enumerate(racks)]


def seen(a, b):
    return BatchStats(
        {0: count_keys(a), 1: count_keys(b)}, {(0, 1): count_pairs(a, b)}, {0: len(a), 1: len(b)}
    )


def test_pairs_that_cannot_share_a_server_share_the_rack_in_which_servers_really_are():
    """Four groups of keys that are tied within, and two of them to each other, on two racks of two hosts."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, 4, 40_000)
    other = np.where(rng.random(40_000) < 0.35, group ^ 1, group)
    a = (group * 100 + rng.integers(0, 100, 40_000)).astype(np.uint64)
    b = (other * 100 + rng.integers(0, 100, 40_000)).astype(np.uint64)
    for racks in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]):
        manager = LocalityManager(
            weir.Locality(hierarchy="hosts", forecast=None), ["a", "b"], [("a", "b")], 4
        )
        manager.set_hierarchy(tree_of(places(racks)))
        manager.observe(seen(a, b))
        from weir.locality.proposal import propose

        manager.offer(propose(manager.snapshot()))
        manager.plan_next()
        left, right = manager.route(0, a), manager.route(1, b)
        rack = np.array(racks)
        local, near = (left == right).mean(), (rack[left] == rack[right]).mean()
        assert local > 0.6
        assert near > 0.95


def test_servers_that_move_change_the_hierarchy_of_later_proposals():
    manager = LocalityManager(weir.Locality(hierarchy="hosts"), ["a", "b"], [("a", "b")], 4)
    assert manager.snapshot().config.hierarchy is None
    manager.set_hierarchy(tree_of(places([0, 0, 1, 1])))
    assert manager.snapshot().config.hierarchy == [[0, 1], [2, 3]]
    manager.set_hierarchy(tree_of(places([0, 1, 1, 0])))
    assert manager.snapshot().config.hierarchy == [[0, 3], [1, 2]]
    manager.resize(3)
    assert manager.snapshot().config.hierarchy is None


def test_wrong_settings_are_refused():
    with pytest.raises(weir.errors.TopologyError, match="takes no hierarchy"):
        weir.Locality(hierarchy="hosts", partitioner=Metis())
    with pytest.raises(weir.errors.TopologyError, match="did you mean 'hosts'"):
        weir.Locality(hierarchy="host")
    with pytest.raises(weir.errors.TopologyError, match="split_hot"):
        weir.Locality(split_hot=weir.Shuffle())
