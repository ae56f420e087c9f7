"""``routing="auto"`` beside every single grouping, where a different one is best each time.

Service times are slept per row, so that eight servers run honestly in parallel on few cores, and some of them slowly.
Every run is checked: each operator must have counted every row once.

Rates are of the second half of a run's batches, planning included, for all groupings alike: what ``auto`` learns before
counts in ``whole_run`` only, where starting servers and the first batch do as well. On a busy machine rates differ from
run to run. Two figures do not: ``by_routing`` is the rate that servers could reach which do nothing but sleep, by the
rows that each got, and ``cpu`` the milliseconds of processor time that thousand rows took.

Where servers are in racks, they are those of a lab (root is needed): four hosts in two racks, behind links on which a
row that goes on takes a fifth of its work, and ten times as long on the racks' uplinks. Such a scenario runs by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

from weir.errors import ParameterError
from weir_evaluation.bench.peers.meter import cpu_seconds, descendants
from weir_evaluation.simulate.chain import bound, run_chain
from weir_evaluation.simulate.scenarios import LINK, SCENARIOS, SERVERS, Scenario, chosen

HELP = "one controller beside every single grouping: affinity, skew, slow servers, drift"
SPLITTING = ("partial_key", "consistent", "weighted")
GROUPINGS = ("hash", "locality", *SPLITTING, "auto")
FILES = 2  # per batch
BODY = 1000  # bytes of a row between operators, where servers are in racks


@dataclass
class Tally:
    rows: int = 0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS))
    parser.add_argument("--grouping", action="append", choices=GROUPINGS)
    parser.add_argument(
        "--delay", type=float, default=0.5, help="milliseconds of service per row and operator"
    )
    parser.add_argument("--rows", type=int, default=8000, help="per batch")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--simulate", action="store_true", help="run the same control in the simulator")
    parser.add_argument(
        "--trace",
        type=Path,
        help="append each live run's batches to this file: seconds, busy times, decisions",
    )


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    wanted = chosen(args.scenario)
    if not args.simulate:
        if args.scenario is None:
            wanted = {name: scenario for name, scenario in wanted.items() if not scenario.racks}
        if len({scenario.racks for scenario in wanted.values()}) > 1:
            raise ParameterError("scenarios with racks run in a lab: name them by themselves")
    result = []
    with _session(args, any(scenario.racks for scenario in wanted.values())) as (session, racks):
        if session is not None:  # whoever comes first must not pay for what all use
            first = argparse.Namespace(delay=args.delay, rows=args.rows, batches=2, trace=None)
            _measure(session, next(iter(wanted)), "hash", first, 0, racks)
        for name, scenario in wanted.items():
            groupings = [g for g in args.grouping or GROUPINGS if scenario.mergeable or g not in SPLITTING]
            measured: dict[str, list[dict[str, float]]] = {g: [] for g in groupings}
            least = bound(scenario.case(args.batches, args.rows, 0, args.delay / 1000))
            for number in range(args.runs):
                for grouping in groupings:  # in turns
                    if session is None:
                        one = _simulate(scenario, grouping, args, number)
                    else:
                        one = _measure(session, name, grouping, args, number, racks)
                    measured[grouping].append(one)
                    console.print(
                        f"{name}, {grouping}: {one['rows_per_s']:,.0f} rows/s, {one['locality']:.2f} local"
                    )
            result.append(
                {
                    "scenario": name,
                    "bound": len(least) * args.rows / least.sum(),
                    **{g: _summary(runs) for g, runs in measured.items()},
                }
            )
    return result


@contextlib.contextmanager
def _session(args: argparse.Namespace, racks: bool) -> Iterator[tuple[Any, dict[str, str] | None]]:
    """Spark on this machine, or on a lab with racks, and the rack of each host; nothing in the simulator."""
    if args.simulate:
        yield None, None
    elif racks:
        from weir_evaluation.lab import LabCluster

        bits = 8 * BODY / (LINK * args.delay / 0.5)
        lab = LabCluster(4, f"{bits / 1000:.0f}kbit", racks=2, uplink=f"{bits / 10_000:.0f}kbit", cores=3)
        with lab:
            yield lab.session("weir bench auto"), {h.name: f"rack {h.rack}" for h in lab.record.hosts}
    else:
        from weir.spark.session import embedded

        session = embedded(f"local[{SERVERS + FILES}]", **{"spark.driver.memory": "3g"})
        try:
            yield session, None
        finally:
            session.stop()


def _summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means, and the least and greatest rate."""
    rates = [one["rows_per_s"] for one in runs]
    return {
        **{name: statistics.mean(one[name] for one in runs) for name in runs[0]},
        "spread": [min(rates), max(rates)],
    }


def show(result: list[dict[str, Any]], console: Console) -> None:
    groupings = [g for g in GROUPINGS if any(g in row for row in result)]
    table = RichTable(title="rows/s in the settled half of the run, and rows that stay on their server")
    for column in ("scenario", "bound", *groupings, "auto / best other", "changes", "moved"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for row in result:
        cells = [
            f"{row[g]['rows_per_s']:,.0f} ({row[g]['locality']:.2f})" if g in row else "–" for g in groupings
        ]
        others = [row[g]["rows_per_s"] for g in groupings if g in row and g != "auto"]
        auto = row.get("auto")
        ratio = f"{auto['rows_per_s'] / max(others):.2f}" if auto and others else "–"
        extra = [f"{auto['changes']:.0f}", f"{auto['moved']:,.0f}"] if auto else ["–", "–"]
        table.add_row(row["scenario"], f"{row['bound']:,.0f}", *cells, ratio, *extra)
    console.print(table)


def _simulate(scenario: Scenario, grouping: str, args: argparse.Namespace, seed: int) -> dict[str, float]:
    from weir.graph.declare import GROUPINGS as BY_NAME

    case = scenario.case(args.batches, args.rows, seed, args.delay / 1000)
    ran = run_chain(case, BY_NAME[grouping](), seed=seed)
    half = len(ran.locality) // 2
    return {
        "rows_per_s": ran.rate(),
        "whole_run": float(ran.rows.sum() / ran.seconds.sum()),
        "locality": float(ran.locality[half:].mean()),
        "moved": ran.moved,
        "changes": ran.changes,
    }


def _measure(
    session: Any,
    name: str,
    grouping: str,
    args: argparse.Namespace,
    seed: int,
    racks: dict[str, str] | None,
) -> dict[str, float]:
    import weir

    scenario, work = SCENARIOS[name], Path(tempfile.mkdtemp(prefix="weir-auto-"))
    try:
        operators = _write(work / "rows", scenario, args, seed)
        speeds, delay = scenario.speeds(args.batches).tolist(), args.delay / 1000
        began = _processor_seconds()
        schema = ", ".join(f"k{o} long" for o in range(operators)) + ", batch int"
        source = (
            session.readStream.schema(schema).option("maxFilesPerTrigger", FILES).parquet(str(work / "rows"))
        )

        def serve(key: int, rows: Any, state: Tally) -> Any:
            from pyspark import TaskContext

            state.rows += len(rows)
            # speeds change with the batch, which rows carry: nothing is looked up that others would not pay for
            speed = speeds[rows[0].batch][TaskContext.get().partitionId()]
            Owed.seconds += delay * len(rows) / speed
            if Owed.seconds > 0.002:
                began = time.perf_counter()
                time.sleep(Owed.seconds)
                Owed.seconds -= time.perf_counter() - began
            if racks is None:
                return rows
            return [
                {"k0": row.k0, "k1": row.k1, "batch": row.batch, "body": os.urandom(BODY)} for row in rows
            ]

        stream = weir.source(source)
        for o in range(operators):
            stream = stream.process(
                f"k{o}",
                serve,
                name=f"operator{o}",
                state=Tally,
                merge=_merge if scenario.mergeable else None,
                output=schema if racks is None else f"{schema}, body binary",
            )
        query = stream.start(
            str(work / "checkpoint"),
            servers=SERVERS,
            routing=grouping,
            racks=racks,
            trigger={"availableNow": True},
            execution="live",
        )
        query.await_termination()
        if args.trace is not None:
            _trace(args.trace, f"{name}, {grouping}, run {seed}", query)
        cpu = _processor_seconds() - began
        figures = _figures(query, operators)
        rows = sum(p.rows for p in query.recent_progress)
        return {
            **figures,
            "by_routing": _by_routing(query, scenario.speeds(args.batches), delay),
            "cpu": 1e6 * cpu / rows,
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _merge(one: Tally, other: Tally) -> Tally:
    return Tally(one.rows + other.rows)


def _figures(query: Any, operators: int) -> dict[str, float]:
    progress = query.recent_progress
    came = sum(p.rows for p in progress)
    for o in range(operators):
        counted = query.state(f"operator{o}").agg({"rows": "sum"}).first()[0]
        if counted != came:
            raise AssertionError(f"operator{o} counted {counted} rows, {came} came in")
    settled = progress[len(progress) // 2 :]
    seconds = [p.seconds.plan + p.seconds.job for p in settled]
    whole = sum(p.seconds.plan + p.seconds.job for p in progress)
    last = f"operator{operators - 1}"
    return {
        "rows_per_s": sum(p.rows for p in settled) / sum(seconds),
        "whole_run": came / whole,
        "locality": statistics.mean(p.locality or 0.0 for p in settled),
        "latency_p99": statistics.mean((p.operators[last].latency or {}).get("p99", 0.0) for p in settled),
        "moved": sum(p.moved_keys or 0 for p in progress),
        "changes": sum(bool(p.moved_keys) for p in progress),
    }


def _processor_seconds() -> float:
    """Return the processor time of this process and all that it has started, on this machine."""
    return cpu_seconds([os.getpid(), *descendants(os.getpid())])


def _by_routing(query: Any, speeds: NDArray[np.float64], delay: float) -> float:
    """Return the rate of the settled half if a row took nothing but its service, by the rows of the busiest servers."""
    half = len(query.recent_progress) // 2
    rows, seconds = 0, 0.0
    for progress, speed in list(zip(query.recent_progress, speeds, strict=True))[half:]:
        worked = np.sum([operator.rows_by_server for operator in progress.operators.values()], axis=0)
        rows, seconds = rows + progress.rows, seconds + float((worked * delay / speed).max())
    return rows / seconds


def _trace(file: Path, run: str, query: Any) -> None:
    """Append what the batches of a run took, and what was decided, as a line of JSON."""
    batches = []
    for p in query.recent_progress:
        routing = None if p.routing is None else p.routing.to_dict()
        batches.append(
            {
                "rows": p.rows,
                "plan": p.seconds.plan,
                "job": p.seconds.job,
                "locality": p.locality,
                "moved": p.moved_keys,
                "busy": [round(server.busy, 3) for server in p.servers],
                "by_server": {name: o.rows_by_server for name, o in p.operators.items()},
                "weights": p.weights,
                "routing": routing,
            }
        )
    with file.open("a") as out:
        out.write(json.dumps({"run": run, "batches": batches}) + "\n")


def _write(folder: Path, scenario: Scenario, args: argparse.Namespace, seed: int) -> int:
    """Write the batches, each as two files; return how many operators there are."""
    folder.mkdir()
    batches = scenario.batches(args.batches, args.rows, seed)
    for number, keys in enumerate(batches):
        columns = {f"k{o}": k for o, k in enumerate(keys)}
        columns["batch"] = np.full(args.rows, number, np.int32)
        whole = pa.table(columns)
        for part in range(FILES):
            rows = whole.take(pa.array(np.arange(part, args.rows, FILES)))
            pq.write_table(rows, folder / f"{number:04d}-{part}.parquet")
    return len(batches[0])


class Owed:
    """Service time not yet slept: sleeping once per few milliseconds keeps the emulation exact."""

    seconds = 0.0
