"""Live servers beside step jobs: tiny batches, latency, rows per second, and recovery from a killed executor.

And what it costs them to look ahead, on streams where that gains something and where it does not.

All ways of running take turns in one sitting, and their results are compared. ``--quick`` tries everything within a
minute or two; its figures mean little.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

from weir_evaluation.bench.data import fitting_tables, write_pairs
from weir_evaluation.bench.peers.runners.spark_chain import SCHEMA, chain

HELP = "live servers beside step jobs: tiny batches, latency, rows per second, recovery; and looking ahead"
PARTS = ("tiny", "latency", "rows", "recovery", "look_ahead")
WAYS = ("jobs", "live")
SHARES = (0.1, 0.5, 0.8)
AHEAD = {"without": False, "with": True}
STREAMS = ("new topics", "stable")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument(
        "--batches", type=int, default=20, help="tiny batches per depth; the first are not counted"
    )
    parser.add_argument("--rows", type=int, default=800_000, help="rows per micro-batch without payload")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of rows per second; the median counts")
    parser.add_argument("--payload", type=int, action="append", help="bytes per row (default: 0, 1000, 8000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each latency measurement")
    parser.add_argument("--routing", choices=["hash", "table"], default="hash")
    parser.add_argument(
        "--encrypted", action="store_true", help="Spark encrypts its network, and so do live servers"
    )
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.quick:
        args.batches, args.rows, args.repeat, args.seconds = 6, 20_000, 1, 4.0
        args.payload = args.payload or [0, 1000]
    parts = args.only or PARTS
    result: dict[str, Any] = {}
    work = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    try:
        secret = {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)}
        settings = {"spark.network.crypto.enabled": "true", **secret} if args.encrypted else {}
        with _session(f"local[{args.servers + 2}]", args.servers, **settings) as spark:
            if "tiny" in parts:
                result["tiny"] = {str(d): _tiny(spark, work, d, args, console) for d in (2, 3, 5)}
            if "rows" in parts:
                where = "hosts" if os.environ.get("WEIR_MASTER") else "one_host"
                result["rows_per_s"], result["cpu_s_per_m"] = (
                    {where: part} for part in _rows_per_s(spark, work, args, console)
                )
            if "latency" in parts:
                result["latency"] = _latency(spark, work, args, console)
        if "look_ahead" in parts:
            with _session(f"local[{2 * args.servers + 2}]", args.servers) as spark:
                result["look_ahead"] = {s: _look_ahead(spark, work, s, args, console) for s in STREAMS}
        if "recovery" in parts:
            result["recovery_s"] = {"executor": _recovery(work, args, console)}
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return result


def show(result: dict[str, Any], console: Console) -> None:
    if "tiny" in result:
        table = RichTable(
            "operators", "jobs", "live", "bare", "live / jobs", title="seconds per batch of ten rows"
        )
        for depth, s in result["tiny"].items():
            ratio = f"{s['live'] / s['jobs']:.2f}"
            table.add_row(depth, f"{s['jobs']:.3f}", f"{s['live']:.3f}", f"{s['bare']:.3f}", ratio)
        console.print(table)
    for where, speeds in result.get("rows_per_s", {}).items():
        title = f"rows per second, {where}"
        table = RichTable("payload", "jobs", "live", "live / jobs", "CPU s per million rows", title=title)
        for payload, s in speeds.items():
            cpu = result["cpu_s_per_m"][where][payload]
            ratio = f"{s['live'] / s['jobs']:.2f}"
            used = f"{cpu['jobs']:.2f} → {cpu['live']:.2f}"
            table.add_row(f"{payload} B", f"{s['jobs']:,.0f}", f"{s['live']:,.0f}", ratio, used)
        console.print(table)
    if "latency" in result:
        table = RichTable(
            "part of the rate", "way", "p50", "p99", title="seconds from a row's file to its result"
        )
        for share, ways in result["latency"].items():
            for way, s in ways.items():
                table.add_row(share, way, f"{s['p50']:.3f}", f"{s['p99']:.3f}")
        console.print(table)
    if "look_ahead" in result:
        names = ("stream", "payload", "seconds without", "with", "with / without", "locality without", "with")
        table = RichTable(*names, title="looking ahead, per batch")
        for name, payloads in result["look_ahead"].items():
            for payload, s in payloads.items():
                seconds = [f"{s['seconds'][way]:.3f}" for way in AHEAD] + [f"{s['ratio']:.2f}"]
                table.add_row(name, f"{payload} B", *seconds, *(f"{s['locality'][way]:.2f}" for way in AHEAD))
        console.print(table)
    if "recovery_s" in result:
        console.print(f"a batch in which an executor is killed: {result['recovery_s']['executor']:.1f} s")


@contextmanager
def _session(master: str, servers: int, **settings: str) -> Iterator[Any]:
    from weir.spark.session import embedded

    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = embedded(
        master,
        **{
            "spark.sql.shuffle.partitions": str(servers),
            "spark.sql.streaming.stateStore.providerClass": store,
            **settings,
        },
    )
    try:
        yield spark
    finally:
        spark.stop()


def _drop(folder: Path, table: pa.Table, number: int) -> None:
    """Let a file appear all at once."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f".{number:06d}.parquet")
    (folder / f".{number:06d}.parquet").rename(folder / f"{number:06d}.parquet")


# ---------------------------------------------------------------------- tiny batches


def _tiny(spark: Any, work: Path, depth: int, args: argparse.Namespace, console: Console) -> dict[str, float]:
    """Seconds per batch of ten rows through a chain of counts, jobs and live servers taking turns batch by batch."""
    import weir

    names = [f"k{i}" for i in range(depth)]
    columns = ", ".join(f"{name} string" for name in names)
    rng = np.random.default_rng(depth)
    queries: dict[str, Any] = {}
    for way in WAYS:
        folder = work / f"tiny-{way}-{depth}"
        folder.mkdir()
        stream = weir.source(
            spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder))
        )
        for name in names:
            stream = stream.keyed(name, weir.Count(emit="rows"), name=f"count_{name}")
        queries[way] = stream.start(str(work / f"state-{way}-{depth}"), servers=args.servers, execution=way)
    bare, seconds = [], {way: list[float]() for way in WAYS}
    try:
        for number in range(args.batches):
            table = pa.table({name: pa.array(rng.integers(0, 50, 10)).cast(pa.string()) for name in names})
            for way, query in queries.items():
                _drop(work / f"tiny-{way}-{depth}", table, number)
                query.process_all_available()
                assert query.progress.execution == way, query.describe()
                seconds[way].append(query.progress.seconds.batch)
            bare.append(_bare(spark, work / f"tiny-jobs-{depth}" / f"{number:06d}.parquet", columns))
        answers = {
            way: [sorted(map(tuple, q.state(f"count_{n}").collect())) for n in names]
            for way, q in queries.items()
        }
        if answers["jobs"] != answers["live"]:
            raise AssertionError(f"depth {depth}: the ways of running disagree")
    finally:
        for query in queries.values():
            query.stop()
    skip = args.batches // 4
    out = {way: statistics.median(s[skip:]) for way, s in {**seconds, "bare": bare}.items()}
    console.print(f"tiny, {depth} operators: " + ", ".join(f"{way} {s:.3f} s" for way, s in out.items()))
    return out


def _bare(spark: Any, file: Path, columns: str) -> float:
    """Seconds of a Spark job of one stage with a Python task, on the same rows."""

    def same(batches: Any) -> Any:
        yield from batches

    frame = spark.read.schema(columns).parquet(str(file)).mapInArrow(same, columns)
    began = time.perf_counter()
    frame.collect()
    return time.perf_counter() - began


# ---------------------------------------------------------------------- rows per second


def _two_counts(spark: Any, data: Path, args: argparse.Namespace, files: int = 2) -> Any:
    import weir

    first, second = fitting_tables(args.keys, args.servers) if args.routing == "table" else (None, None)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(data))
    rows = weir.source(stream).keyed("k1", weir.Count(emit="rows"), name="A", routing=first)
    return rows.keyed("k2", weir.Count(), name="B", routing=second)


def _rows_per_s(
    spark: Any, work: Path, args: argparse.Namespace, console: Console
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Rows per second of whole batches, as ``weir bench engine`` counts them, and CPU seconds of the machine.

    CPU time is that of all processes on it, of hosts of the lab, too, start and end of the query included.
    """
    args.keys = 2_000
    out: dict[str, dict[str, float]] = {}
    cpu: dict[str, dict[str, float]] = {}
    for payload in args.payload or [0, 1000, 8000]:
        rows = args.rows if payload == 0 else max(10_000, args.rows * 250 // max(1000, payload))
        data = work / f"data-{payload}"
        shape = {"keys": args.keys, "servers": args.servers, "locality": 0.8, "payload": payload}
        write_pairs(data, batches=5, rows=rows, **shape)
        speeds, answers = {way: list[float]() for way in WAYS}, {}
        used = {way: list[float]() for way in WAYS}
        for turn in range(args.repeat):
            for way in WAYS:
                folder, before = work / f"rows-{way}-{payload}-{turn}", _machine_cpu()
                query = _two_counts(spark, data, args).start(
                    str(folder),
                    servers=args.servers,
                    prune=False,
                    execution=way,
                    trigger={"availableNow": True},
                )
                query.await_termination()
                used[way].append(1e6 * (_machine_cpu() - before) / sum(p.rows for p in query.recent_progress))
                counted = query.recent_progress[1:]
                assert {p.execution for p in counted} == {way}, query.describe()
                speeds[way].append(sum(p.rows for p in counted) / sum(p.seconds.batch for p in counted))
                answers[way] = [sorted(map(tuple, query.state(name).collect())) for name in "AB"]
                console.print(f"payload {payload} B, {way}, round {turn + 1}: {speeds[way][-1]:,.0f} rows/s")
                shutil.rmtree(folder, ignore_errors=True)
        if answers["jobs"] != answers["live"]:
            raise AssertionError(f"payload {payload}: the ways of running disagree")
        out[str(payload)] = {way: statistics.median(s) for way, s in speeds.items()}
        cpu[str(payload)] = {way: statistics.median(s) for way, s in used.items()}
        shutil.rmtree(data)
    return out, cpu


def _machine_cpu() -> float:
    """Return the seconds that all cores of this machine have worked."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------- latency


def _latency(spark: Any, work: Path, args: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    """Seconds from the writing of a row's file to the sink's receipt of its result, at parts of a sustainable rate.

    A file comes every tenth of a second; all files that are there are a batch. All ways sustain the rate: it is that of
    the slowest, Spark's own chain. Before, every way runs for half as long unmeasured: the JVM compiles what is new to
    it for some twenty batches, and whoever came first would pay for all.
    """
    ways: dict[str, Callable[..., Any]] = {"live": _start_weir, "jobs": _start_weir, "spark": _start_spark}
    rate = _sustainable(spark, work, args)
    console.print(f"sustainable: {rate:,.0f} rows/s")
    for way, starter in ways.items():
        _ages(spark, work / f"{way}-warm", starter, way, int(rate * SHARES[0]), args, args.seconds / 2)
    out: dict[str, dict[str, Any]] = {}
    for share in SHARES:
        ages: dict[str, list[float]] = {way: [] for way in ways}
        for way in [*ways, *reversed(ways)]:  # to and fro: whoever came first would have the coldest JVM
            folder = work / f"{way}-{share}-{len(ages[way])}"
            ages[way] += _ages(spark, folder, ways[way], way, int(rate * share), args, args.seconds / 2)
        out[str(share)] = {
            way: {"p50": float(np.percentile(a, 50)), "p99": float(np.percentile(a, 99))}
            for way, a in ages.items()
        }
        for way, said in out[str(share)].items():
            console.print(f"latency at {share:.0%}, {way}: p50 {said['p50']:.3f} s, p99 {said['p99']:.3f} s")
    return out


def _sustainable(spark: Any, work: Path, args: argparse.Namespace) -> float:
    """Rows per second that Spark's own chain gets through, in batches of some thousand rows."""
    data = work / "sustainable"
    rows = 4_000 if args.quick else 20_000
    write_pairs(data, batches=4, rows=rows, keys=1000, servers=args.servers, locality=0.8, payload=0)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(data))
    writer = chain(stream).writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(work / "sustainable-state")).start()
    query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"]][1:]
    return (
        1000 * sum(p["numInputRows"] for p in done) / sum(p["durationMs"]["triggerExecution"] for p in done)
    )


def _ages(
    spark: Any, folder: Path, starter: Any, way: str, rate: int, args: argparse.Namespace, seconds: float
) -> list[float]:
    """Feed a query for some seconds; return how old each file's rows were when their results were delivered."""
    data, ages, written = folder / "data", list[float](), dict[str, float]()
    data.mkdir(parents=True)
    lock, warm = threading.Lock(), threading.Event()

    def done(marks: list[str]) -> None:
        now = time.perf_counter()
        with lock:
            ages.extend(now - written.pop(m) for m in marks if m in written)
        warm.set()

    query = starter(spark, data, folder, way, args, done)
    rows = max(1, rate // 10)
    rng = np.random.default_rng(0)
    try:
        number, begun = 0, time.perf_counter()
        first = True
        while first or time.perf_counter() - begun < seconds:
            mark = f"file {number}"
            keys = [pa.array(rng.integers(0, 1000, rows)).cast(pa.string()) for _ in range(2)]
            # the second key of one row names the file: its count is delivered with the results of all others
            second = pa.concat_arrays([keys[1][1:], pa.array([mark])])
            table = pa.table({"k1": keys[0], "k2": second, "payload": pa.nulls(rows, pa.binary())})
            with lock:
                written[mark] = time.perf_counter()
            _drop(data, table, number)
            number += 1
            if first:
                warm.wait(120)
                time.sleep(0.5)
                first, begun = False, time.perf_counter()
            time.sleep(max(0.0, begun + 0.1 * number - time.perf_counter()) if number > 1 else 0.0)
        end = time.monotonic() + 60
        while written and time.monotonic() < end:
            time.sleep(0.05)
        if written:
            raise AssertionError(f"{way}: {len(written)} files have no result after a minute")
    finally:
        query.stop()
    return ages[1:]


def _start_weir(spark: Any, data: Path, folder: Path, way: str, args: argparse.Namespace, done: Any) -> Any:
    args.keys = 1000
    app = _two_counts(spark, data, args, files=100)

    def sink(frame: Any, batch: int) -> None:
        done([row.k2 for row in frame.where("k2 like 'file %'").collect()])

    return app.start(str(folder / "state"), servers=args.servers, execution=way, sink=sink)


def _start_spark(spark: Any, data: Path, folder: Path, way: str, args: argparse.Namespace, done: Any) -> Any:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 100).parquet(str(data))

    def sink(frame: Any, batch: int) -> None:
        done([row.k2 for row in frame.where("k2 like 'file %'").collect()])

    writer = chain(stream).writeStream.outputMode("update").foreachBatch(sink)
    return writer.option("checkpointLocation", str(folder / "state")).start()


# ---------------------------------------------------------------------- looking ahead


def _look_ahead(
    spark: Any, work: Path, name: str, args: argparse.Namespace, console: Console
) -> dict[str, dict[str, Any]]:
    """Seconds of a batch, and locality, with and without: two queries that take turns on the same files."""
    import weir

    out: dict[str, dict[str, Any]] = {}
    for payload in args.payload or [0, 1000]:
        rows = args.rows if payload == 0 else args.rows // 4
        data = work / f"ahead {name} {payload}"
        queries = {}
        for way, ahead in AHEAD.items():
            (data / way).mkdir(parents=True)
            stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(data / way))
            counts = weir.source(stream).keyed("k1", weir.Count(emit="rows"), name="A")
            app = counts.keyed("k2", weir.Count(), name="B")
            routing, state = weir.Locality(period=4, look_ahead=ahead), str(work / f"{data.name} {way}")
            terms = {"servers": args.servers, "prune": False, "execution": "live"}
            queries[way] = app.start(state, routing=routing, **terms)
        try:
            done = _in_turns(queries, data, name, rows, payload, args)
            answers = [[sorted(map(tuple, q.state(o).collect())) for o in "AB"] for q in queries.values()]
            if answers[0] != answers[1]:
                raise AssertionError(f"{name}: with and without looking ahead, results differ")
        finally:
            for query in queries.values():
                query.stop()
        pairs = zip(*(done[way] for way in AHEAD), strict=True)
        seconds = {way: statistics.median(p.seconds.batch for p in done[way]) for way in AHEAD}
        locality = {way: statistics.mean(p.edges["A → B"].locality for p in done[way]) for way in AHEAD}
        moved = {way: statistics.mean(p.moved_keys for p in done[way]) for way in AHEAD}
        ratio = statistics.median(after.seconds.batch / before.seconds.batch for before, after in pairs)
        out[str(payload)] = {"seconds": seconds, "ratio": ratio, "locality": locality, "moved_keys": moved}
        console.print(f"looking ahead, {name}, {payload} B: {out[str(payload)]}")
        shutil.rmtree(data)
    return out


def _in_turns(
    queries: dict[str, Any], data: Path, name: str, rows: int, payload: int, args: argparse.Namespace
) -> dict[str, list[Any]]:
    """Feed both the same batches, one after the other; return the progress of those that are counted."""
    done: dict[str, list[Any]] = {way: [] for way in queries}
    for number in range(args.batches):
        halves = {half: _made_up(name, rows // 2, payload, half) for half in (2 * number, 2 * number + 1)}
        for way in (*queries, *reversed(queries))[2 * (number % 2) :][:2]:
            both = data / f".{way}-{number}"
            for half, table in halves.items():
                _drop(both, table, half)
            for half in halves:
                (both / f"{half:06d}.parquet").rename(data / way / f"{half:06d}.parquet")
            queries[way].process_all_available()
            assert queries[way].progress.execution == "live", queries[way].describe()
        last = {way: query.progress for way, query in queries.items()}
        # Spark may have listed the files between the two moves, and made two batches
        if number >= args.batches // 3 and {p.rows for p in last.values()} == {
            sum(map(len, halves.values()))
        }:
            for way, progress in last.items():
                done[way].append(progress)
    return done


def _made_up(name: str, rows: int, payload: int, seed: int) -> pa.Table:
    """Rows of 1,000 first keys; second keys are each of one first key, and all new with every batch or always the same.

    A tenth of the rows has a second key of any other.
    """
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 1000, rows)
    of = np.where(rng.random(rows) < 0.1, rng.integers(0, 1000, rows), first)
    second = of * 10 + rng.integers(0, 10, rows) + (10_000 * (seed // 2) if name == "new topics" else 0)
    columns = {"k1": pa.array(first).cast(pa.string()), "k2": pa.array(second).cast(pa.string())}
    filler = pa.array([b"x" * payload] * rows, pa.binary()) if payload else pa.nulls(rows, pa.binary())
    return pa.table({**columns, "payload": filler})


# ---------------------------------------------------------------------- recovery


def _recovery(work: Path, args: argparse.Namespace, console: Console) -> float:
    """Seconds of a batch in the middle of which an executor is killed, on a cluster of processes."""
    import weir

    marker = work / "killed"

    def dies_once(batch: Any) -> Any:
        import signal

        if (work / "recovery" / "000002.parquet").exists() and not marker.exists():
            marker.touch()
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
            os.kill(executor, signal.SIGKILL)
            time.sleep(60)
        return batch

    data = work / "recovery"
    data.mkdir()
    with _session("local-cluster[3,2,1024]", args.servers, **{"spark.executor.memory": "1g"}) as spark:
        stream = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).parquet(str(data))
        app = (
            weir.source(stream)
            .keyed("k", weir.Count(emit="rows"), name="A")
            .map_batches(dies_once, routing=weir.Shuffle())
        )
        app = app.keyed("k", weir.Count(emit="rows"), name="B")
        query = app.start(str(work / "recovery-state"), servers=args.servers, execution="live")
        try:
            for number in range(5):
                _drop(data, pa.table({"k": [f"key {i % 100}" for i in range(10_000)]}), number)
                query.process_all_available()
            total = sum(row["count"] for row in query.state("B").collect())
            if total != 50_000:
                raise AssertionError(f"{total} rows were counted, not 50000")
            progress = query.recent_progress
            ways = [p.execution for p in progress]
            console.print(
                f"recovery: batches ran {ways}, {[round(p.seconds.batch or 0, 2) for p in progress]} s"
            )
            assert progress[2].ran_again
            return progress[2].seconds.batch or 0.0
        finally:
            query.stop()
