"""Steering never stalls: whatever happens between batches, a decision comes within two periods of the computation."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
import weir.testing
from weir.errors import EngineError
from weir.locality import BatchStats, Locality, LocalityManager
from weir.locality.proposal import propose as really_propose
from weir.routing.table import Table

pytestmark = pytest.mark.usefixtures("few_starts")
PERIOD = 3
EVENTS = ("batch", "batch", "batch", "compute", "compute", "fail", "scale out", "scale in", "restart", "ask")


class Slowly:
    """Computes proposals when a test says so, in order: as slow as can be."""

    waiting: list[tuple[Future, object]]

    def __init__(self):
        self.waiting = []

    def submit(self, _, snapshot):
        future = Future()
        future.set_running_or_notify_cancel()
        self.waiting.append((future, snapshot))
        return future

    def step(self, fails=False):
        if self.waiting:
            future, snapshot = self.waiting.pop(0)
            if fails:
                future.set_exception(RuntimeError("out of luck"))
            else:
                future.set_result(really_propose(snapshot))

    def shutdown(self, **_):
        self.waiting.clear()


def rows(rng):
    user = rng.integers(0, 30, 200)
    tag = np.where(rng.random(200) < 0.9, user * 2, rng.integers(0, 60, 200))
    return pa.table({"user": [f"u{u}" for u in user], "tag": [f"t{t}" for t in tag]})


@given(st.lists(st.sampled_from(EVENTS), max_size=25))
@settings(max_examples=30)
def test_a_decision_comes_whatever_happens_between_batches(events):
    rng, slowly = np.random.default_rng(0), Slowly()
    source = weir.source("user string, tag string")
    app = source.keyed("user", weir.Count(emit="rows"), name="users").keyed("tag", weir.Count(), name="tags")
    with weir.testing.start(app, servers=2, routing=Locality(period=PERIOD)) as query:

        def take_over():
            query._driver.learner._pool = slowly

        take_over()
        for event in events:
            if event == "batch":
                query.feed(rows(rng))
            elif event in ("compute", "fail"):
                slowly.step(fails=event == "fail")
            elif event == "ask":
                query.reconfigure()
            elif event == "restart":
                slowly.waiting.clear()
                query.restart()
                take_over()
            elif query.progress is not None:
                servers = query.topology.servers
                with contextlib.suppress(EngineError):  # nothing was measured since the restart
                    if event == "scale out" and servers < 4:
                        query.scale_out(1)
                    elif event == "scale in" and servers > 1:
                        query.scale_in(1)
                query.feed(rows(rng))
        before = len(query.decisions)
        for _ in range(2 * PERIOD):
            query.feed(rows(rng))
            while slowly.waiting:  # now it computes as fast as batches come
                slowly.step()
        assert len(query.decisions) > before


def test_a_heavy_key_without_company_is_no_obstacle():
    """No table lists it, so it counts where its hash has put it."""
    rng = np.random.default_rng(0)
    keys = np.arange(20, dtype=np.uint64)
    manager = LocalityManager(Locality(period=None), ["a", "b"], [(0, 1)], servers=3)
    homes = (np.arange(20) % 3).astype(np.int32)
    manager.start_from({0: Table(keys, homes, 3), 1: Table(keys + np.uint64(100), homes, 3)})
    for _ in range(30):
        left = rng.integers(0, 20, 300).astype(np.uint64)
        counted = {0: np.concatenate([left, np.full(600, 999, np.uint64)]), 1: left + np.uint64(100)}
        manager.observe(BatchStats.of(counted, {(0, 1): (left, left + np.uint64(100))}))
        manager.plan_next()
    assert manager.locality > 0.9
