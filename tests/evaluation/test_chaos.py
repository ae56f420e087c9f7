"""Chaos in small: a few seeded stories, and proof that the machine would notice."""

from __future__ import annotations

from weir.engine.ledger import Ledger
from weir_evaluation.bench.chaos import failure, summary, trial
from weir_evaluation.bench.chaos.injector import KILLS


def test_some_seeded_stories_lose_and_double_nothing():
    results = [trial.run(seed) for seed in range(1000, 1010)]
    for result in results:
        assert result.ok, failure(result)
    total = summary(results)
    assert total["kills"] >= 60
    assert all(total["killed"][kind] for kind in KILLS)
    assert total["scalings"]
    assert total["restarts"]
    assert total["recovery_s"]["p50"] > 0


def test_a_commit_that_comes_twice_is_noticed(monkeypatch):
    """A ledger that forgets its last commit when a driver is started again lets batches happen twice."""
    real = Ledger.__init__

    def forgetful(self, *about, **more):
        real(self, *about, **more)
        if self.last is not None and self.last.batch > 1:
            self.last.manifest = {name: [[] for _ in servers] for name, servers in self.last.manifest.items()}

    monkeypatch.setattr(Ledger, "__init__", forgetful)
    results = [trial.run(seed) for seed in range(3)]
    assert summary(results)["lost"] > 0 or summary(results)["refused_wrongly"] > 0
