"""Count a recorded stream, with the reader that suits its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from weir.advise.counts import TABLE, Counted, Question
from weir.advise.files import count_files, open_files
from weir.errors import TopologyError, WeirError

SPARK_ABOVE = 1 << 30  # bytes on disk above which Spark counts

Keys = str | Sequence[str | Sequence[str]]


def count(data: str, question: Callable[[Sequence[str]], Question], master: str | None = None) -> Counted:
    """Count the data: here if it is a file of up to 1 GB and no master is named, on Spark otherwise.

    ``question`` is called with the names of the columns and returns what to count.
    """
    dataset = None
    if not is_remote(data):
        try:
            dataset = open_files(data)
        except (pa.ArrowInvalid, OSError) as error:
            raise WeirError(f"{data} is neither Parquet nor CSV that can be read ({error})") from error
        local_question = question(dataset.schema.names)
        local_question.check(dataset.schema)
        if master is None and _size(Path(data)) <= SPARK_ABOVE:
            return count_files(local_question, dataset)
    # imported here: advice on files needs no Spark
    from weir.spark.counting import count_frame, open_frame, session

    spark, is_new = session(master)
    try:
        frame = open_frame(spark, data, None if dataset is None else dataset.schema)
        return count_frame(question(frame.columns), frame)
    finally:
        if is_new:
            spark.stop()


def is_remote(data: str) -> bool:
    """Return whether only Spark can read the data."""
    return data.startswith(TABLE) or "://" in data


def key_columns(
    keys: Keys, operators: str | Sequence[str] | None = None, columns: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return the key columns by operator.

    ``keys`` and ``operators`` are lists, or texts with commas as on the command line. ``a+b`` is a key of two columns,
    unless ``a+b`` is one of the data's ``columns``. Operators are named after their keys by default.

    >>> key_columns("state,user+hashtag", "states,trends")
    {'states': ['state'], 'trends': ['user', 'hashtag']}
    >>> key_columns(["state", ["user", "hashtag"]])
    {'state': ['state'], 'user+hashtag': ['user', 'hashtag']}
    """
    parts = [_split(key, columns) for key in _words(keys)]
    if len(parts) < 2 or not all(parts):
        raise TopologyError(
            f"keys {keys!r}: locality is between operators with different keys; name two at least, as in a,b"
        )
    names = ["+".join(part) for part in parts] if operators is None else _words(operators)
    if len(names) != len(parts):
        raise TopologyError(
            f"operators {operators!r}: give {len(parts)} names, one for each of the keys {keys!r}"
        )
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise TopologyError(f"{name!r} cannot name an operator: it must be a plain file name, too")
    if len(set(names)) < len(names):
        raise TopologyError(
            f"two operators have the same name in {names}: tell them apart with operators= (--operators)"
        )
    return dict(zip(names, parts, strict=True))


def _words(text: Any) -> list[Any]:
    """Return the parts of a text with commas, or the items of a list."""
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else list(text)


def _split(key: str | Sequence[str], columns: Sequence[str]) -> list[str]:
    if not isinstance(key, str):
        return list(key)
    return [key] if key in columns else [column.strip() for column in key.split("+")]


def _size(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
