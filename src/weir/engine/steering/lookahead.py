"""The keys of a batch before it is planned: where they are columns of a source, they can be counted beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.errors import TopologyError
from weir.graph.model import Topology
from weir.locality.counts import count_keys, count_pairs
from weir.locality.stats import BatchStats, Edge

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
