"""A clock that is wrong does not make operators forget their keys."""

from __future__ import annotations

import time

import pytest

import weir
import weir.testing
from weir.errors import EngineError

ROWS = [{"key": "a"}, {"key": "b"}]
DAY = 86_400 * 10**9


def app(**options):
    return weir.source("key string").keyed("key", weir.Count(), **options)


def shifted(monkeypatch, nanoseconds):
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + nanoseconds)


@pytest.mark.parametrize("days", [20, -20])
def test_a_start_with_a_wrong_clock_is_refused_and_nothing_expires(tmp_path, monkeypatch, days):
    with weir.testing.start(app(ttl="1 hour"), str(tmp_path), servers=2) as query:
        query.feed(ROWS)
        with monkeypatch.context() as patch:
            shifted(patch, days * DAY)
            query.restart()
            with pytest.raises(EngineError, match="the clock of this host"):
                query.feed(ROWS)
        query.restart()
        query.feed(ROWS)
        assert query.state("key")["count"].to_pylist() == [2, 2]


def test_a_clock_that_jumps_between_two_batches_is_refused(monkeypatch):
    with weir.testing.start(app(ttl="1 hour"), servers=2) as query:
        query.feed(ROWS)
        with monkeypatch.context() as patch:
            shifted(patch, 8 * DAY)
            with pytest.raises(EngineError, match="where it should be"):
                query.feed(ROWS)
        query.feed(ROWS)
        assert query.state("key")["count"].to_pylist() == [2, 2]


def test_a_long_stand_still_may_be_allowed_and_does_not_matter_without_a_ttl(monkeypatch):
    for options, settings in (({"ttl": "1 hour"}, {"clock_jump": "30 days"}), ({}, {})):
        with (
            weir.testing.start(app(**options), servers=2, **settings) as query,
            monkeypatch.context() as patch,
        ):
            query.feed(ROWS)
            shifted(patch, 20 * DAY)
            query.feed(ROWS)
            assert query.progress.batch == 1
