"""Two counts in PyFlink: a ``KeyedProcessFunction`` with keyed ``ValueState`` twice, checkpointed exactly once.

PyFlink has no source in Python, and the Parquet format is not in its package. So the source gives pieces of files,
a ``flat_map`` reads them with Arrow, and Flink runs it in the same Python process as the first key's extraction:
the rows are born in Python, which spares them one way through the JVM.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def build(order: dict[str, Any]) -> Any:
    """The job, ready to be executed."""
    import told
    from pyflink.common import Configuration, Types
    from pyflink.datastream import FlatMapFunction, KeyedProcessFunction, StreamExecutionEnvironment
    from pyflink.datastream.state import ValueStateDescriptor

    work, last_moment = order["work"], 2**63 - 1

    class Rows(FlatMapFunction):  # type: ignore[misc]
        """A piece of a file becomes its rows."""

        def flat_map(self, piece: Any) -> Any:
            import pyarrow.parquet as pq

            path, group = piece
            columns = pq.ParquetFile(path).read_row_group(group).columns
            return zip(*(column.to_pylist() for column in columns), strict=True)

    class Count(KeyedProcessFunction):  # type: ignore[misc]
        """Counts a key's rows and passes them on; a timer at the end of the input writes the count down."""

        name = "A"

        def open(self, context: Any) -> None:
            self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
            self.totals = told.Counts(work, self.name)

        def process_element(self, value: Any, context: Any) -> Any:
            self.add_one(context)
            yield value

        def add_one(self, context: Any) -> None:
            before = self.count.value()
            if before is None:
                context.timer_service().register_event_time_timer(last_moment)
                before = 0
            self.count.update(before + 1)

        def on_timer(self, timestamp: int, context: Any) -> Any:
            self.totals.add(context.get_current_key(), self.count.value())
            return ()

    class CountLast(Count):
        """Counts a key's rows."""

        name = "B"

        def open(self, context: Any) -> None:
            super().open(context)
            self.passed = told.Passed(work)

        def process_element(self, value: Any, context: Any) -> Any:
            self.add_one(context)
            self.passed.add(1)
            return ()

        def on_timer(self, timestamp: int, context: Any) -> Any:
            self.passed.note()
            return super().on_timer(timestamp, context)

    options = order["options"]
    settings = {
        "python.execution-mode": options["mode"],
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "python.state.cache-size": "100000",
        "python.fn-execution.bundle.size": str(options["bundle"]),
        "python.fn-execution.bundle.time": "1000",
        "pipeline.object-reuse": "true",
        "execution.checkpointing.interval": f"{options['checkpoint_seconds']}s",
        "execution.checkpointing.dir": "file://" + os.path.join(work, "checkpoints"),
        "restart-strategy.type": "none",  # a failure shall be seen, not hidden by trying again
        "rest.bind-address": "127.0.0.1",
    }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(order["workers"])
    piece = Types.TUPLE([Types.STRING(), Types.INT()])
    row = Types.TUPLE([Types.STRING(), Types.STRING(), Types.PICKLED_BYTE_ARRAY()])
    (
        env.from_collection(pieces(order["files"]), type_info=piece)
        .rebalance()
        .flat_map(Rows(), output_type=row)
        .key_by(lambda value: value[0], key_type=Types.STRING())
        .process(Count(), output_type=row)
        .key_by(lambda value: value[1], key_type=Types.STRING())
        .process(CountLast(), output_type=Types.INT())
        .print()
    )
    return env


def pieces(files: list[str]) -> list[tuple[str, int]]:
    """Every row group of every file."""
    import pyarrow.parquet as pq

    return [(path, group) for path in files for group in range(pq.ParquetFile(path).num_row_groups)]


def main() -> None:
    import told

    build(told.job()).execute("two counts")


if __name__ == "__main__":
    main()
