"""From topic to topic, exactly once: how long a row takes until readers of committed messages see its result.

One aggregate, JSON in and out, real brokers. Each system runs by itself on the same brokers and cores, has its backlog
first (how many rows a second it gets through), then rows at parts of the rate that the slowest sustains.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import weir
import weir.sinks
from weir_evaluation.bench.kafka_feed import Feed
from weir_evaluation.bench.peers.environment import Unavailable

SHARES = (0.1, 0.5, 0.8)
MOST = 20_000  # rows per second: more, and producer and reader would take the cores
KEYS = 1000
MOST_OF_A_BATCH = 50_000  # rows
GUARANTEES = {"weir": "exactly once"}


def measure(brokers: Any, work: Path, args: Any, console: Console) -> dict[str, Any]:
    """Return what each system does with a backlog, and the ages of rows at parts of the slowest rate."""
    starters: dict[str, Callable[..., Any]] = {"weir": _weir}
    out: dict[str, Any] = {"keys": KEYS, "servers": args.servers, "systems": {}}
    ready: dict[str, Any] = {}
    for name in args.system or starters:
        try:
            rate = _backlog(brokers, work / name, starters[name], args, console)
        except Unavailable as why:
            console.print(f"{name}: not measured ({why})")
            continue
        ready[name] = starters[name]
        out["systems"][name] = {"guarantee": GUARANTEES[name], "rows_per_second": rate, "ages": {}}
        console.print(f"{name}: {rate:,.0f} rows/s")
    if not ready:
        return out
    out["sustainable"] = min(one["rows_per_second"] for one in out["systems"].values())
    base = min(MOST, out["sustainable"])
    for name, starter in ready.items():
        folder = work / f"{name}-ages"
        with _running(brokers, folder, starter, args, console) as feed:
            feed.send(
                int(base * SHARES[1] * args.seconds), int(base * SHARES[1])
            )  # the JVM goes on compiling
            times = {}
            for share in SHARES:
                times[share] = feed.send(int(base * share * args.seconds), int(base * share))
                time.sleep(1.0)
        told = feed.told
        for share, (since, until) in times.items():
            ages = told.ages(since, until)
            out["systems"][name]["ages"][str(share)] = {
                "rate": int(base * share),
                **{f"p{q}": float(np.percentile(ages, q)) for q in (50, 99)},
            }
        out["systems"][name]["wrong"] = told.wrong()
        said = out["systems"][name]["ages"]
        console.print(
            f"{name}: "
            + ", ".join(f"{s}: p50 {a['p50']:.3f} s p99 {a['p99']:.3f} s" for s, a in said.items())
        )
    return out


def _backlog(brokers: Any, work: Path, starter: Any, args: Any, console: Console) -> float:
    """Return the rows a second of a backlog that was there before, by batches, without its first third."""
    with _running(brokers, work, starter, args, console, args.backlog) as feed:
        pass
    came, rows = feed.told.processed()
    if feed.told.wrong():
        raise RuntimeError("the totals are wrong")
    first = int(np.searchsorted(rows, args.backlog // 3))
    return float((rows[-1] - rows[first]) / (came[-1] - came[first]) * 1e6)


class _Timed(Feed):
    told: Any = None


@contextlib.contextmanager
def _running(
    brokers: Any, work: Path, starter: Any, args: Any, console: Console, backlog: int = 0
) -> Iterator[_Timed]:
    """Run one system over topics of its own; when the block ends, wait until all results are there."""
    work.mkdir(parents=True)
    topics = brokers.topic(args.partitions), brokers.topic(args.partitions)
    feed = _Timed(brokers.servers, *topics, args.partitions, KEYS, work)
    try:
        feed.send(backlog or KEYS, 0)
        with starter(brokers.servers, *topics, work, args, console) as finished:
            yield feed
            finished()
            time.sleep(1.0)
    finally:
        feed.told = feed.close()


@contextlib.contextmanager
def _weir(servers: str, source: str, target: str, work: Path, args: Any, _: Console) -> Iterator[Any]:
    rows = weir.kafka(servers, source, "k string, n long, sent long", max_rows_per_batch=MOST_OF_A_BATCH)
    totals = rows.aggregate("k", total="sum(n)", sent="max(sent)", name="totals")
    query = totals.sink(weir.sinks.Kafka(servers, target, key="k")).start(
        str(work / "checkpoint"), servers=args.servers, execution="live"
    )
    try:
        yield query.process_all_available
        if args.progress:
            Path(args.progress).write_text(
                json.dumps([p.to_dict() for p in query.recent_progress], default=str)
            )
    finally:
        query.stop()


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable("", "guarantee", "rows/s", *[f"p50, p99 at {s:.0%}" for s in SHARES], "wrong")
    for name, one in result["systems"].items():
        ages = [f"{a['p50'] * 1e3:.0f}, {a['p99'] * 1e3:.0f} ms" for a in one["ages"].values()]
        table.add_row(name, one["guarantee"], f"{one['rows_per_second']:,.0f}", *ages, str(one["wrong"]))
    console.print(table)
