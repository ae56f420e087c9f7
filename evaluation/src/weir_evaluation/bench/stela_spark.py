"""Scaling on the engine: applications of Stela's evaluation, on Spark or as threads, with emulated work.

Every instance has a server of its own, as an executor of Storm has a thread; a machine is a group of servers that share
its cores (:mod:`weir_evaluation.stela.machines`). The strategy sees machines and the rates that the running query
measures, and its whole decision is carried out: an instance that is new gets a new server, one that moves leaves
its server for a new one on the other machine. A strategy that takes the application down for it does so: the query
ends, and another one goes on from its checkpoint with the new placement.

With ``execution="jobs"`` the steps of a batch follow one another, so every operator's share of the batch counts, not
only the slowest's, and operators of a chain are never in each other's way. With ``"live"`` they overlap, as in Storm.
``"threads"`` is the same with live servers as threads of this process, without Spark: little else than the emulated
work takes time then.

Operators overlap within a batch only. A batch takes as long as its slowest operator, and some time that is the same for
short and long ones: until the first rows have passed the operators before the slowest, and the last rows those behind;
since instances don't get exactly as many rows; and for planning, source tasks and commit. ``of_bound`` in a record says
what that left of the throughput of operators that overlap all the time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from weir.elasticity.decision import Decision, Situation, Step, Strategy, text
from weir.elasticity.graph import Machine, Placement
from weir.hashing import mix
from weir.logs import about
from weir_evaluation.stela.machines import Machines
from weir_evaluation.stela.rivals import Default
from weir_evaluation.stela.topologies import Case
from weir_evaluation.stela.trial import convergence, decide, steady_from

WARM, BEFORE, AFTER = 2, 3, 6
CHANGED = WARM + BEFORE  # the first batch of the new placement, or that in which its servers start
SETTLING = (
    2  # batches that may bear the cost of a change: its own, and that in which live servers start again
)
CPU_PART = 0.6  # of the host's cores that emulated machines may use up; the rest is for Spark
SERVERS = 40  # beyond so many instances several become one


@dataclass(frozen=True)
class Settings:
    """How a case is run."""

    work: str = "sleep"
    execution: str = "jobs"
    seconds: float = 12.0  # what the slowest operator takes for a batch, at the start
    explain: bool = False
    pace: float = 250.0  # rows per second that all operators together process at most, at the start
    frames: int = 24  # parts in which live servers get the rows of a batch, so that operators can overlap


def measure(case: Case, strategy: Strategy, console: Console, settings: Settings) -> dict[str, Any]:
    """Run a case and scale it in mid-stream; return what that did to rows per second out of the sinks.

    Rows per second count the whole batch: planning, work, commit and delivery. ``interruption_s`` is what the change
    cost: the time by which its batch, and the next, took longer than the median batch after them, that by which the
    batch in which new servers started took longer than those before it, and the time during which no query ran at all.
    ``noise_s`` is what the same measure says of batches in which nothing changed.
    """
    case = slowed(merged(case), settings.pace)
    work = Path(tempfile.mkdtemp(prefix="weir-stela-"))
    try:
        run = _Run(case, strategy, settings, work)
        seen, idle = run.on_threads() if settings.execution == "threads" else run.on_spark()
        if settings.explain:
            console.print(text(run.decision, run.situation), highlight=False)
        record = _record(case, strategy, seen, idle, run.changed)
        before, after = case.placement().parallelism(), run.decision.after.parallelism()
        record |= {
            "work": settings.work,
            "execution": settings.execution,
            "instances": after,
            "moved": len(run.decision.moved()),
            "expected": round(expected(case, after, settings.execution), 3),
            "of_bound": [
                round(run.rows * least(case, instances, settings.execution) / record[took], 3)
                for instances, took in ((before, "batch_s_before"), (after, "batch_s_after"))
            ],
            "emulated": round(_emulated(case, run.rows, seen), 3),
        }
        what = f"{case.name} {record['operation']}, {strategy.name}, {settings.execution}"
        console.print(f"{what}: {record['before']:,.0f} → {record['after']:,.0f} rows/s", style="dim")
        return record
    finally:
        shutil.rmtree(work, ignore_errors=True)


def merged(case: Case) -> Case:
    """Return a case with at most :data:`SERVERS` instances: several slow ones of an operator become a fast one.

    >>> from weir_evaluation.stela.topologies import page_load_in
    >>> small = merged(page_load_in())
    >>> small.parallelism, small.operators[3].rate * small.parallelism == 40 * 15
    (5, True)
    """
    most = max(1, SERVERS // len(case.operators))
    parts = [k for k in range(1, case.parallelism + 1) if case.parallelism % k == 0 and k <= most]
    times = case.parallelism // max(parts)
    faster = tuple(replace(o, rate=o.rate * times, cpu=min(1.0, o.cpu * times)) for o in case.operators)
    return replace(case, parallelism=max(parts), operators=faster)


def slowed(case: Case, pace: float) -> Case:
    """Return a case whose operators process at most ``pace`` rows per second together; each is as many times slower.

    A row that comes alone costs its server a millisecond of real CPU time, and where each of several instances deals
    its rows out to several others, most rows do come alone. So at the simulator's speeds a host with a few cores would
    be busy with handing rows on, and it is that which would be measured.

    >>> from weir_evaluation.stela.topologies import linear
    >>> slowed(linear(), 300).operators[2].rate, slowed(linear(), 30_000).operators[2].rate
    (10.0, 100)
    """
    work = _work(case)
    calls = sum(work[o.name] * o.rate for o in case.operators)  # of operators, that a row of the stream makes
    times = calls * case.parallelism / max(work.values()) / pace
    if times <= 1:
        return case
    return replace(case, operators=tuple(replace(o, rate=o.rate / times) for o in case.operators))


class _Run:
    """A case as it runs: at first on the case's placement, from :data:`CHANGED` on as the strategy decides."""

    def __init__(self, case: Case, strategy: Strategy, settings: Settings, work: Path) -> None:
        self.case, self.strategy, self.settings = case, strategy, settings
        self.data, self.checkpoint = work / "data", str(work / "checkpoint")
        for folder in (self.data, work / "machines"):
            folder.mkdir()
        share = CPU_PART * (os.cpu_count() or 1) / max(case.machines, case.then) / case.cores
        cores = max(1, round(case.cores))
        self.machines = Machines(str(work / "machines"), cores, settings.work, min(1.0, share))
        self.rows = _rows(case, settings.seconds)
        self.changed = CHANGED  # the first batch of the new placement
        k = case.parallelism
        self.placement = {
            o.name: tuple(range(i * k, (i + 1) * k)) for i, o in enumerate(case.operators)
        }  # the server of each instance
        start = case.placement()
        self.machines.set_homes(0, [int(m) for name in self.placement for m in start.instances[name]])

    def on_spark(self) -> tuple[list[Any], float]:
        """Return the progress of every batch, and the seconds for which no query ran."""
        from weir.spark.session import embedded

        slots = 2 * self.case.placement().total + 16
        spark = embedded(f"local[{slots}]", **{"spark.driver.memory": "2g"})
        try:
            if self.strategy.name != Default.name:
                self.changed += 1  # a batch goes by while new servers start
                self._write(0, self.changed + AFTER)
                seen = self._query(spark, self._scale).recent_progress
                scaled = [p.batch for p in seen if p.scaled]
                if scaled != [self.changed]:
                    raise RuntimeError(f"servers changed with batches {scaled}, not with {self.changed}")
                return seen, 0.0
            self._write(0, CHANGED)
            first = self._query(spark, None)
            seen, ended = first.recent_progress, first.progress.time
            chosen = self._decide(first.situation())
            self._write(CHANGED, CHANGED + AFTER)
            number = {machine: i for i, machine in enumerate(chosen.after.machines)}
            self.placement = {
                name: tuple(number[m] for m in where) for name, where in chosen.after.instances.items()
            }
            again = self._query(spark, None).recent_progress
            # without the last batch of the first query, as it was committed
            rest = [p for p in again if p.batch >= CHANGED]
        finally:
            spark.stop()
        # the time of a commit is when the batch's tasks had ended
        worked = rest[0].seconds.plan + rest[0].seconds.job + seen[-1].seconds.commit
        return [*seen, *rest], max(0.0, rest[0].time - ended - worked)

    def on_threads(self) -> tuple[list[Any], float]:
        """Return the progress of every batch, and the seconds for which no query ran: none."""
        import weir
        import weir.testing

        app = self._application(weir.source("n long, batch long", name="rows"))
        with weir.testing.start(
            app, self.checkpoint, servers=self._servers(), execution="live", source_tasks=self.settings.frames
        ) as query:
            for number in range(CHANGED):
                query.feed(self._rows_of(number))
            self._scale(query)
            for number in range(CHANGED, CHANGED + AFTER):
                query.feed(self._rows_of(number))
            return query.recent_progress, 0.0

    def _scale(self, query: Any) -> None:
        query.scale_by(self._decide(query.situation()))

    def _decide(self, now: Situation) -> Decision:
        """Ask the strategy about machines; return its decision about servers."""
        self.situation = Situation(self.case.graph, now.rates, self.case.placement())
        self.decision = decide(self.case, self.strategy, self.situation)
        chosen, homes = on_servers(self.decision, now)
        self.machines.set_homes(self.changed, homes)
        return chosen

    def _write(self, first: int, last: int) -> None:
        for number in range(first, last):
            path = self.data / f"{number:04d}.parquet"
            pq.write_table(self._rows_of(number), path.with_suffix(".tmp"))
            os.utime(
                path.with_suffix(".tmp"), (1_700_000_000 + number,) * 2
            )  # Spark reads files in order of age
            path.with_suffix(".tmp").rename(path)

    def _rows_of(self, batch: int) -> pa.Table:
        return pa.table({"n": np.arange(self.rows), "batch": np.full(self.rows, batch)})

    def _servers(self) -> int:
        return 1 + max(server for where in self.placement.values() for server in where)

    def _application(self, stream: Any) -> Any:
        import weir

        ends: dict[str, Any] = {}
        operators = {o.name: o for o in self.case.operators}
        for name in self.case.graph.order:
            parents = [ends[p] for p in self.case.graph.parents[name]]
            before = parents[0].union(*parents[1:]) if parents else stream
            o = operators[name]
            serve = Serve(self.machines, o.rate, o.cpu, o.selectivity)
            ends[name] = before.map_batches(
                serve, name=name, routing=weir.Shuffle(), placement=self.placement[name]
            )
        return weir.Application(*(ends[name] for name in self.case.graph.sinks))

    def _query(self, spark: Any, scale: Callable[[Any], None] | None) -> Any:
        """Run the application on what there is to read; ``scale`` is called before the batch of the change."""
        import weir

        reader = spark.readStream.schema("n long, batch long").option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(self.data))
        if self.settings.execution == "live":
            frame = frame.repartition(self.settings.frames)
        ready, asking = threading.Event(), []

        def sink(frame: Any, batch: int) -> None:
            ready.wait(120)
            if scale is not None and batch == CHANGED - 1:
                asking.append(threading.Thread(target=scale, args=[query]))
                asking[0].start()  # batches go on

        query: Any = self._application(weir.source(frame, name="rows")).start(
            self.checkpoint,
            servers=self._servers(),
            sink={self.case.graph.sinks[0]: sink},
            trigger={"availableNow": True},
            execution=self.settings.execution,
        )
        ready.set()
        query.await_termination()
        return query


class Serve:
    """The work of an instance on the rows that it is given."""

    def __init__(self, machines: Machines, rate: float, cpu: float, selectivity: float) -> None:
        self.machines, self.rate, self.cpu, self.selectivity = machines, rate, cpu, selectivity

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        server = this_server()
        if batch.num_rows and server is not None:
            machine = self.machines.of(batch.column("batch")[0].as_py(), server)
            self.machines.occupy(machine, batch.num_rows / self.rate, self.cpu)
        if self.selectivity == 1:
            return batch
        # the same rows whoever gets them, other ones at every operator
        drawn = mix(batch.column("n").to_numpy().astype(np.uint64), np.uint64(1000 * self.rate))
        return batch.filter(pa.array(drawn < self.selectivity * 2.0**64))


def this_server() -> int | None:
    """Return the number of the server that this thread works for; None where servers take turns."""
    if (server := about.get().get("server")) is not None:  # a live one, whichever stage it came with
        return int(server)
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else int(context.partitionId())


def on_servers(chosen: Decision, now: Situation) -> tuple[Decision, list[int]]:
    """Return a decision about machines as one about servers, and the machine of each server after it.

    Each instance has a server. One that moves leaves it for a new one on the other machine.
    """
    before = now.placement
    kept: dict[Machine, int] = {}  # server → machine
    instances: dict[str, tuple[Machine, ...]] = {}
    steps: list[Step] = []
    fresh = len(before.machines)
    for name, places in chosen.after.instances.items():
        old, servers = chosen.before.instances[name], list[Machine]()
        for i, machine in enumerate(places):
            stays = i < len(old) and old[i] == machine
            server = before.instances[name][i] if stays else fresh
            if not stays:
                source = before.instances[name][i] if i < len(old) else None
                steps.append(Step(name, server, source=source, why="moves" if i < len(old) else "new"))
                fresh += 1
            servers.append(server)
            kept[server] = int(machine)
        instances[name] = tuple(servers)
    order = sorted(kept, key=int)
    new = tuple(server for server in order if server not in before.machines)
    gone = tuple(server for server in before.machines if server not in kept)
    after = Placement(tuple(order), instances)
    decision = replace(chosen, before=before, after=after, machines=new or gone, steps=tuple(steps))
    return decision, [kept[server] for server in order]


def _work(case: Case) -> dict[str, float]:
    """Return the seconds of work that one row of the stream makes for each operator, over all its instances."""
    speeds = {o.name: o for o in case.operators}
    sent = dict.fromkeys(case.graph.operators, 0.0)
    work = {}
    for name in case.graph.order:
        arriving = sent[name] or 1.0
        work[name] = arriving / speeds[name].rate
        for child in case.graph.children[name]:
            sent[child] += arriving * speeds[name].selectivity
    return work


def _rows(case: Case, seconds: float) -> int:
    """Return the rows per batch for which the slowest operator takes so many seconds."""
    return int(seconds * case.parallelism / max(_work(case).values()))


def least(case: Case, instances: Mapping[str, int], execution: str) -> float:
    """Return the seconds that a row of the stream takes at least, if every machine has cores to spare.

    Where steps follow one another, as long as the slowest operators of all steps together; where they overlap, as long
    as the slowest of all.
    """
    steps: dict[int, float] = {}
    for name, seconds in _work(case).items():
        level = case.graph.depth[name]
        steps[level] = max(steps.get(level, 0.0), seconds / instances[name])
    return sum(steps.values()) if execution == "jobs" else max(steps.values())


def expected(case: Case, instances: Mapping[str, int], execution: str) -> float:
    """Return how many times as fast a case is with other numbers of instances, by :func:`least`.

    >>> from weir_evaluation.stela.topologies import star
    >>> more = {**dict.fromkeys(star().graph.operators, 2), "hub": 5}
    >>> round(expected(star(), more, "jobs"), 2), round(expected(star(), more, "live"), 2)
    (1.43, 1.7)
    """
    start = dict.fromkeys(case.graph.operators, case.parallelism)
    return least(case, start, execution) / least(case, instances, execution)


def _emulated(case: Case, rows: int, seen: list[Any]) -> float:
    """Return the part of the time of operators that is the work they were to emulate; the rest is the host's CPU."""
    busy = sum(p.operators[name].busy for p in seen for name in case.graph.operators)
    return len(seen) * rows * sum(_work(case).values()) / busy


def _record(
    case: Case, strategy: Strategy, seen: list[Any], idle: float, changed: int = CHANGED
) -> dict[str, Any]:
    """Return what a run shows: throughput before and after, and what the change cost; no query ran for ``idle`` s."""
    out = [sum(p.operators[s].rows_in for s in case.graph.sinks) for p in seen]
    took = np.array([p.seconds.batch for p in seen])
    pace = np.array(out) / took
    settled = slice(changed + SETTLING, None)
    before, after = float(np.median(pace[WARM:CHANGED])), float(np.median(pace[settled]))
    extra = [
        *took[CHANGED:changed] - np.median(took[WARM:CHANGED]),
        *took[changed : changed + SETTLING] - np.median(took[settled]),
    ]
    quiet = np.maximum(took[settled] - np.median(took[settled]), 0.0)
    ends = np.cumsum(took)
    ends[CHANGED:] += idle
    ends -= ends[CHANGED - 1]

    def seconds(batches: int | None) -> float | None:
        return None if batches is None else round(float(ends[CHANGED - 1 + batches]), 1)

    return {
        "topology": case.name,
        "operation": "out" if case.then > case.machines else "in",
        "strategy": strategy.name,
        "before": round(before, 1),
        "after": round(after, 1),
        "batch_s_before": round(float(np.median(took[WARM:CHANGED])), 3),
        "batch_s_after": round(float(np.median(took[settled])), 3),
        "convergence_s": seconds(convergence(pace[CHANGED:], after)),
        "steady_s": seconds(steady_from(pace[CHANGED:], after)),
        "silent_batches": sum(n == 0 for n in out[CHANGED:]),
        "rows": out,  # out of all sinks, per batch
        "interruption_s": round(float(np.maximum(extra, 0.0).sum()) + idle, 2),
        "noise_s": round(float(quiet.mean()) * len(extra), 2),
        "servers": [len(p.servers) for p in seen],
        "where": "spark",
        "seconds": [msgspec.to_builtins(p.seconds) for p in seen],
        # seconds from the scaling to the end of each batch, and its rows per second
        "timeline": [(round(float(t), 2), round(float(r), 1)) for t, r in zip(ends, pace, strict=True)],
    }
