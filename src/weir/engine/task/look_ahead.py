"""What source tasks count of a batch before it is planned, so that its keys are placed for the rows to come."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.exchange import wire
from weir.engine.task.batch_context import SOURCE_NUMBER, column_name
from weir.engine.task.key_counting import DRIVER_ENTRIES, KeyCounter, Learning
from weir.errors import TopologyError
from weir.graph.model import Topology
from weir.locality.config import Locality
from weir.locality.stats import BatchStats
from weir.rows import Rows


@dataclass(frozen=True)
class Ahead:
    """How source tasks count the keys of a batch before it is planned, from the sources' columns alone.

    ``keys`` has the key of each operator that the rows of a source reach unchanged.
    """

    sources: Mapping[str, pa.Schema]
    keys: Mapping[str, Mapping[str, tuple[str, ...]]]
    learning: Learning

    @classmethod
    def of(
        cls, topology: Topology, names: Sequence[str], edges: Iterable[tuple[int, int]], config: Locality
    ) -> Ahead:
        """Find the keys of the named operators in the sources; refuse an application that changes rows before them."""
        unchanged: dict[str, set[str] | None] = {source: {source} for source in topology.sources}
        keys: dict[str, dict[str, tuple[str, ...]]] = {}
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
                keys.setdefault(source, {})[node.name] = node.key
        return cls(dict(topology.sources), keys, Learning.of(names, edges, 1, config))

    @property
    def columns(self) -> list[str]:
        """Return the columns that are part of some key, by their names where all sources are one DataFrame."""
        return [
            column_name(number, c)
            for number, source in enumerate(self.sources)
            for c in dict.fromkeys(c for key in self.keys.get(source, {}).values() for c in key)
        ]

    def counter(self, tasks: int) -> KeyCounter:
        """Return what counts for one of so many source tasks."""
        learning = self.learning
        fair = DRIVER_ENTRIES // (tasks * (len(learning.operators) + len(learning.edges)))
        return KeyCounter(replace(learning, capacity=max(1, min(learning.capacity, fair))))

    def count(self, counter: KeyCounter, batch: pa.RecordBatch) -> None:
        """Count rows of all sources, as source tasks get them; a row without a key is none of that operator's."""
        names = batch.schema.names
        numbers = batch.column(SOURCE_NUMBER).to_numpy() if SOURCE_NUMBER in names else None
        for number, (source, schema) in enumerate(self.sources.items()):
            part = batch if numbers is None else batch.filter(pa.array(numbers == number))
            keys = self.keys.get(source, {})
            if not keys or not part.num_rows:
                continue
            columns = pa.schema([schema.field(c) for c in dict.fromkeys(itertools.chain(*keys.values()))])
            whole = wire.normalised(part, columns, [column_name(number, c) for c in columns.names])
            hashes = {name: Rows(whole).hash(key) for name, key in keys.items()}
            missing = {name: Rows(whole).nulls(key) for name, key in keys.items()}
            for name, own in hashes.items():
                counter.key(name, _present(own, missing[name]))
            for (a, one), (b, other) in itertools.permutations(hashes.items(), 2):
                if counter.counts_pair(a, b):
                    gone = _either(missing[a], missing[b])
                    counter.pair((a, _present(one, gone)), b, _present(other, gone))

    def count_all(self, batches: Iterable[pa.RecordBatch], tasks: int) -> bytes:
        """Return what one of so many source tasks has counted of its rows."""
        counter = self.counter(tasks)
        for batch in batches:
            self.count(counter, batch)
        return summary(counter)

    def merged(self, counted: Sequence[bytes]) -> BatchStats:
        """Return what source tasks have counted, together."""
        return BatchStats.decode(*counted, seed=self.learning.seed)


def summary(counter: KeyCounter) -> bytes:
    """Return what was counted, for :meth:`Ahead.merged`."""
    return (counter.stats() or BatchStats()).encode()


Mask = NDArray[np.bool_] | None


def _present(hashes: NDArray[np.uint64], missing: Mask) -> NDArray[np.uint64]:
    return hashes if missing is None else hashes[~missing]


def _either(one: Mask, other: Mask) -> Mask:
    return other if one is None else one if other is None else one | other
