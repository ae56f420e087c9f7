"""A batch whose rows do not add up is stopped before its commit."""

from __future__ import annotations

import pytest

import weir
import weir.testing
from weir.engine import in_process
from weir.engine.exchange import wire
from weir.errors import EngineError

ROWS = [{"place": f"p{i % 7}", "topic": f"t{i % 11}"} for i in range(200)]


def app():
    source = weir.source("place string, topic string")
    return source.keyed("place", weir.Count(), routing=weir.PartialKey()).keyed("topic", weir.Count())


def damaged(monkeypatch, kind, change):
    """Lose or double the first blob of a kind on its way."""
    real = in_process.InProcessRunner._exchange
    left = [1]

    def exchange(self, sent):
        inboxes = real(self, sent)
        for inbox in inboxes:
            for at, blob in enumerate(inbox):
                if left and blob.column("kind")[0].as_py() == kind:
                    left.clear()
                    inbox[at : at + 1] = change(blob)
        return inboxes

    monkeypatch.setattr(in_process.InProcessRunner, "_exchange", exchange)


@pytest.mark.parametrize("kind", [wire.DATA, wire.PARTIAL], ids=["rows", "partial states"])
@pytest.mark.parametrize("change", [lambda b: [], lambda b: [b, b]], ids=["lost", "doubled"])
def test_rows_and_partial_states_that_do_not_arrive_once(monkeypatch, kind, change):
    with weir.testing.start(app(), servers=3) as query:
        query.feed(ROWS)
        before = query.state("topic").sort_by("topic")
        with monkeypatch.context() as patch:
            damaged(patch, kind, change)
            with pytest.raises(EngineError, match="were sent to server"):
                query.feed(ROWS)
        assert query.state("topic").sort_by("topic") == before
        query.feed(ROWS)
        assert sum(query.state("topic")["count"].to_pylist()) == 2 * len(ROWS)


def test_states_that_do_not_arrive_when_servers_come(monkeypatch):
    with weir.testing.start(app(), servers=2) as query:
        query.feed(ROWS)
        query.scale_out(1)
        with monkeypatch.context() as patch:
            damaged(patch, wire.STATE, lambda blob: [])
            with pytest.raises(EngineError, match="states that move"):
                query.feed(ROWS)
