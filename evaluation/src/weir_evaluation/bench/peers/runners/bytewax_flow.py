"""Two counts in Bytewax: ``stateful_batch`` twice, the operator that all of its stateful ones are made of.

One process per worker (threads would share one interpreter lock). Rows are read in batches, and a key's rows of a
batch are counted in one call. No recovery store: the state would be lost with the process.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def flow(order: dict[str, Any], passed: Any, totals: dict[str, Any]) -> Any:
    """The dataflow; totals are told when the input ends."""
    import bytewax.operators as op
    import pyarrow.parquet as pq
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import StatefulBatchLogic
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Files(StatefulSourcePartition):  # type: ignore[misc]
        def __init__(self, paths: list[str]) -> None:
            self._batches = (
                b for p in paths for b in pq.ParquetFile(p).iter_batches(order["options"]["batch"])
            )

        def next_batch(self) -> list[Any]:
            batch = next(self._batches, None)
            if batch is None:
                raise StopIteration
            k1, k2, payload = (column.to_pylist() for column in batch.columns)
            return list(zip(k1, zip(k2, payload, strict=True), strict=True))

        def snapshot(self) -> None:
            return None

    class Source(FixedPartitionedSource):  # type: ignore[misc]
        def list_parts(self) -> list[str]:
            return [str(i) for i in range(order["workers"])]

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Files:
            return Files(order["files"][int(for_part) :: order["workers"]])

    class Count(StatefulBatchLogic):  # type: ignore[misc]
        def __init__(self) -> None:
            self.count = 0

        def on_batch(self, values: list[Any]) -> tuple[list[Any], bool]:
            self.count += len(values)
            return values, False

        def on_eof(self) -> tuple[list[Any], bool]:
            return [(None, self.count)], True

        def snapshot(self) -> int:
            return self.count

    class CountLast(Count):
        def on_batch(self, values: list[Any]) -> tuple[list[Any], bool]:
            self.count += len(values)
            passed.add(len(values))
            return [], False

        def on_eof(self) -> tuple[list[Any], bool]:
            passed.note()
            return [self.count], True

    def total(key: str, count: int) -> bool:
        totals["A"].add(key, count)
        return False

    def by_second_key(rows: list[Any]) -> list[Any]:
        # a value is (k2, payload), but for the count at the end: (None, count)
        return [value for key, value in rows if value[0] is not None or total(key, value[1])]

    class Last(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            for key, count in items:
                totals["B"].add(key, count)

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Last:
            return Last()

    dataflow = Dataflow("two_counts")
    rows = op.input("rows", dataflow, Source())
    first = op.stateful_batch("A", rows, lambda state: Count())
    second = op.stateful_batch("B", op.flat_map_batch("k2", first, by_second_key), lambda state: CountLast())
    op.output("out", second, Sink())
    return dataflow


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on just now."""
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    import told
    from bytewax._bytewax import cluster_main

    order = told.job()
    if len(sys.argv) > 2:
        number, addresses, others = int(sys.argv[2]), sys.argv[3].split(","), []
    else:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(order["workers"])]
        command = [sys.executable, *sys.argv[:2]]
        others = [
            subprocess.Popen([*command, str(i), ",".join(addresses)]) for i in range(1, order["workers"])
        ]
        number = 0
    totals = {operator: told.Counts(order["work"], operator) for operator in ("A", "B")}
    cluster_main(flow(order, told.Passed(order["work"]), totals), addresses, number)
    if any(other.wait() for other in others):
        raise SystemExit("a worker process failed")


if __name__ == "__main__":
    main()
