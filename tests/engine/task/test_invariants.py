"""A batch whose rows or keys do not add up is stopped before its commit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import weir
import weir.testing
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.exchange import wire
from weir.engine.local import in_process
from weir.engine.task.state_keeper import StateKeeper
from weir.errors import EngineError
from weir.operators.aggregate.aggregate import AggregateInstance
from weir.state import move
from weir.state.segment import DEAD, MERGE_AT
from weir.state.storage import Storage

ROWS = [{"place": f"p{i % 7}", "topic": f"t{i % 11}"} for i in range(200)]


def app():
    source = weir.source("place string, topic string")
    return source.keyed("place", weir.Count(emit="rows"), routing=weir.PartialKey()).keyed(
        "topic", weir.Count()
    )


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


def test_rows_that_reach_other_servers_than_they_were_sent_to(monkeypatch):
    real = in_process.InProcessRunner._exchange

    def exchange(self, sent):
        inboxes = real(self, sent)
        boxes = [inbox for inbox in inboxes if any(b.column("kind")[0].as_py() == wire.DATA for b in inbox)]
        one, two = boxes[:2]
        at = [
            next(i for i, b in enumerate(x) if b.column("kind")[0].as_py() == wire.DATA) for x in (one, two)
        ]
        one[at[0]], two[at[1]] = two[at[1]], one[at[0]]
        return inboxes

    with weir.testing.start(app(), servers=3) as query:
        monkeypatch.setattr(in_process.InProcessRunner, "_exchange", exchange)
        with pytest.raises(EngineError, match="edge .* were sent to the servers"):
            query.feed(ROWS)


def counted():
    return weir.source("place string, topic string").keyed("place", weir.Count(emit="rows"), name="places")


def test_the_keys_of_every_server_are_on_record(checkpoint):
    """Born, merged, moved by tables and by scaling: what the commit counts is what is there."""
    app = counted().keyed("topic", weir.Count(), name="topics")
    routing = weir.Locality(period=None, forecast=None)
    with weir.testing.start(app, checkpoint, servers=3, routing=routing, seed=1) as query:
        for batch in range(12):  # long enough for segments to be merged
            query.feed(
                [{"place": f"p{i % 7 + batch}", "topic": f"t{i % 11 + 3 * batch}"} for i in range(200)]
            )
            if batch in (2, 5, 8):
                query.reconfigure(wait=True)
            elif batch == 6:
                query.scale_out(1)
            elif batch == 9:
                query.scale_in(1)
            commit = CheckpointLayout(Storage(checkpoint)).latest_commit()
            for name in ("places", "topics"):
                assert commit.keys[name] == query.state(name).num_rows
                # who owns slices of others' segments has not counted its keys, until they are merged
                if None not in commit.counts[name]:
                    assert sum(commit.counts[name]) == commit.keys[name]
                else:
                    assert batch > 6
        assert sum(p.moved_keys for p in query.recent_progress) > 0


def test_an_operator_that_counts_its_keys_wrongly(monkeypatch):
    real = AggregateInstance.finish

    def finish(self):
        yield from real(self)
        self.report.keys_delta += 1

    with weir.testing.start(counted(), servers=2) as query:
        query.feed(ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(AggregateInstance, "finish", finish)
            with pytest.raises(
                EngineError, match=r"'places' on server 0: says that its keys change by 1, but its"
            ):
                query.feed(ROWS)
        query.feed(ROWS)
        assert sum(query.state("places")["count"].to_pylist()) == 2 * len(ROWS)


def test_state_that_is_lost_shows_when_its_files_are_merged(monkeypatch):
    """A segment that lacks an entry, but whose name and checksum are right: as a writer with a bug would make it."""
    write = StateKeeper.write
    with weir.testing.start(counted(), servers=1) as query:
        with monkeypatch.context() as patch:
            patch.setattr(StateKeeper, "write", lambda *about: _write_less(write, *about))
            query.feed(ROWS)
        other = [{"place": "another", "topic": "t"}]
        for _ in range(MERGE_AT - 1):
            query.feed(other)
        with pytest.raises(EngineError, match="had 8 keys by count, but 7 when its files were merged"):
            query.feed(other)


def _write_less(write, keeper, node, table):
    """Count a table as it is, but write it without its first entry."""
    files = keeper._files
    segment = files.segment
    files.segment = lambda name, whole: segment(name, whole.slice(1))
    try:
        write(keeper, node, table)
    finally:
        files.segment = segment


def test_keys_that_move_but_do_not_arrive(monkeypatch):
    real = move.take_over

    def take_over(*about):
        changes = real(*about)
        if not changes.arrived:
            return changes
        arriving = np.flatnonzero(~changes.entries[DEAD].to_numpy())
        less = changes.entries.filter(pa.array(np.arange(len(changes.entries)) != arriving[0]))
        return move.Changes(less, changes.arrived - 1, changes.left)

    app = counted().keyed("topic", weir.Count(), name="topics")
    routing = weir.Locality(period=None, forecast=None)
    with weir.testing.start(app, servers=3, routing=routing, seed=1) as query:
        for _ in range(2):
            query.feed(ROWS)
        query.reconfigure(wait=True)
        monkeypatch.setattr("weir.engine.task.state_keeper.take_over", take_over)
        with pytest.raises(EngineError, match=r"keys left their servers, but \d+ arrived"):
            query.feed(ROWS)
