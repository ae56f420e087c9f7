"""Listeners hear what happens to a query, in order, and can't disturb it."""

from __future__ import annotations

import logging

import pytest

import weir
from support import posts, rows_of, two_counts
from weir.errors import EngineError
from weir.events import BatchCommitted, BatchDelivered, Failed, RanAgain, Reconfigured, Scaled, Terminated
from weir.testing import start


def kinds(events):
    return [type(event) for event in events]


def test_a_listener_hears_batches_moves_scalings_and_the_end():
    heard = []
    with start(two_counts(), servers=2, routing=weir.Locality(period=1)) as query:
        query.add_listener(heard.append)
        query.feed(posts(300, 0))
        query.reconfigure(wait=True)
        query.feed(posts(300, 1))
        query.scale_out(1)
        query.feed(posts(300, 2))
    committed = [event.progress for event in heard if isinstance(event, BatchCommitted)]
    assert [p.batch for p in committed] == [0, 1, 2]
    assert committed[-1] is query.progress
    (moved,) = [event for event in heard if isinstance(event, Reconfigured)][:1]
    assert (moved.batch, moved.moved_keys) == (1, committed[1].moved_keys)
    assert moved.decision.forecast == query.decisions[0].forecast
    (scaled,) = [event for event in heard if isinstance(event, Scaled)]
    assert (scaled.batch, scaled.before, scaled.after) == (2, 2, 3)
    assert heard[-1] == Terminated(query.checkpoint, None)
    assert RanAgain not in kinds(heard)


def test_a_restart_keeps_its_listeners():
    heard = []
    with start(two_counts(), servers=2, faults=["commit-written:0"]) as query:
        query.add_listener(heard.append)
        query.feed(posts(100, 0))  # dies after the commit: nothing is told of it
        query.feed(posts(100, 1))
        assert [(type(event), event.progress.batch) for event in heard] == [
            (BatchCommitted, 1),
            (BatchDelivered, 1),
        ]
        query.remove_listener(heard.append)
        query.feed(posts(100, 2))
    assert len(heard) == 2
    with pytest.raises(EngineError, match="is no listener"):
        query.remove_listener(heard.append)


def test_a_failure_is_told(caplog):
    heard = []

    def explode(row):
        raise RuntimeError("no such row")

    with (
        caplog.at_level(logging.INFO, "weir"),
        start(weir.source("place string").filter(explode).keyed("place", weir.Count()), servers=2) as query,
    ):
        query.add_listener(heard.append)
        with pytest.raises(weir.WeirError, match="no such row"):
            query.feed([{"place": "FR"}])
    assert kinds(heard) == [Failed, Terminated]
    assert heard[0].error is heard[1].error is query.exception()
    assert any(r.levelno == logging.ERROR and "no such row" in r.message for r in caplog.records)
    assert {r.name for r in caplog.records} == {"weir.engine"}


def test_a_listener_that_fails_disturbs_nobody(caplog):
    heard = []

    def broken(event):
        raise ValueError("not today")

    with start(two_counts(), servers=2) as query:
        query.add_listener(broken)
        query.add_listener(heard.append)
        query.feed(posts(100, 0))
        assert sum(row[1] for row in rows_of(query.state("places"))) == 100
    assert kinds(heard) == [BatchCommitted, BatchDelivered, Terminated]
    assert "a listener failed on BatchCommitted" in caplog.text
    with pytest.raises(EngineError, match="a listener is a function"):
        query.add_listener("no function")
