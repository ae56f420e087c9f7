"""Two counts on an engine of the JVM: one of our programs in ``java/``, with the jars that Maven has fetched.

Before it starts, Parquet files become files of blocks (:func:`blocks`), so that no engine pays for a Parquet reader.
Runs in our own Python, which sets up what the engine needs around it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq


def blocks(order: dict[str, Any]) -> list[str]:
    """The same rows as plain files, made once: per row group their number, then the columns (:func:`column`)."""
    folder = Path(order["data"], "_blocks")  # Spark takes no notice of names that begin like this
    folder.mkdir(exist_ok=True)
    made = [folder / f"{Path(file).stem}.rows" for file in order["files"]]
    for file, path in zip(order["files"], made, strict=True):
        if not path.exists():
            with open(path.with_suffix(".tmp"), "wb") as out:
                parquet = pq.ParquetFile(file)
                for group in range(parquet.num_row_groups):
                    rows = parquet.read_row_group(group)
                    out.write(np.int32(len(rows)).tobytes())
                    for each in rows.columns:
                        out.writelines(column(each.combine_chunks()))
            path.with_suffix(".tmp").rename(path)
    return [str(path) for path in made]


def column(values: Any) -> tuple[bytes, memoryview]:
    """Where each value ends, 0 first, and all values in a row: the buffers of Arrow.

    >>> import pyarrow as pa
    >>> ends, data = column(pa.array(["no", "ab", "", "c"])[1:])
    >>> list(ends[::4]), bytes(data)
    ([0, 2, 2, 3], b'abc')
    """
    _, ends, data = values.buffers()
    ends = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    data = memoryview(data or b"")[ends[0] : ends[-1]]
    return (ends - ends[0]).tobytes(), data


def properties(order: dict[str, Any], **more: Any) -> str:
    """The order as a file that Java reads, of its own options, too; returns its path."""
    fields = {"work": order["work"], "workers": order["workers"], "rows": order["rows"]}
    fields |= order["options"] | {"files": r"\n".join(blocks(order))} | more
    path = Path(order["work"], "order.properties")
    path.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
    return str(path)


def java(order: dict[str, Any], main: str, *words: str) -> list[str]:
    """The command that runs a class of ours, with the memory that Spark and Weir get, too."""
    from weir_evaluation.bench.peers.environment import class_path, tool

    temporary = f"-Djava.io.tmpdir={order['work']}"
    path = ":".join(class_path(order["options"]["java"]))
    return [tool("java"), "-Xmx4g", temporary, "-cp", path, main, *words]


def flink(order: dict[str, Any]) -> None:
    command = java(order, "FlinkCounts", properties(order))
    os.execv(command[0], command)


def main() -> None:
    import told

    order = told.job()
    {"flink": flink}[order["options"]["java"]](order)


if __name__ == "__main__":
    main()
