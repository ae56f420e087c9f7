"""Random applications under random faults, compared with plain Python: nothing lost, nothing doubled, nothing refused.

In this process thousands of kills take minutes: the driver dies at a fault point of the engine or in the middle of an
operation on files, a task dies and runs again, disks are full, fail or are slow, the clock jumps; between batches
servers come and go, tables are learnt anew, and the query is started again with other settings. With
``--cluster-kills``, real processes die: SIGKILL for Python workers, executors and drivers of queries on
``local-cluster``.

Every run follows from its seed: ``weir bench chaos --seed S --runs 1`` repeats a run that failed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from weir_evaluation.bench.chaos import cluster, trial
from weir_evaluation.bench.chaos.injector import FAULTS, KILLS

HELP = "random applications, scalings and restarts while everything dies: compared with plain Python counts"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir bench chaos``."""
    parser.add_argument("--kills", type=int, default=300, help="kills in this process before it ends")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first run; the next ones count up from it"
    )
    parser.add_argument("--runs", type=int, help="end after so many runs, however many kills there were")
    parser.add_argument(
        "--cluster-kills", type=int, default=0, help="SIGKILLs of processes of a local-cluster"
    )
    parser.add_argument("--minutes", type=float, help="end after so long, however many kills there were")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run stories until there were enough kills; return what was lost, doubled, or refused without a reason.

    Interrupted, it returns what came of the runs that are through.
    """
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    results: list[trial.Result] = []
    kills, seed = 0, args.seed
    while kills < args.kills and time.monotonic() < end and (args.runs is None or len(results) < args.runs):
        try:
            result = trial.run(seed)
        except KeyboardInterrupt:
            console.print(f"interrupted in the run of seed {seed}", style="yellow", highlight=False)
            args.cluster_kills = 0
            break
        results.append(result)
        kills += sum(result.happened[kind] for kind in KILLS)
        if not result.ok:
            console.print(f"seed {seed}: {failure(result)['what']}", style="red", highlight=False)
        elif len(results) % 20 == 0:
            console.print(f"{kills} kills in {len(results)} runs", style="dim", highlight=False)
        seed += 1
    out = summary(results)
    if args.cluster_kills:
        out["cluster"] = cluster.run(args.seed, args.cluster_kills, end, console)
        out["kills"] += out["cluster"]["kills"]
    return out


def summary(results: list[trial.Result]) -> dict[str, Any]:
    """Add the results of runs up."""
    happened = sum((r.happened for r in results), Counter[str]())
    recovery = [seconds for r in results for seconds in r.recovery]
    return {
        "kills": sum(happened[kind] for kind in KILLS),
        "killed": {kind: happened[kind] for kind in KILLS},
        "faults": {kind: happened[kind] for kind in FAULTS},
        "used": dict(sorted(sum((r.used for r in results), Counter[str]()).items())),
        "runs": len(results),
        "batches": sum(r.batches for r in results),
        "scalings": sum(r.scalings for r in results),
        "restarts": sum(r.restarts for r in results),
        "lost": sum(r.lost for r in results),
        "doubled": sum(r.doubled for r in results),
        "wrong": sum(len(r.wrong) for r in results),
        "refused_wrongly": sum(len(r.refused_wrongly) for r in results),
        "stalls": sum(len(r.stalls) for r in results),
        "raw_errors": sum(len(r.raw) for r in results),
        "logged_errors": sum(len(r.logged) for r in results),
        "recovery_s": percentiles(recovery),
        "failures": [failure(r) for r in results if not r.ok],
    }


def failure(result: trial.Result) -> dict[str, Any]:
    """Describe a run that failed; its seed repeats it."""
    what = f"{result.lost} rows lost, {result.doubled} doubled; " + "; ".join(result.complaints[:3])
    return {"seed": result.seed, "what": what, "application": result.drawn}


def percentiles(seconds: list[float]) -> dict[str, float] | None:
    """Return the median and the 99th percentile."""
    if not seconds:
        return None
    return {f"p{p}": round(float(np.percentile(seconds, p)), 4) for p in (50, 99)}


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if anything was lost, doubled, wrong, or refused without a reason."""
    return int(bool(result["failures"] or result.get("cluster", {}).get("failures")))


def show(result: dict[str, Any], console: Console) -> None:
    """Print what happened and what came of it."""
    table = Table(title=f"{result['runs']} runs, {result['batches']} batches, seeded", title_justify="left")
    table.add_column("what happened")
    table.add_column("times", justify="right")
    for name, times in {**result["killed"], **result["faults"]}.items():
        table.add_row(name, str(times))
    for name in ("scalings", "restarts"):
        table.add_row(name, str(result[name]))
    console.print(table)
    console.print("drawn: " + ", ".join(f"{name} {times}" for name, times in result["used"].items()))
    names = ("lost", "doubled", "wrong", "refused_wrongly", "raw_errors", "logged_errors", "stalls")
    outcome = {name: result[name] for name in names}
    console.print(", ".join(f"{name} {count}" for name, count in outcome.items()))
    if result["recovery_s"]:
        console.print(f"from a kill to the commit of its batch: {result['recovery_s']} s")
    if "cluster" in result:
        console.print(f"on local-cluster: {result['cluster']}")
    for failed in result["failures"]:
        console.print(f"seed {failed['seed']}: {failed['what']}", style="red", highlight=False)
