"""Servers come and go under load, whatever the state weighs: how long the stream is held up, and what it costs.

Two aggregates in a chain and a Process, on live servers. The state is filled first; then small batches follow one
another while servers are added and removed. The query is then stopped, and goes on from its checkpoint: with as many
servers, and with another number of them. The results are compared with what plain NumPy counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import weir
from weir_evaluation.bench import elastic_spark
from weir_evaluation.bench.elastic_feed import SCHEMA, Feed
from weir_evaluation.bench.peers.meter import descendants
from weir_evaluation.bench.soak import command

HELP = "servers come and go under load: interruption, memory, bytes that were copied, rows lost or doubled"


@dataclass
class Seen:
    rows: int = 0
    note: str = ""


class Remember(weir.Process):
    """Keeps a text per key, as an application of a user's does."""

    state = Seen
    output = "one long, rows long"

    def process(self, key: Any, rows: Sequence[Any], state: Any, *side: Any) -> Iterator[Any]:
        state.rows += len(rows)
        state.note = rows[-1].note
        yield from ()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys", type=int, nargs="*", default=[100_000, 1_000_000], help="keys of each operator"
    )
    parser.add_argument(
        "--servers", type=int, nargs="*", default=[4, 6, 3], help="how many, one after the other"
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows per batch under load")
    parser.add_argument("--batches", type=int, default=12, help="batches between two changes")
    parser.add_argument("--process", action="store_true", help="with a Process beside the aggregates")
    parser.add_argument(
        "--storage", metavar="URI", help="where checkpoints are kept (default: a local folder)"
    )
    parser.add_argument(
        "--storage-option", action="append", default=[], metavar="NAME=VALUE", help="of an object store"
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="instead, what a query of Spark's own takes for it: repartitioned, and read again from the beginning",
    )


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    from weir.spark.session import embedded

    spark = embedded(f"local[{max(args.servers) + 3}]", **{"spark.driver.memory": "4g"})
    results: list[dict[str, Any]] = []
    try:
        for keys in args.keys:
            console.print(f"{keys:,} keys per operator")
            with tempfile.TemporaryDirectory(prefix="weir-elastic-") as folder:
                if args.spark:
                    many = (args.servers, args.rows, args.batches)
                    results += elastic_spark.measure(spark, Path(folder), keys, *many, console)
                else:
                    results += _measure(spark, Path(folder), keys, args, console)
    finally:
        spark.stop()
    return results


def _application(source: weir.Stream, process: bool) -> weir.Application:
    kept = {"n": "count", "note": "max(note)"}
    first = source.keyed("one", weir.Aggregate(emit="rows", **kept), name="one")  # type: ignore[arg-type]
    ends = [first.keyed("two", weir.Aggregate(**kept), name="two")]  # type: ignore[arg-type]
    if process:
        ends.append(source.keyed("one", Remember(), name="remembered"))
    return weir.Application(*ends)


def _measure(
    spark: Any, work: Path, keys: int, args: argparse.Namespace, console: Console
) -> list[dict[str, Any]]:
    feed = Feed(work / "data", keys)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(feed.folder))
    app = _application(weir.source(rows), args.process)
    place = f"{args.storage}/{work.name}" if args.storage else str(work / "checkpoint")
    options = dict(option.split("=", 1) for option in args.storage_option)

    def begin(servers: int) -> Any:
        return app.start(
            place,
            servers=servers,
            execution="live",
            storage_options=options,
            source_checkpoint=str(work / "offsets"),
        )

    query = begin(args.servers[0])
    for _ in feed.fill():
        query.process_all_available()
    out = []
    with _under_load(query, feed, args.rows):
        _wait(query, args.batches)
        for before, after in zip(args.servers, args.servers[1:], strict=False):
            out.append(_change(query, before, after, args.batches))
            out[-1] |= {
                "keys": keys,
                "state_mb": _megabytes(query),
                "storage": args.storage or "local",
                "process": args.process,
            }
            console.print(
                f"  {before} → {after} servers: interrupted for {out[-1]['interruption_s']:.2f} s "
                f"(median batch {out[-1]['median_s']:.2f} s)"
            )
    query.process_all_available()
    restarts = {}
    for servers in (args.servers[-1], args.servers[0]):
        query.stop()
        feed.some(args.rows)
        began = time.perf_counter()
        query = begin(servers)
        query.process_all_available()
        restarts[str(servers)] = time.perf_counter() - began
        console.print(
            f"  goes on with {servers} servers: the first batch is through in {restarts[str(servers)]:.2f} s"
        )
    lost, doubled = _compare(query, feed)
    query.stop()
    for one in out:
        one |= {"lost": lost, "doubled": doubled, "restart_s": restarts}
    return out


@contextmanager
def _under_load(query: Any, feed: Feed, rows: int) -> Iterator[None]:
    stopped, failed = threading.Event(), []

    def go() -> None:
        try:
            while not stopped.is_set():
                feed.some(rows)
                query.process_all_available()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    if failed:
        raise failed[0]


def _wait(query: Any, batches: int) -> None:
    last = query.progress.batch + batches
    while query.progress.batch < last:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)


def _change(query: Any, before: int, after: int, batches: int) -> dict[str, Any]:
    members = list(query._driver.runner._group._servers)
    memory = _memory()
    peak, done = dict(memory), threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for who, megabytes in _memory().items():
                peak[who] = max(peak[who], megabytes)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    since = query.progress.batch
    if after > before:
        query.scale_out(after - before)
    else:
        query.scale_in(before - after)
    _wait(query, batches)
    done.set()
    watching.join()
    recent = [p for p in query.recent_progress if p.batch > since - batches]
    at = next(i for i, p in enumerate(recent) if p.scaled and p.batch > since)
    seconds = [p.seconds.batch for p in recent]
    median = statistics.median(seconds[:at] + seconds[at + 2 :])
    gaps = np.diff([p.time for p in recent])
    group = query._driver.runner._group
    stayed = set(members) & set(group._servers) if group is not None else set()
    return {
        "from": before,
        "to": after,
        "median_s": median,
        "interruption_s": max(0.0, sum(seconds[at : at + 2]) - 2 * median),
        "longest_gap_s": float(gaps.max() - statistics.median(gaps)),
        "peak_mb": {who: peak[who] - memory[who] for who in memory},
        "bytes_copied": _copied(query),
        "restarted_servers": min(before, after) - len(stayed),
        "execution": recent[at].execution,
    }


def _copied(query: Any) -> int:
    """Return the bytes of state that the change wrote anew, with all that its batch wrote, if it wrote any."""
    batch = next(p.batch for p in reversed(query.recent_progress) if p.scaled)
    plan = query._driver.storage.read_document(f"plans/{batch:012d}-0000", "plan")
    if not plan["moves"] and not plan["rewrites"]:
        return 0
    return sum(p.state_bytes_written for p in query.recent_progress if p.batch == batch)


def _memory() -> dict[str, float]:
    """Return the memory of the driver and of the largest worker in MB, without files that are mapped."""
    workers = [p for p in descendants(os.getpid()) if "java" not in command(p)]
    return {"driver": _anonymous(os.getpid()), "server": max(map(_anonymous, workers), default=0.0)}


def _anonymous(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1e3
    return 0.0


def _megabytes(query: Any) -> float:
    manifest = query._driver.ledger.manifest
    return (
        sum(ref.bytes * ref.share for servers in manifest.values() for refs in servers for ref in refs) / 1e6
    )


def _compare(query: Any, feed: Feed) -> tuple[int, int]:
    lost = doubled = 0
    for name, column in (("one", "one"), ("two", "two")):
        state = query.state(name).select(column, "n").toArrow()
        key, n = state[column].to_numpy(), state["n"].to_numpy()
        truth = feed.counts if name == "one" else feed.counts[::-1]
        found = np.zeros(feed.keys, np.int64)
        np.add.at(found, key, n)
        lost += int(np.maximum(truth - found, 0).sum())
        doubled += int(np.maximum(found - truth, 0).sum()) + len(key) - len(np.unique(key))
    return lost, doubled


def show(result: list[dict[str, Any]], console: Console) -> None:
    columns = ["keys", "state_mb", "from", "to", "way", "median_s", "interruption_s", "longest_gap_s",
               "bytes_copied", "restarted_servers", "lost", "doubled"]  # fmt: skip
    columns = [name for name in columns if name in result[0]]
    table = (
        RichTable(*columns, "server + MB", "restart s") if "restart_s" in result[0] else RichTable(*columns)
    )
    for one in result:
        cells = [f"{one[name]:,.2f}" if isinstance(one[name], float) else f"{one[name]}" for name in columns]
        if "restart_s" in one:
            restarts = ", ".join(f"{n}: {seconds:.1f}" for n, seconds in one["restart_s"].items())
            cells += [f"{one['peak_mb']['server']:,.0f}", restarts]
        table.add_row(*cells)
    console.print(table)
