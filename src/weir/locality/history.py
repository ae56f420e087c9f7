"""The pairs seen so far on each edge: older ones to learn from, the latest ones held out to judge what was learnt."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from weir.locality._memory import FadingCounts
from weir.locality.counts import PairCounts, merge
from weir.locality.graph import within
from weir.locality.stats import BatchStats, Edge

_FIELDS = ("left", "right", "count")
FASTER = 8.0
OUTDATED = 0.05  # what a row counts from before affinity changed


class PairHistory:
    """Pair counts of all edges, over time and in bounded memory.

    The counts of the latest ``held_out`` batches are kept apart. Older batches are added to counts that fade with
    time, of which the heaviest ``capacity`` per edge are kept; and to others, of a quarter of that capacity, that fade
    eight times as fast. Which of the two says more about the rows to come depends on how soon affinity changes.

    ``edges`` are pairs of operator numbers; a row counts half after ``half_life`` batches; the seed fixes which of
    equally frequent pairs are dropped. With ``early``, at most every second batch is held out at first.

    >>> import numpy as np
    >>> a = np.array([1, 1], np.uint64)
    >>> stats = BatchStats.of({0: a, 1: a}, {(0, 1): (a, a)})
    >>> history = PairHistory([(0, 1)], capacity=100, half_life=10, held_out=1)
    >>> for _ in range(3):
    ...     history.observe(stats)
    >>> history.recent()[0, 1].total, round(history.older()[0, 1].total, 2)
    (2.0, 3.87)
    """

    def __init__(
        self,
        edges: Sequence[Edge],
        *,
        capacity: int,
        half_life: float,
        held_out: int,
        seed: int = 0,
        early: bool = False,
    ) -> None:
        self.edges = list(edges)
        self.held_out = held_out
        self._early, self.seen = early, 0  # batches since the stream, or its affinity, was new
        self._room = max(1, capacity // held_out)
        self._older = {e: FadingCounts(capacity, half_life, seed) for e in self.edges}
        few = max(1, capacity // 4)
        self._newer = {e: FadingCounts(few, half_life / FASTER, seed) for e in self.edges}
        self._recent: deque[dict[Edge, PairCounts]] = deque()

    def observe(self, stats: BatchStats) -> None:
        """Take in the pairs of one batch; the oldest of the latest batches joins the faded counts."""
        self._recent.append(
            {e: stats.pairs.get(e, PairCounts.empty()).truncate(self._room) for e in self.edges}
        )
        for counts in (*self._older.values(), *self._newer.values()):
            counts.tick()
        self.seen += 1
        held_out = max(1, min(self.held_out, self.seen // 2)) if self._early else self.held_out
        self._age(held_out)

    def _age(self, held_out: int) -> None:
        """Add all but the latest batches to the faded counts."""
        while len(self._recent) > held_out:
            for e, old in self._recent.popleft().items():
                for counts in (self._older[e], self._newer[e]):
                    counts.add(old.left, old.right, old.count)
                    counts.prune()

    def outdate(self) -> None:
        """Let what was seen before the latest two batches count for little: affinity has changed."""
        self._age(2)
        for counts in (*self._older.values(), *self._newer.values()):
            counts.fade(OUTDATED)
        self._age(1)
        self.seen = 2

    def __len__(self) -> int:
        faded = sum(len(counts) for counts in (*self._older.values(), *self._newer.values()))
        return faded + sum(len(counts) for batch in self._recent for counts in batch.values())

    @property
    def batches(self) -> int:
        """Return how many batches :meth:`recent` counts."""
        return len(self._recent)

    @property
    def has_older(self) -> bool:
        """Return whether any pair is older than the held-out batches."""
        return any(len(counts) for counts in self._older.values())

    def recent(self) -> dict[Edge, PairCounts]:
        """Return the pairs of the latest batches, per edge."""
        return {e: merge([batch[e] for batch in self._recent]) for e in self.edges}

    def older(self, least: float = 0.0, keys: Sequence[PairCounts] | None = None) -> dict[Edge, PairCounts]:
        """Return the faded counts of at least ``least`` rows, per edge; with ``keys``, only of pairs of these keys.

        ``keys`` has the keys of each operator, by number.
        """
        return _counts(self._older, least, keys)

    def newer(self, least: float = 0.0, keys: Sequence[PairCounts] | None = None) -> dict[Edge, PairCounts]:
        """Return the counts of the same rows that fade faster."""
        return _counts(self._newer, least, keys)

    def state(self) -> dict[str, Any]:
        """Return everything that later answers depend on, as arrays by name, which hold until something is added."""
        out: dict[str, Any] = {}
        for i, e in enumerate(self.edges):
            out.update({f"history.{i}.{k}": v for k, v in self._older[e].state().items()})
            out.update({f"newer.{i}.{k}": v for k, v in self._newer[e].state().items()})
            for j, batch in enumerate(self._recent):
                for name in _FIELDS:
                    out[f"recent.{j}.{i}.{name}"] = getattr(batch[e], name)
        return out

    def restore(self, state: Mapping[str, Any], batches: int) -> None:
        """Go on from :meth:`state`, which holds so many recent batches."""
        for i, e in enumerate(self.edges):
            self._older[e].restore({k: state[f"history.{i}.{k}"] for k in _FIELDS})
            if f"newer.{i}.left" in state:  # not in checkpoints of version 0.1: begins to count then
                self._newer[e].restore({k: state[f"newer.{i}.{k}"] for k in _FIELDS})
        self._recent = deque(
            {
                e: PairCounts(*(state[f"recent.{j}.{i}.{name}"] for name in _FIELDS))
                for i, e in enumerate(self.edges)
            }
            for j in range(batches)
        )


def _counts(
    faded: Mapping[Edge, FadingCounts], least: float, keys: Sequence[PairCounts] | None
) -> dict[Edge, PairCounts]:
    counts = {e: c.counts(least) for e, c in faded.items()}
    return counts if keys is None else {e: _among(c, keys[e[0]], keys[e[1]]) for e, c in counts.items()}


def _among(pairs: PairCounts, left: PairCounts, right: PairCounts) -> PairCounts:
    # a key whose own count has faded away keeps its home but takes no part in planning; neither do its pairs
    alive = within(left.left, pairs.left) & within(right.left, pairs.right)
    return PairCounts(pairs.left[alive], pairs.right[alive], pairs.count[alive])
