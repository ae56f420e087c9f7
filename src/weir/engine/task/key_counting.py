"""What tasks count for locality-aware routing, and how much of it they may report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.graph.model import Node
from weir.locality.config import Locality
from weir.locality.counts import HeavyPairs, PairCounts, count_keys, merge, weighed
from weir.locality.stats import BatchStats
from weir.rows import Rows

SERVER_ENTRIES = 100_000  # of an operator's keys, or an edge's pairs, that one server reports at most
# that reach the driver with a batch, of all operators and edges, whatever the servers
DRIVER_ENTRIES = 1 << 20
_HOLD = 1 << 16  # distinct entries that a task can count exactly, of each operator and edge


@dataclass(frozen=True)
class Learning:
    """What tasks are to count: operators by number, and the edges between consecutive ones.

    ``capacity`` is how many entries of each a server may report to the driver. Together those of all servers are
    bounded, so what the driver has to take in does not grow with their number.
    """

    operators: dict[str, int]
    edges: frozenset[tuple[int, int]]
    capacity: int
    seed: int
    timed: bool = False  # whether keys weigh what they take, where a function is called by key

    @classmethod
    def of(
        cls, names: Sequence[str], edges: Iterable[tuple[int, int]], servers: int, config: Locality
    ) -> Learning:
        """Share out what the driver can take in.

        >>> edges = [(i, i + 1) for i in range(7)]
        >>> [Learning.of("abcdefgh", edges, n, Locality()).capacity for n in (1, 10, 100, 1000)]
        [69905, 6990, 699, 69]
        """
        edge_names = frozenset(edges)
        fair = DRIVER_ENTRIES // (servers * (len(names) + len(edge_names)))
        capacity = max(1, min(config.capacity, SERVER_ENTRIES, fair))
        timed = config.balance == "time"
        return cls({name: i for i, name in enumerate(names)}, edge_names, capacity, config.seed, timed)


class KeyCounter:
    """Counts keys and pairs of keys in one task, in bounded memory (see :class:`~weir.locality.counts.HeavyPairs`).

    Statistics of a server's earlier steps are added, so that one server sends the driver one summary.
    """

    def __init__(self, learning: Learning) -> None:
        self.learning = learning
        self._keys: dict[int, HeavyPairs] = {}
        self._pairs: dict[tuple[int, int], HeavyPairs] = {}
        self._rows: dict[int, float] = {}
        self._seconds: dict[int, PairCounts] = {}
        self._weighed: dict[int, PairCounts] = {}
        self._earlier: list[BatchStats] = []

    def key(self, operator: str, hashes: NDArray[np.uint64]) -> None:
        """Count the keys of rows that an operator gets."""
        number = self.learning.operators.get(operator)
        if number is not None:
            self._heavy(self._keys, number).add(hashes, np.zeros(len(hashes), np.uint64))
            self._rows[number] = self._rows.get(number, 0.0) + len(hashes)

    def times(self, operator: str) -> bool:
        """Return whether calls of an operator's function are to be timed."""
        return self.learning.timed and operator in self.learning.operators

    def took(self, operator: str, hashes: NDArray[np.uint64], seconds: NDArray[np.float64]) -> None:
        """Take in how long a function took for some keys."""
        number = self.learning.operators[operator]
        counts = [count_keys(hashes, seconds), self._seconds.get(number, PairCounts.empty())]
        self._seconds[number] = merge(counts, max(_HOLD, 2 * self.learning.capacity), self.learning.seed)

    def weigh(self, busy: Mapping[str, float]) -> dict[str, float]:
        """Count keys that take long as so many rows more; return the rows of each operator as they weigh now.

        ``busy`` are the operators' seconds of work: what is not spent in their functions is all rows' alike.
        """
        names = {number: name for name, number in self.learning.operators.items()}
        out = {}
        for number, seconds in self._seconds.items():
            plain = self._heavy(self._keys, number).counts()
            other = max(0.0, busy.get(names[number], 0.0) - seconds.total) / max(1.0, self._rows[number])
            keys = self._weighed[number] = weighed(plain, seconds, other)
            self._rows[number] += keys.total - plain.total
            out[names[number]] = self._rows[number]
        return out

    def pair(self, origin: tuple[str, NDArray[np.uint64]], operator: str, hashes: NDArray[np.uint64]) -> None:
        """Count the pairs of a key and the one that the same row has for the next operator."""
        if self.counts_pair(origin[0], operator):
            edge = self.learning.operators[origin[0]], self.learning.operators[operator]
            self._heavy(self._pairs, edge).add(origin[1], hashes)

    def counts_pair(self, origin: str, operator: str) -> bool:
        """Return whether one operator's keys are counted together with those of another behind it."""
        numbers = self.learning.operators
        return (numbers.get(origin, -1), numbers.get(operator, -1)) in self.learning.edges

    def _heavy(self, counts: dict[Any, HeavyPairs], what: Any) -> HeavyPairs:
        if what not in counts:
            counts[what] = HeavyPairs(max(_HOLD, 2 * self.learning.capacity), self.learning.seed)
        return counts[what]

    def add(self, summary: bytes) -> None:
        """Take in the summary of an earlier step."""
        self._earlier.append(BatchStats.decode(summary))

    def stats(self, last: bool = True) -> BatchStats | None:
        """Return the summary; before the last step of a batch it may be longer, since later steps add to it."""
        capacity = self.learning.capacity * (1 if last else 4)
        own = BatchStats(
            {o: self._weighed.get(o) or heavy.counts() for o, heavy in sorted(self._keys.items())},
            {e: heavy.counts() for e, heavy in sorted(self._pairs.items())},
            dict(sorted(self._rows.items())),
        )
        whole = BatchStats.merge([*self._earlier, own], capacity=capacity, seed=self.learning.seed)
        return whole if whole.keys or whole.pairs else None


def sent_by(node: Node, rows: Rows) -> tuple[str, NDArray[np.uint64]] | None:
    """Return the operator and the keys that rows come from which it made itself; None if they don't carry their key."""
    schema = rows.batch.schema
    for name in node.key:
        at = schema.get_field_index(name)
        if at < 0 or schema.field(at).type != node.input.field(name).type:
            return None
    return (node.name, Rows(rows.batch, rows.index).hash(node.key)) if node.key else None
