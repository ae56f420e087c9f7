"""What tasks count for locality-aware routing, and how much of it they may report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.errors import TopologyError
from weir.graph.model import Node, Topology
from weir.locality.config import Locality
from weir.locality.counts import HeavyPairs, count_keys, count_pairs
from weir.locality.stats import BatchStats, Edge
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
        return cls({name: i for i, name in enumerate(names)}, edge_names, capacity, config.seed)


class KeyCounter:
    """Counts keys and pairs of keys in one task, in bounded memory (see :class:`~weir.locality.counts.HeavyPairs`).

    Statistics of a server's earlier steps are added, so that one server sends the driver one summary.
    """

    def __init__(self, learning: Learning) -> None:
        self.learning = learning
        self._keys: dict[int, HeavyPairs] = {}
        self._pairs: dict[tuple[int, int], HeavyPairs] = {}
        self._rows: dict[int, float] = {}
        self._earlier: list[BatchStats] = []

    def key(self, operator: str, hashes: NDArray[np.uint64]) -> None:
        """Count the keys of rows that an operator gets."""
        number = self.learning.operators.get(operator)
        if number is not None:
            self._heavy(self._keys, number).add(hashes, np.zeros(len(hashes), np.uint64))
            self._rows[number] = self._rows.get(number, 0.0) + len(hashes)

    def pair(self, origin: tuple[str, NDArray[np.uint64]], operator: str, hashes: NDArray[np.uint64]) -> None:
        """Count the pairs of a key and the one that the same row has for the next operator."""
        edge = (self.learning.operators.get(origin[0], -1), self.learning.operators.get(operator, -1))
        if edge in self.learning.edges:
            self._heavy(self._pairs, edge).add(origin[1], hashes)

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
            {o: heavy.counts() for o, heavy in sorted(self._keys.items())},
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


ENTRIES = 1 << 19  # combinations of keys of a batch that are counted at most, the most frequent ones


@dataclass(frozen=True)
class Ahead:
    """Which columns of which source are the keys of which operator, by number."""

    keys: Mapping[str, Mapping[int, tuple[str, ...]]]
    edges: frozenset[Edge]

    @classmethod
    def of(cls, topology: Topology, names: Sequence[str], edges: Iterable[Edge]) -> Ahead:
        """Find the keys of the named operators in the sources; refuse an application that changes rows before them."""
        unchanged: dict[str, set[str] | None] = {source: {source} for source in topology.sources}
        keys: dict[str, dict[int, tuple[str, ...]]] = {}
        reading = next((n.name for n in topology.nodes if n.operator.reads_source), None)
        if reading is not None:
            raise TopologyError(
                f"look_ahead=True: {reading!r} is read on the servers, after the batch is planned, so its keys are not "
                "known before. Leave look_ahead out, or read with spark.readStream and weir.source(…)."
            )
        for node in topology.nodes:
            above = [unchanged[e.source] for e in topology.edges if e.target == node.name]
            origins = None if None in above else set().union(*(a for a in above if a is not None))
            unchanged[node.name] = origins if node.operator.stateful and node.passes else None
            if node.name not in names:
                continue
            if origins is None or any(k not in topology.sources[s].names for s in origins for k in node.key):
                raise TopologyError(
                    f"look_ahead=True: the key of operator {node.name!r} is not a column of a source that reaches it "
                    "unchanged, so nobody knows it before the batch has run. Leave look_ahead out, or compute the key "
                    "with DataFrame functions before weir.source(…)."
                )
            for source in origins:
                keys.setdefault(source, {})[names.index(node.name)] = node.key
        return cls(keys, frozenset(edges))

    def columns(self, source: str) -> list[str]:
        """Return the columns of a source that are part of some key."""
        return list(dict.fromkeys(c for key in self.keys.get(source, {}).values() for c in key))

    def stats(
        self, hashes: Mapping[int, NDArray[np.uint64]], count: NDArray[np.float64] | None = None
    ) -> BatchStats:
        """Return the counts of rows of one source, given the hash of each operator's key; a row may stand for more."""
        keys = {o: count_keys(h, count) for o, h in hashes.items()}
        both = [(a, b) for a, b in self.edges if a in hashes and b in hashes]
        pairs = {(a, b): count_pairs(hashes[a], hashes[b], count) for a, b in both}
        return BatchStats(keys, pairs, {o: counts.total for o, counts in keys.items()})
