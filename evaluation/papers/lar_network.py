"""Shared by the figures of locality-aware routing that need a network: the application, on a lab, measured.

A (counts the first key) → B (counts the second). Tuples are born on the server of their first key, as in the paper: a
source delivers their numbers and keys (some 30 bytes), and the padding is made on A's server. So what crosses the
network with its padding does so between A and B. Padding is random bytes, which no compression makes smaller. Servers
are live ones. Checkpoints are written to the machine's disk and don't cross a link.

Bytes on the wire are the kernel's counters of the hosts' links, less what the driver sent. Weir's own account is
``bytes_exchanged`` in the progress. Throughput is rows over the time between commits, after a small first batch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
from lar_common import OUT, console
from weir_evaluation.bench.data import bodies
from weir_evaluation.bench.reconfigure import gain, speed
from weir_evaluation.lab import LabCluster
from weir_evaluation.routing import WorstCase

MODES = ["locality-aware", "hash-based", "worst-case"]
COLOUR = {"locality-aware": "#2471a3", "hash-based": "#7f8c8d", "worst-case": "#c0392b"}
SCHEMA = "k1 string, k2 string"
PADDED = {"k1": "string", "k2": "string", "padding": "binary"}
KEYS = 1000  # per server and operator: enough for the hash to spread them evenly
WARM_UP = 50  # rows per server in the first batch
BARE = 100  # times as many rows where they have no padding
COMMUNITIES = 60
UNCOUNTED = 2  # first batches of a run with a reconfiguration: a small one, and one while processes warm up


class Pad:
    """Gives every row its padding, on the server where it is."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        padding = bodies(batch.num_rows, self.size, np.random.default_rng())
        return {"k1": batch.column("k1"), "k2": batch.column("k2"), "padding": padding}


@dataclass
class LabSession:
    """A lab, a Spark session on it, and a folder to work in."""

    lab: LabCluster
    spark: Any
    work: Path
    runs: int = 0
    bandwidth: str = ""

    def at(self, bandwidth: str) -> None:
        """Gives every host's link another bandwidth."""
        if bandwidth != self.bandwidth:
            for host in self.lab.names:
                self.lab.slow(host, bandwidth)
            self.bandwidth = bandwidth

    def folder(self) -> Path:
        self.runs += 1
        return self.work / str(self.runs)

    def between_hosts(self) -> int:
        """Bytes that hosts got from each other so far."""
        traffic = self.lab.traffic()
        return sum(traffic[h][0] for h in self.lab.names) - traffic["driver"][1]


@dataclass
class Measured:
    """What the measured batches of a run did."""

    rows: int = 0
    seconds: float = 0.0
    exchanged: int = 0
    wire: int = 0
    local: int = 0
    remote: int = 0
    batches: list[dict[str, float]] = field(default_factory=list)

    def add(self, progress: Any, seconds: float, wire: int) -> None:
        self.rows += progress.rows
        self.seconds += seconds
        self.wire += wire
        self.exchanged += progress.bytes_exchanged
        self.local += progress.rows_local
        self.remote += progress.rows_exchanged
        self.batches.append(
            {
                "batch": progress.batch,
                "rows": progress.rows,
                "seconds": seconds,
                "wire": wire,
                "exchanged": progress.bytes_exchanged,
                "local": progress.rows_local,
                "remote": progress.rows_exchanged,
            }
        )

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            # the mean over batches where there are several, and its standard error
            **speed([b["rows"] / b["seconds"] for b in self.batches]),
            "rows": self.rows,
            "seconds": self.seconds,
            "bytes_exchanged": self.exchanged,
            "bytes_on_wire": self.wire,
            # rows between A and its Map stay; of those between A and B:
            "locality": 1 - self.remote / self.rows if self.rows else None,
            "batches": self.batches,
        }


def options(description: str, bandwidth: str = "10mbit", rows: int = 1000) -> argparse.ArgumentParser:
    """The options that all network figures share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bandwidth", default=bandwidth, help=f"of each host's link (default {bandwidth})")
    parser.add_argument(
        "--rows", type=int, default=rows, help=f"tuples per server and batch (default {rows})"
    )
    parser.add_argument("--batches", type=int, default=2, help="measured batches per point (default 2)")
    parser.add_argument("--full", action="store_true", help="all points of the paper's figure")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the plot and the JSON file")
    return parser


@contextlib.contextmanager
def network(hosts: int, bandwidth: str) -> Iterator[LabSession]:
    """A lab of our own, and Spark on it."""
    work = Path(tempfile.mkdtemp(prefix="weir-papers-"))
    try:
        with console.status(f"starting a lab of {hosts} hosts"), contextlib.ExitStack() as stack:
            lab = stack.enter_context(LabCluster(hosts, bandwidth, cores=2))  # a live server each
            # no server ever works on another's host, however long its own is busy
            spark = lab.session("papers", **{"spark.locality.wait": "300s"})
            later = stack.pop_all()
        with later:
            yield LabSession(lab, spark, work, bandwidth=bandwidth)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def pairs(rows: int, servers: int, locality: float, seed: int) -> pa.Table:
    """Keys of so many tuples; with probability ``locality`` both belong together."""
    rng = np.random.default_rng(seed)
    first = rng.permutation(rows) % servers  # the same number for each
    apart = (first + rng.integers(1, max(2, servers), rows)) % servers
    second = np.where(rng.random(rows) < locality, first, apart)
    columns = {}
    for name, group in (("k1", first), ("k2", second)):
        number = group + servers * rng.integers(0, KEYS, rows)
        columns[name] = pa.array([f"{name}-{x}" for x in number])
    return pa.table(columns)


def groupings(mode: str, servers: int) -> tuple[weir.routing.Grouping, weir.routing.Grouping]:
    """How A and B get their rows."""
    if mode == "hash-based":
        return weir.Hash(), weir.Hash()
    first, second = (
        weir.Table.of({f"{name}-{i}": i % servers for i in range(KEYS * servers)}) for name in ("k1", "k2")
    )
    return first, second if mode == "locality-aware" else WorstCase(second)


def write(folder: Path, tables: list[pa.Table]) -> Path:
    """One file per batch, read in order of age."""
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    return folder


def application(net: LabSession, data: Path, padding: int, first: Any = None, second: Any = None) -> Any:
    """A → padding → B."""
    stream = net.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
    return (
        weir.source(stream, "S")
        .keyed("k1", weir.Count(emit="rows"), name="A", routing=first)
        .map_batches(Pad(padding), PADDED, name="padding")
        .keyed("k2", weir.Count(), name="B", routing=second)
    )


def point(
    net: LabSession, *, servers: int, padding: int, locality: float, mode: str, rows: int, batches: int
) -> dict[str, Any]:
    """One point of a figure: throughput, and bytes by both accounts."""
    folder = net.folder()
    sizes = [WARM_UP, *[rows] * batches]
    tables = [pairs(size * servers, servers, locality, seed) for seed, size in enumerate(sizes)]
    app = application(net, write(folder / "data", tables), padding, *groupings(mode, servers))
    marks: list[tuple[float, int]] = []

    def sink(frame: Any, batch: int) -> None:
        marks.append((time.perf_counter(), net.between_hosts()))

    query = app.start(
        str(folder / "checkpoint"),
        servers=servers,
        prune=False,
        sink={"B": sink},
        trigger={"availableNow": True},
    )
    query.await_termination()
    measured = Measured()
    progress = {p.batch: p for p in query.recent_progress}
    for batch in range(1, batches + 1):
        (began, before), (ended, after) = marks[batch - 1], marks[batch]
        measured.add(progress[batch], ended - began, after - before)
    counted = sum(r["count"] for r in query.state("B").select("count").collect())
    if counted != sum(t.num_rows for t in tables):
        raise AssertionError(f"B counted {counted} rows of {sum(t.num_rows for t in tables)}")
    homes = [s.host for s in query.progress.servers]
    if len(set(homes)) < servers:
        raise AssertionError(f"servers share hosts ({homes}): what crosses between them is not measured")
    shutil.rmtree(folder)
    return {
        "servers": servers,
        "padding": padding,
        "locality": locality,
        "mode": mode,
        "bandwidth": net.bandwidth,
        "measured": measured.to_dict(),
        "rows_per_s": measured.rows_per_s,
        "link_to_core": link_to_core(net.bandwidth, padding, [progress[b] for b in range(1, batches + 1)]),
    }


def points(net: LabSession, args: argparse.Namespace, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several points, each told of when it is there, after a run of its own in which processes start and warm up."""
    found = []
    point(net, rows=args.rows, batches=1, **wanted[-1])
    for number, one in enumerate(wanted, 1):
        # without padding a batch must be long enough for its rows to count
        rows = args.rows if one["padding"] else BARE * args.rows
        got = point(net, rows=rows, batches=args.batches, **one)
        m = got["measured"]
        console.print(
            f"[{number}/{len(wanted)}] {one['mode']:14} n={one['servers']} locality {one['locality']:.0%} "
            f"padding {one['padding'] / 1000:g} kB: {got['rows_per_s']:8,.0f} tuples/s, "
            f"{m['bytes_on_wire'] / 1e6:6.1f} MB on the wire, {m['bytes_exchanged'] / 1e6:6.1f} MB by our account"
        )
        found.append(got)
    return found


def savings(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes that locality-aware routing saves against the hash: by our account, and on the wire."""
    by = {(p["servers"], p["padding"], p["locality"], p["mode"]): p["measured"] for p in found}
    out = []
    for (servers, padding, locality, mode), aware in by.items():
        hashed = by.get((servers, padding, locality, "hash-based"))
        if mode != "locality-aware" or hashed is None:
            continue
        said = hashed["bytes_exchanged"] - aware["bytes_exchanged"]
        seen = hashed["bytes_on_wire"] - aware["bytes_on_wire"]
        out.append(
            {
                "servers": servers,
                "padding": padding,
                "locality": locality,
                "speedup": aware["rows_per_s"] / hashed["rows_per_s"],
                "saved_by_account": said,
                "saved_on_wire": seen,
                "share_seen": seen / said if said > 0 else None,
            }
        )
    return out


def stream_of(data: str, keys: list[str], sizes: list[int]) -> list[pa.Table]:
    """The first rows of a recorded stream, cut into batches of these sizes."""
    table = pq.read_table(data, columns=keys).rename_columns(["k1", "k2"]).slice(0, sum(sizes))
    if table.num_rows < sum(sizes):
        raise SystemExit(f"{data} has {table.num_rows:,} rows; {sum(sizes):,} are needed")
    starts = np.cumsum([0, *sizes])
    return [table.slice(int(at), size) for at, size in zip(starts, sizes, strict=False)]


def steady_stream(sizes: list[int], locality: float, seed: int = 0) -> list[pa.Table]:
    """Made-up batches whose reachable locality hardly depends on the number of servers, of which there are a few.

    Both keys of a tuple belong to the same of :data:`COMMUNITIES` communities with probability ``locality``. As many
    communities can be spread evenly over 2 to 6 servers, each of them whole.
    """
    rng = np.random.default_rng(seed)
    tables = []
    for size in sizes:
        first = rng.integers(0, COMMUNITIES, size)
        second = np.where(rng.random(size) < locality, first, rng.integers(0, COMMUNITIES, size))
        columns = {
            name: pa.array([f"{name}-{c}-{k}" for c, k in zip(group, rng.integers(0, 10, size), strict=True)])
            for name, group in (("k1", first), ("k2", second))
        }
        tables.append(pa.table(columns))
    return tables


def reconfigured(
    net: LabSession, tables: list[pa.Table], *, servers: int, padding: int, turn: int, control: bool = False
) -> dict[str, Any]:
    """Throughput batch by batch; tables are learnt from the batches before ``turn`` and in force from then on.

    As in the paper, keys that no table lists go by their hash, and a table is adopted without weighing its cost. In a
    ``control`` nothing changes on the way. The first batches, :data:`UNCOUNTED`, are not counted.
    """
    folder = net.folder()
    app = application(net, write(folder / "data", tables), padding)
    marks: list[tuple[float, int]] = []
    ready = threading.Event()

    def sink(frame: Any, batch: int) -> None:
        marks.append((time.perf_counter(), net.between_hosts()))
        if not control and batch == turn - 1:  # the time that this takes counts for the batch that adopts it
            ready.wait(60)
            query.reconfigure(wait=True)

    query = app.start(
        str(folder / "checkpoint"),
        servers=servers,
        routing=weir.Locality(period=None, new_keys="hash", forecast=None),
        prune=False,
        sink={"B": sink},
        trigger={"availableNow": True},
    )
    ready.set()
    query.await_termination()
    progress = {p.batch: p for p in query.recent_progress}
    phases = {"before": Measured(), "reconfiguration": Measured(), "after": Measured()}
    for batch in range(UNCOUNTED, len(tables)):
        (began, start), (ended, end) = marks[batch - 1], marks[batch]
        phase = "before" if batch < turn else ("reconfiguration" if batch == turn else "after")
        phases[phase].add(progress[batch], ended - began, end - start)
    counted = sum(r["count"] for r in query.state("B").select("count").collect())
    if counted != sum(t.num_rows for t in tables):
        raise AssertionError(f"B counted {counted} rows of {sum(t.num_rows for t in tables)}")
    shutil.rmtree(folder)
    return {
        "servers": servers,
        "padding": padding,
        "bandwidth": net.bandwidth,
        "link_to_core": link_to_core(net.bandwidth, padding, list(progress.values())[UNCOUNTED:turn]),
        "moved_keys": sum(p.moved_keys or 0 for p in progress.values()),
        "phases": {name: m.to_dict() for name, m in phases.items()},
    }


def with_control(
    net: LabSession, tables: list[pa.Table], *, servers: int, padding: int, turn: int
) -> dict[str, Any]:
    """Run with a reconfiguration and without; the gain is what the first has gained over the second."""
    control = reconfigured(net, tables, servers=servers, padding=padding, turn=turn, control=True)
    run = reconfigured(net, tables, servers=servers, padding=padding, turn=turn)
    run |= {"control": control, "gain": gain(run["phases"], control["phases"])}
    one, two = run["phases"]["before"], run["phases"]["after"]
    still = control["phases"]["after"]["rows_per_s"] / control["phases"]["before"]["rows_per_s"]
    console.print(
        f"n={servers} padding {padding / 1000:g} kB at {net.bandwidth}: "
        f"locality {one['locality']:.2f} → {two['locality']:.2f}, {one['rows_per_s']:,.0f} → "
        f"{two['rows_per_s']:,.0f} tuples/s (control: {still:.2f} ×), gain {gained(run)}"
    )
    return run


def sizes(rows: int, servers: int, batches: int) -> tuple[list[int], int]:
    """Return how many tuples each batch of a run with a reconfiguration has, and the batch in which it happens.

    >>> sizes(10, 2, 3)
    ([100, 20, 20, 20, 20, 20, 20, 20, 20], 5)
    """
    turn = UNCOUNTED + batches
    return [WARM_UP * servers, *[rows * servers] * (turn + batches)], turn


def gained(run: dict[str, Any]) -> str:
    """The gain of a run over its control with its standard error.

    >>> gained({"gain": {"times": 1.5, "error": 0.04}})
    '1.50 ± 0.04 ×'
    """
    return f"{run['gain']['times']:.2f} ± {run['gain']['error']:.2f} ×"


def link_to_core(bandwidth: str, padding: int, batches: list[Any]) -> float | None:
    """How many times longer a link takes for a tuple than a core: seconds for its bytes over seconds of work on it.

    Work is what the servers were busy, over all operators. Where it is 1, a link carries as much as a core can feed.
    """
    rows, busy = sum(b.rows for b in batches), sum(s.busy for b in batches for s in b.servers)
    return padding * 8 / bits_per_s(bandwidth) / (busy / rows) if padding and busy else None


def bits_per_s(bandwidth: str) -> float:
    """A bandwidth as ``tc`` writes it, in bits per second.

    >>> bits_per_s("10mbit"), bits_per_s("1gbit")
    (10000000.0, 1000000000.0)
    """
    for unit, times in (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)):
        if bandwidth.endswith(unit):
            return float(bandwidth.removesuffix(unit)) * times
    raise SystemExit(f"--bandwidth {bandwidth}: expected a number with kbit, mbit or gbit, such as 10mbit")


def ratios(found: list[dict[str, Any]]) -> str:
    """The range of :func:`link_to_core` over several runs or points, to be stated beside a figure.

    >>> ratios([{"link_to_core": 27.2}, {"link_to_core": None}, {"link_to_core": 9.0}])
    'a link takes 9 to 27 times as long for a tuple as a core'
    """
    seen = sorted(f["link_to_core"] for f in found if f["link_to_core"])
    if not seen:
        return "tuples without padding: links hardly matter"
    return f"a link takes {seen[0]:.2g} to {seen[-1]:.2g} times as long for a tuple as a core"


def bound(run: dict[str, Any]) -> float:
    """The gain if nothing but bytes on the wire took time, and all links had the same share of them.

    Skewed keys make the hash load some links more than others, and the busiest one decides. Tables balance, too, so the
    gain may be greater than this.
    """
    one, two = run["phases"]["before"], run["phases"]["after"]
    return float(one["bytes_on_wire"] / one["rows"] / (two["bytes_on_wire"] / two["rows"]))
