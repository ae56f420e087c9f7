"""Scaling on real Spark: applications of Stela's evaluation with service times emulated by sleeping per row.

Every instance has a server of its own, as an executor of Storm has a thread; a machine is a group of servers. The
strategy sees machines and the rates that the running query measures, and its decision is carried out in mid-stream.
Sleeping instances run honestly in parallel on few cores.

A batch engine runs the steps of a batch one after the other. Where Storm's throughput is that of the slowest operator,
here every operator's share of the batch counts; so less is to be had from relieving one. For the same reason little is
lost by putting operators of a chain on one machine: they take turns anyway.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from weir.elasticity.decision import Decision, Situation, Step, Strategy
from weir.elasticity.graph import Placement
from weir_evaluation.stela.topologies import Case
from weir_evaluation.stela.trial import convergence, decide, steady_from

BATCH_SECONDS = 3.0  # of the slowest operator, at the start
WARM, BEFORE, AFTER = 2, 3, 6


def measure(case: Case, strategy: Strategy, console: Console) -> dict[str, Any]:
    """Runs a case, scales it in mid-stream as it says, and what that did to rows per second out of the sinks."""
    import weir
    from weir.spark.session import embedded

    grows = case.then > case.machines
    layout = _instance_each(case) if grows else _machine_each(case)
    servers = 1 + max(server for places, _ in layout.values() for server in places)
    spark = embedded(f"local[{servers + 16}]", **{"spark.driver.memory": "2g"})
    work = Path(tempfile.mkdtemp(prefix="weir-stela-"))
    try:
        rows = _rows(case)
        for number in range(WARM + BEFORE + AFTER):
            _write(work / "data", number, rows)
        frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(work / "data"))

        def choose(now: Situation) -> Decision:
            if not grows:
                return strategy.scale_in(now, case.machines - case.then)
            chosen = decide(case, strategy, Situation(case.graph, now.rates, case.placement()))
            return _on_servers(chosen, now)

        query = _start(
            weir.source(frame, name="rows"), case, layout, servers, choose, str(work / "checkpoint")
        )
        seen = query.recent_progress
        sinks = case.graph.sinks
        out = [sum(p["operators"][s]["rows_in"] for s in sinks) for p in seen]
        pace = np.array([n / p["seconds"]["job"] for n, p in zip(out, seen, strict=True)])
        changed = WARM + BEFORE
        before, after = float(np.median(pace[WARM:changed])), float(np.median(pace[changed + 1 :]))
        what = "out" if grows else "in"
        console.print(
            f"{case.name} {what}, {strategy.name}: {before:,.0f} → {after:,.0f} rows/s", style="dim"
        )
        took = np.cumsum([0.0, *(p["seconds"]["batch"] for p in seen[changed:])])

        def seconds(batches: int | None) -> float | None:
            return None if batches is None else round(float(took[batches]), 1)

        return {
            "topology": case.name,
            "operation": what,
            "strategy": strategy.name,
            "before": round(before, 1),
            "after": round(after, 1),
            "convergence_s": seconds(convergence(pace[changed:], after)),
            "steady_s": seconds(steady_from(pace[changed:], after)),
            "silent_batches": sum(n == 0 for n in out[changed:]),
            "instances": {name: len(query.topology.by_name[name].placement) for name in case.graph.operators},
            "servers": [len(p["servers"]) for p in seen],
            "where": "spark",
            # seconds from the scaling to the end of each batch, and its rows per second
            "timeline": [(round(t, 2), round(r, 1)) for t, r in zip(_ends(seen, changed), pace, strict=True)],
        }
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


Layout = dict[str, tuple[tuple[int, ...], float]]  # per operator: its servers, and rows per second of each


def _instance_each(case: Case) -> Layout:
    """Every instance has a server of its own."""
    k = case.parallelism
    return {o.name: (tuple(range(i * k, (i + 1) * k)), o.rate) for i, o in enumerate(case.operators)}


def _machine_each(case: Case) -> Layout:
    """Servers are machines; all instances of an operator on one of them are one instance of that speed."""
    found = {}
    places = case.placement().instances
    for o in case.operators:
        mine = tuple(sorted({int(m) for m in places[o.name]}))
        found[o.name] = (mine, o.rate * case.parallelism / len(mine))
    return found


def _ends(seen: list[dict[str, Any]], changed: int) -> list[float]:
    ends = np.cumsum([p["seconds"]["batch"] for p in seen])
    return [float(t) for t in ends - ends[changed - 1]]


def _rows(case: Case) -> int:
    """Rows per batch: the slowest operator takes :data:`BATCH_SECONDS` for them."""
    known = {o.name: o for o in case.operators}
    sent = dict.fromkeys(case.graph.operators, 0.0)
    slowest = 0.0
    for name in case.graph.order:
        arriving = sent[name] or 1.0
        slowest = max(slowest, arriving / known[name].rate / case.parallelism)
        for child in case.graph.children[name]:
            sent[child] += arriving * known[name].selectivity
    return int(BATCH_SECONDS / slowest)


def _write(folder: Path, number: int, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": np.arange(rows)}), folder / f"{number:04d}.parquet")
    time.sleep(0.01)  # Spark reads files in order of age


def _serve(rate: float, selectivity: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def serve(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(batch.num_rows / rate)
        return batch if selectivity == 1 else batch.slice(0, round(batch.num_rows * selectivity))

    return serve


def _start(
    stream: Any,
    case: Case,
    layout: Layout,
    servers: int,
    choose: Callable[[Situation], Decision],
    checkpoint: str,
) -> Any:
    import weir

    graph = case.graph
    ends: dict[str, Any] = {}
    known = {o.name: o for o in case.operators}
    for name in graph.order:
        parents = [ends[p] for p in graph.parents[name]]
        before = parents[0].union(*parents[1:]) if parents else stream
        places, rate = layout[name]
        serve = _serve(rate, known[name].selectivity)
        ends[name] = before.map_batches(serve, name=name, routing=weir.Shuffle(), placement=places)
    ready = threading.Event()

    def sink(frame: Any, batch: int) -> None:
        ready.wait(120)
        if batch == WARM + BEFORE - 1:
            query.scale_by(choose(query.situation()))

    leaf = graph.sinks[0]
    app = weir.Application(*(ends[name] for name in graph.sinks))
    query: Any = app.start(checkpoint, servers=servers, sink={leaf: sink}, trigger={"availableNow": True})
    ready.set()
    query.await_termination()
    return query


def _on_servers(chosen: Decision, now: Situation) -> Decision:
    """A decision about machines, as one about servers: every new instance gets a server of its own."""
    before = now.placement
    after, steps = before, []
    for name, count in chosen.added().items():
        for _ in range(count):
            server = len(after.machines)
            after = Placement((*after.machines, server), after.instances).plus(name, server)
            steps.append(Step(name, server, why="new instance"))
    new = after.machines[len(before.machines) :]
    return replace(chosen, before=before, after=after, machines=new, steps=tuple(steps))
