"""The functions of ``weir bench process`` on Spark: in Weir and in Spark's stateful operators, on the same files."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from weir_evaluation.bench.process import IDLE, MINUTE, Stream, application

WARM_UP = 5  # micro-batches of each way that are not counted: processes start, and compile
BOTH_HAVE = ("value", "dict", "list", "map", "timers")
WHY_NOT = {
    "window": "Spark's stateful operators have no windows of their own",
    "vector": "Spark's stateful operators are called key by key",
}
OUTPUT = "user string, n long"


def beside_spark(
    states: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[dict[str, Any]]:
    """Yield µs of wall time per row for each kind of state: the median of batches, and each of them.

    Every way gets the same files, a batch each, and the rows that it emits as an Arrow table in ``foreachBatch``.
    """
    from weir.spark.session import embedded

    spark = embedded(
        "local[4]",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.driver.memory": "4g",
        },
    )
    work = Path(tempfile.mkdtemp(prefix="weir-bench-process-"))
    try:
        for state in states:
            data = work / state
            _write(Stream(args.spark_keys, args.rows_per_key), data, state == "timers", args.spark_batches)
            ways = {"weir": _weir}
            if state in BOTH_HAVE:
                ways |= {"in_pandas": _in_pandas, "by_row": _by_row}
            found: dict[str, Any] = {"batches": {}}
            answers = {}
            for way, measure in ways.items():
                progress, answers[way] = measure(spark, state, data, work / f"{state}-{way}")
                costs = [1000 * p["durationMs"]["triggerExecution"] / p["numInputRows"] for p in progress]
                costs = costs[WARM_UP : WARM_UP + args.spark_batches]
                found[way], found["batches"][way] = statistics.median(costs), [round(c, 1) for c in costs]
                console.print(f"{state:7} on Spark, {way}: {found[way]:,.1f} µs per row")
            if any(answer != answers["weir"] for answer in answers.values()):
                raise AssertionError(f"{state}: on Spark, the results differ")
            if state not in BOTH_HAVE:
                found |= {"in_pandas": None, "by_row": None, "why": WHY_NOT.get(state, "not measured")}
            yield {k: round(v, 1) if isinstance(v, float) else v for k, v in found.items()}
    finally:
        shutil.rmtree(work, ignore_errors=True)
        spark.stop()


def _write(stream: Stream, folder: Path, ends: bool, batches: int) -> None:
    folder.mkdir(parents=True)
    tables = [stream.table(batch) for batch in range(WARM_UP + batches)]
    for later in (60, 120) if ends else ():  # hours after which every timer has gone off
        at = pa.array([later * 60 * MINUTE]).cast(pa.timestamp("us", "UTC"))
        tables.append(pa.table({"user": ["end"], "page": [""], "n": [0], "at": at}))
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:04d}.parquet")


def _stream(spark: Any, data: Path) -> Any:
    schema = "user string, page string, n long, at timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(data))


def _with_rows(query: Any) -> list[Any]:
    """Return the progress of the batches that had rows."""
    return [p for p in query.recentProgress if p["numInputRows"]]


def _weir(spark: Any, state: str, data: Path, folder: Path) -> tuple[list[Any], Any]:
    import weir

    told: list[tuple[str, int]] = []
    query = application(state, weir.source(_stream(spark, data), "rows")).start(
        str(folder),
        servers=2,
        trigger={"availableNow": True},
        sink=lambda frame, batch: told.extend(_pairs(frame)),
    )
    query.await_termination()
    return _with_rows(query.spark_query), _answer(state, told)


def _pairs(frame: Any) -> list[tuple[str, int]]:
    table = frame.toArrow()
    return list(zip(table["user"].to_pylist(), table["n"].to_pylist(), strict=True))


def _answer(state: str, told: list[tuple[str, int]]) -> Any:
    """Return what results must agree in; visits are told in other batches here and there, with the same sums."""
    if state not in ("timers", "window"):
        return sorted(told)
    sums: dict[str, int] = {}
    for user, n in told:
        sums[user] = sums.get(user, 0) + n
    return sums


def _in_pandas(spark: Any, state: str, data: Path, folder: Path) -> tuple[list[Any], Any]:
    import pandas as pd

    def rows_of(frames: Iterator[Any]) -> list[Any]:
        return [row for frame in frames for row in frame.itertuples(index=False)]

    def emit(key: Any, n: int) -> Any:
        return pd.DataFrame({"user": [key[0]], "n": [n]})

    return _spark(spark, state, data, folder, "transformWithStateInPandas", rows_of, emit)


def _by_row(spark: Any, state: str, data: Path, folder: Path) -> tuple[list[Any], Any]:
    from pyspark.sql import Row

    def emit(key: Any, n: int) -> Any:
        return Row(user=key[0], n=n)

    return _spark(spark, state, data, folder, "transformWithState", list, emit)


def _spark(
    spark: Any, state: str, data: Path, folder: Path, method: str, rows_of: Any, emit: Any
) -> tuple[list[Any], Any]:
    told: list[tuple[str, int]] = []
    frame = _stream(spark, data)
    if state == "timers":
        frame = frame.withWatermark("at", "0 seconds")
    processor = _processors(rows_of, emit)[state]()
    mode = "eventTime" if state == "timers" else "none"
    made = getattr(frame.groupBy("user"), method)(processor, OUTPUT, "update", mode)
    writer = made.writeStream.outputMode("update").foreachBatch(
        lambda frame, batch: told.extend(_pairs(frame))
    )
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    return _with_rows(query), _answer(state, [pair for pair in told if pair[0] != "end"])


def _processors(rows_of: Any, emit: Any) -> dict[str, Any]:
    """Return the operators in Spark's words; what they get as rows, and emit, is for the caller to say."""
    from pyspark.sql.streaming import StatefulProcessor

    class Processor(StatefulProcessor):  # type: ignore[misc]
        def close(self) -> None:
            pass

    class Value(Processor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            before = self.n.get()
            n = (before[0] if before else 0) + sum(int(row.n) for row in rows_of(rows))
            self.n.update((n,))
            yield emit(key, n)

    class Dict(Processor):
        def init(self, handle: Any) -> None:
            self.counts = handle.getValueState("counts", "counts map<string,bigint>")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            before = self.counts.get()
            counts = dict(before[0]) if before else {}
            for row in rows_of(rows):
                counts[row.page] = counts.get(row.page, 0) + int(row.n)
            self.counts.update((counts,))
            yield emit(key, sum(counts.values()))

    class List(Processor):
        def init(self, handle: Any) -> None:
            self.last = handle.getListState("last", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            last = [value[0] for value in self.last.get()] + [int(row.n) for row in rows_of(rows)]
            self.last.put([(n,) for n in last[-5:]])
            yield emit(key, sum(last[-5:]))

    class Map(Processor):
        def init(self, handle: Any) -> None:
            self.counts = handle.getMapState("counts", "page string", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in rows_of(rows):
                before = self.counts.getValue((row.page,))
                self.counts.updateValue((row.page,), ((before[0] if before else 0) + int(row.n),))
            yield emit(key, sum(int(value[0]) for value in self.counts.values()))

    class Visits(Processor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.visit = handle.getValueState("visit", "n long, leaves long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            n, leaves = self.visit.get() or (0, 0)
            if leaves:
                self.handle.deleteTimer(leaves)
            for row in rows_of(rows):
                n, leaves = n + int(row.n), max(leaves, _millis(row.at + IDLE))
            self.visit.update((n, leaves))
            self.handle.registerTimer(leaves)
            yield from ()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            n, _ = self.visit.get() or (0, 0)
            self.visit.update((0, 0))
            yield emit(key, n)

    return {"value": Value, "dict": Dict, "list": List, "map": Map, "timers": Visits}


def _millis(time: Any) -> int:
    return int(time.timestamp() * 1000)
