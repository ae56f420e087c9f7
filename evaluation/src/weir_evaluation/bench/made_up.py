"""A runner without servers: it makes up what the tasks of a batch would send, and hands it to the driver.

What it makes up has the size and shape of what a busy batch sends. Everything the driver does with it is real.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import cloudpickle

from weir.engine.batch.ledger import IN_PROCESS
from weir.engine.documents import (
    BatchPlan,
    Claim,
    EdgeReport,
    FileRef,
    MadeSegment,
    Manifest,
    TaskReport,
    encode_report,
)
from weir.engine.exchange import wire
from weir.engine.progress import Progress
from weir.engine.task.batch_context import BatchContext, Segments
from weir.engine.task.key_counting import Learning
from weir.engine.task.look_ahead import Ahead
from weir.engine.task.reports import BatchResult, result_of, together
from weir.graph.model import Node, Topology
from weir.hashing import mix
from weir.locality.counts import PairCounts
from weir.locality.stats import BatchStats
from weir.operators.instance import OperatorReport
from weir.state.segment import SegmentRef
from weir.state.storage import Storage

HOSTS_PER_RACK = 40
SERVERS_PER_HOST = 10
VARIANTS = 4  # different statistics, which batches take turns with
ROWS = 20_000  # that an operator gets on a server in a batch


def key_hashes(operator: int, ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hashes of an operator's keys, which are numbered by their rank.

    >>> key_hashes(0, np.arange(3)).dtype.name
    'uint64'
    """
    return mix(ranks.astype(np.uint64), np.uint64(operator + 1))


class MadeUpRunner:
    """Takes the place of Spark: ``keys`` keys per operator, Zipf, each server with its own share of them."""

    mode = IN_PROCESS
    execution = "made up"

    def __init__(self, storage: Storage, keys: int, seed: int = 0) -> None:
        self.storage, self.keys = storage, keys
        self.sources = self.tasks = self.machines = self
        self._rng = np.random.default_rng(seed)
        self.outside = 0.0  # CPU seconds that went into making things up
        self.to_driver = 0  # bytes of the last batch
        self.per_task = 0  # bytes that every task of the last batch was sent
        self.files: list[str] = []
        self._stats: list[list[tuple[int, bytes]]] = []
        self._read: set[str] = set()  # tables and moves that workers have from the batch before

    # ------------------------------------------------------------------ what the driver asks of a runner

    def start(self, rows: Any, topology: Topology, learning: Learning | None, claim: Claim) -> None:
        self.topology, self.learning = topology, learning

    def room(self, servers: int | None) -> int:
        return servers or 1

    def locate(self, always: bool) -> dict[int, tuple[str, str]]:
        return {server: _place(server) for server in range(self.topology.servers)}

    def each(self, count: int, task: Callable[[int], Any]) -> list[Any]:
        return [task(number) for number in range(count)]

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        self.topology, self.learning = topology, learning

    def look_ahead(self, rows: Any, batch: int, ahead: Ahead, again: bool) -> BatchStats | None:
        return None

    def committed(self, progress: Progress) -> None:
        pass

    def listings(self, rows: Any, topology: Topology, sources: Collection[str]) -> dict[str, pa.Table]:
        return {}

    def without(self, rows: Any, topology: Topology, sources: Collection[str] | None = None) -> Any:
        return rows

    def no_rows(self, topology: Topology) -> Any:
        return None

    def call(self, sink: Any, files: list[FileRef], schema: pa.Schema, batch: int) -> None:
        pass

    def frame(self, files: list[FileRef], schema: pa.Schema, order: str = "") -> Any:
        return None

    def close(self) -> None:
        pass

    def ensure_slots(self, servers: int, new: int, timeout: float) -> None:
        pass

    def release(self, hosts: set[str] | None) -> list[str] | None:
        return None

    def run(self, rows: Any, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> BatchResult:
        """Make up the answers of all tasks; what the driver does to send and to read them is not taken off its time."""
        job = BatchContext(
            self.topology,
            plan,
            Segments(manifest),
            self.storage,
            list(range(plan.servers)),
            self.learning,
        )
        # every step of the job is a function of its own to Spark, pickled with all that it needs
        sent = max(len(cloudpickle.dumps((job, step))) for step in range(self.topology.steps + 1))
        began = time.thread_time()
        if len(self._stats) < VARIANTS:
            self._stats.append(list(self._statistics()))
        answers = [*self._reports(plan, manifest), *self._stats[plan.batch % len(self._stats)]]
        files = {f.name: f.bytes for ref in plan.tables.values() for f in ref.files}
        files |= {move.file.name: move.file.bytes for move in plan.moves}
        fresh = sum(size for name, size in files.items() if name not in self._read)
        self._read = set(files)
        self.per_task = sent + fresh
        self.to_driver = sum(len(payload) for _, payload in answers)
        self.outside += time.thread_time() - began
        return result_of(answers)

    # ------------------------------------------------------------------ what tasks would say

    def _reports(self, plan: BatchPlan, manifest: Manifest) -> Iterator[tuple[int, bytes]]:
        n, steps = plan.servers, self.topology.steps
        factors = [wire.factor(s) for s in range(n)]
        all_places, all_marks = n * (n - 1) // 2, sum(factors)
        for server in range(n):
            host, process = _place(server)
            parts = []
            for step in range(1, steps + 1):
                report = TaskReport(
                    server=server, step=step, steps=[step], host=host, process=process, busy=1.0
                )
                for node in self.topology.nodes[step - 1 :]:
                    report.operators[node.name] = _did(node)
                each = ROWS // 2 // n if n > 1 else 0  # rows to every other server, on every edge
                arrived = dict.fromkeys((1, 2, 3), (each * n // 3, 100 * each * n // 3)) if step > 1 else {}
                for edge in self.topology.edges[step - 1 :]:
                    counts = EdgeReport(ROWS // 2, each * (n - 1), 100 * each * (n - 1), arrived)
                    report.edges[edge.index] = counts
                    if step > 1 and each:
                        report.received.append((wire.DATA, edge.index, each * (n - 1)))
                    if step <= edge.index and step < steps and each:
                        marks = each * (all_marks - factors[server]) % wire.PRIME
                        places = each * (all_places - server)
                        where = (wire.DATA, edge.index)
                        report.posted.append((*where, each * (n - 1), places, marks))
                node = self.topology.nodes[step - 1]
                report.segments.append(MadeSegment(node.name, self._segment(plan, node, server, step)))
                # every batch brings new keys: merged, its segments have an entry for each
                report.operators[node.name].keys_delta = ROWS
                report.entries[node.name] = ROWS, 0
                for name, runs in plan.merges.items() if step == 1 else ():
                    run = runs[server]
                    if run is not None:
                        rows = sum(ref.rows for ref in manifest[name][server][slice(*run)])
                        ref = self._segment(plan, self.topology.by_name[name], server, step, rows)
                        report.segments.append(MadeSegment(name, ref, run))
                parts.append(report)
            yield wire.CONTROL, encode_report(together(parts))

    def _segment(self, plan: BatchPlan, node: Node, server: int, step: int, rows: int = ROWS) -> SegmentRef:
        where = f"state/{node.name}/{plan.batch:012d}"
        name = f"{where}/s{server}-{step}-{uuid.uuid4().hex[:12]}.arrow"
        self.files.append(name)
        return SegmentRef(name, rows, rows * 40, int(self._rng.integers(1 << 32)))

    def _statistics(self) -> Iterator[tuple[int, bytes]]:
        learning = self.learning
        if learning is None:
            return
        n, k, room = self.topology.servers, len(learning.operators), learning.capacity
        own, rows = max(1, self.keys // n), min(ROWS, 2000 + 4 * room)
        for server in range(n):
            # ranks of a server's keys are its number modulo n; half of the next keys are its own as well
            drawn = [server + n * _zipf(self._rng, own, rows) for _ in range(2)]
            following = np.where(
                self._rng.random(len(drawn[1])) < 0.5, drawn[1], (drawn[1] * 31 + 7) % self.keys
            )
            ranks, counts = np.unique(drawn[0], return_counts=True)
            pairs = np.unique(drawn[0] * self.keys + following, return_counts=True)
            stats = BatchStats(
                {o: _counts(key_hashes(o, ranks), counts).truncate(room) for o in range(k)},
                {
                    (a, b): _counts(
                        key_hashes(a, pairs[0] // self.keys), pairs[1], key_hashes(b, pairs[0] % self.keys)
                    ).truncate(room)
                    for a, b in sorted(learning.edges)
                },
                {o: float(rows) for o in range(k)},
            )
            yield wire.STATISTICS, stats.encode()

    def touch(self) -> None:
        """Make the files that reports have named, empty, so that there is something to clean up."""
        for name in self.files:
            self.storage.write(name, b"")
        self.files.clear()


def _place(server: int) -> tuple[str, str]:
    host = f"host-{server // SERVERS_PER_HOST:04d}"
    return host, f"{host}:{server}"


def racks(servers: int) -> dict[str, str]:
    """Return the rack of each host."""
    hosts = range(-(-servers // SERVERS_PER_HOST))
    return {f"host-{host:04d}": f"/rack-{host // HOSTS_PER_RACK}" for host in hosts}


def _did(node: Node) -> OperatorReport:
    ages = dict.fromkeys(range(150, 162), ROWS // 12)
    return OperatorReport(rows_in=ROWS, rows_out=ROWS, busy=0.5, waited=1.0, ages=ages, pairs=ROWS // 4)


def _zipf(rng: np.random.Generator, keys: int, rows: int) -> NDArray[np.int64]:
    rank = np.exp(rng.random(rows) * np.log(keys + 1)) - 1
    return np.minimum(rank.astype(np.int64), keys - 1)


def _counts(
    left: NDArray[np.uint64], counts: NDArray[np.int64], right: NDArray[np.uint64] | None = None
) -> PairCounts:
    other = np.zeros(len(left), np.uint64) if right is None else right
    order = np.lexsort((other, left))
    return PairCounts(left[order], other[order], counts[order].astype(np.float64))
