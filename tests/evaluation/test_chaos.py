"""Chaos in small: a few seeded stories, and proof that the machine would notice."""

from __future__ import annotations

from weir.engine.batch.ledger import Ledger
from weir_evaluation.bench.chaos import failure, summary, trial
from weir_evaluation.bench.chaos.injector import KILLS

STORIES = (1014, 1022, 1035, 1040)  # short ones in which everything dies that can, with topics and a database


def test_some_seeded_stories_lose_and_double_nothing():
    results = [trial.run(seed) for seed in STORIES]
    for result in results:
        assert result.ok, failure(result)
    total = summary(results)
    assert total["kills"] >= 15
    assert all(total["killed"][kind] for kind in KILLS)
    assert total["scalings"]
    assert total["restarts"]
    assert total["recovery_s"]["p50"] > 0
    assert {"lookup", "bounded join", "side input", "sink: Kafka", "sink: Postgres"} <= set(total["used"])


def test_a_ledger_that_forgets_is_noticed(monkeypatch):
    """As if a start did not find the files that the last commit names."""
    real = Ledger.__init__

    def forgetful(self, *about, **more):
        real(self, *about, **more)
        if self.last is not None and self.last.batch > 1:
            self.last.manifest = {name: [[] for _ in servers] for name, servers in self.last.manifest.items()}

    monkeypatch.setattr(Ledger, "__init__", forgetful)
    assert not all(trial.run(story).ok for story in STORIES[:4])
