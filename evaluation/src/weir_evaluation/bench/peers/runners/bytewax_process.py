"""The functions of ``weir bench process`` in Bytewax: ``stateful_batch`` on one worker, states as plain objects.

Run by Bytewax's own Python: ``bytewax_process.py STATE FILE…`` prints µs per row and a digest of what was emitted.
No recovery store: the state would be lost with the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any


def add(state: dict[str, Any], rows: list[Any]) -> int:
    state["n"] = n = state.get("n", 0) + sum(n for _, n in rows)
    return n


def count_pages(state: dict[str, Any], rows: list[Any]) -> int:
    for page, n in rows:
        state[page] = state.get(page, 0) + n
    return sum(state.values())


def keep_five(state: dict[str, Any], rows: list[Any]) -> int:
    last = state.setdefault("last", deque())
    for _, n in rows:
        last.append(n)
        if len(last) > 5:
            last.popleft()
    return sum(last)


FUNCTIONS = {"value": add, "dict": count_pages, "list": keep_five, "map": count_pages}


def main(state: str, files: list[str]) -> None:
    import bytewax.operators as op
    import pyarrow.parquet as pq
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import StatefulBatchLogic
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    function = FUNCTIONS[state]
    tables = [pq.read_table(file) for file in files]
    told: list[Any] = []

    class Part(StatefulSourcePartition):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(tables)

        def next_batch(self) -> list[Any]:
            table = next(self.left, None)
            if table is None:
                raise StopIteration
            users, pages, numbers = (table[name].to_pylist() for name in ("user", "page", "n"))
            return list(zip(users, zip(pages, numbers, strict=True), strict=True))

        def snapshot(self) -> None:
            return None

    class Source(FixedPartitionedSource):  # type: ignore[misc]
        def list_parts(self) -> list[str]:
            return ["all"]

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Part:
            return Part()

    class Logic(StatefulBatchLogic):  # type: ignore[misc]
        def __init__(self) -> None:
            self.state: dict[str, Any] = {}

        def on_batch(self, values: list[Any]) -> tuple[list[Any], bool]:
            return [function(self.state, values)], False

        def snapshot(self) -> Any:
            return self.state

    class Last(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            told.extend(items)

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Last:
            return Last()

    flow = Dataflow("process")
    op.output("out", op.stateful_batch("p", op.input("rows", flow, Source()), lambda state: Logic()), Sink())
    began = time.process_time()
    run_main(flow)
    spent = time.process_time() - began
    rows = sum(len(table) for table in tables)
    print(json.dumps({"micros": spent / rows * 1e6, "rows": len(told), "sum": sum(n for _, n in told)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
