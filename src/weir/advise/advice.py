"""Advise on a recorded stream: count it, judge tables learnt from it, recommend a routing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from weir.advise.counting import Keys, count, is_remote, key_columns
from weir.advise.counts import Counted, Question
from weir.advise.judge import STEPS, judge
from weir.advise.recommendation import recommend
from weir.advise.trial import Trial
from weir.errors import WeirError
from weir.hashing import hash_columns
from weir.routing.table import Table
from weir.routing.table_file import HASH, SERVER


def advise(
    data: str | os.PathLike[str],
    *,
    keys: Keys,
    servers: int,
    time: str | None = None,
    operators: str | Sequence[str] | None = None,
    alpha: float = 1.03,
    sample: int | None = None,
    payload: float | None = None,
    capacity: int = 5_000_000,
    out: str | os.PathLike[str] | None = None,
    master: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int], None] = lambda step, steps: None,
) -> dict[str, Any]:
    """Return what locality-aware routing would gain on recorded data, and what to do about it.

    Tables are learnt from earlier rows and judged by later ones. The result is what ``weir advise --json`` prints;
    docs/advise.md explains its figures.

    Parameters
    ----------
    data
        A Parquet file or folder, a CSV file, or ``table:NAME`` for a table that Spark knows.
    keys
        The key of each operator, in the order in which rows pass the operators: a column, or a list of columns.
        A text with commas is read as on the command line.
    servers
        The number of servers that the query will have.
    time
        The column that orders rows; the order of the file by default.
    operators
        Names of the operators; those of their keys by default.
    alpha
        The load that a server may have, over the average.
    sample
        Count about so many rows, drawn at random.
    payload
        The bytes of a row on the network; measured by default.
    capacity
        Most pairs and keys to keep.
    out
        The folder to write the tables to start with to, one file per operator.
    master
        The Spark to count on. By default files of up to 1 GB are counted without Spark.
    seed
        Fixes what is drawn at random.
    progress
        Called with each step of the work as it begins, and with the number of steps.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> posts = pa.table({"place": [i % 8 for i in range(800)], "topic": [i % 8 + 8 for i in range(800)]})
    >>> file = tempfile.mkdtemp() + "/posts.parquet"
    >>> pq.write_table(posts, file)
    >>> result = advise(file, keys=["place", "topic"], servers=2)
    >>> result["table"]["locality"], result["recommendation"]["verdict"]
    (1.0, 'start')
    """
    data = os.fspath(data)
    out = None if out is None else os.fspath(out)
    _check(data, servers, alpha, {"sample": sample, "payload": payload, "capacity": capacity})
    key_columns(keys, operators)
    if out is not None:
        _check_folder(out)

    def question(columns: Sequence[str]) -> Question:
        return Question(data, key_columns(keys, operators, columns), time, sample, capacity, seed=seed)

    counted = count(data, question, master)
    if len(counted.slices) < 2:
        raise WeirError(
            f"{data}: all rows have the same time, so nothing can be learnt from earlier ones and judged by "
            "later ones; leave time out, or give more rows"
        )
    trial = Trial(counted, servers, alpha, seed=seed)
    steps = STEPS + len(counted.slices)
    figures, tables = judge(trial, lambda step: progress(step, steps), payload)
    result: dict[str, Any] = {"data": data, "recommendation": recommend(figures, alpha), **figures}
    if out is not None:
        result |= {"out": out, "tables": _save(counted, tables, out)}
    return result


def _check(data: str, servers: int, alpha: float, positive: dict[str, float | None]) -> None:
    """Refuse parameters that cannot work, before anything is read."""
    if not isinstance(servers, Integral) or servers < 2:
        raise WeirError(f"servers {servers!r}: on one server every row is local already; give 2 or more")
    if not isinstance(alpha, Real) or alpha < 1:
        raise WeirError(f"alpha {alpha!r}: no server can stay below the average; give 1 or more")
    for name, value in positive.items():
        if value is not None and (not isinstance(value, Real) or value <= 0):
            raise WeirError(f"{name} {value!r}: give a number above 0, or leave it out")
    if not is_remote(data) and not Path(data).exists():
        raise WeirError(f"no data at {data}: check the path, or write table:NAME for a Spark table")


def _save(counted: Counted, tables: Sequence[Table], folder: str) -> dict[str, str]:
    """Write one readable table per operator, for ``weir.Locality(tables=folder)``; return the files by operator."""
    files = {}
    for keys, table in zip(counted.keys, tables, strict=True):
        servers = table.find(hash_columns(keys.columns))
        listed = servers >= 0
        # columns of these names would collide with the table's own; only their types matter to the engine
        names = [f"key_{name}" if name in (HASH, SERVER) else name for name in keys.column_names]
        readable = keys.filter(pa.array(listed)).rename_columns(names)
        file = f"{folder.rstrip('/')}/{table.operator}.arrow"
        Table.from_keys(
            readable, servers[listed].astype(np.int32), n=table.n, operator=table.operator, version=1
        ).save(file)
        files[table.operator] = file
    return files


def _check_folder(folder: str) -> None:
    """Create a folder, on any file system that pyarrow reaches, and refuse one that cannot be written to."""
    try:
        uri = folder if "://" in folder else str(Path(folder).resolve())
        files, path = pafs.FileSystem.from_uri(uri)
        files.create_dir(path, recursive=True)
        probe = f"{path}/.weir-probe"
        files.open_output_stream(probe).close()
        files.delete_file(probe)
    except (OSError, pa.ArrowInvalid) as error:
        raise WeirError(
            f"out {folder}: can't write there ({error}); name a folder you may write to"
        ) from error
