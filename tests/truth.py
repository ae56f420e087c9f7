"""The true answers that a run is compared with, in plain Python, and where keys live according to a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from support import counts, dicts
from weir.engine.checkpoint import CheckpointLayout
from weir.state.segment import H1
from weir.state.storage import Storage
from weir.state.view import StateView


def count_and_top_by(tables: Sequence[pa.Table], *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows and the greatest ``n`` of each value of the columns, as :func:`support.rows_of` would."""
    top: dict[tuple[Any, ...], int] = {}
    for row in dicts(tables):
        key = tuple(row[c] for c in columns)
        top[key] = max(top.get(key, row["n"]), row["n"])
    return sorted(((*entry, top[entry[:-1]]) for entry in counts(tables, *columns)), key=repr)


def homes_of(checkpoint: str, name: str) -> dict[int, int]:
    """Return the server of each key's hash, from the committed segments; fail if a key lives on two."""
    storage = Storage(checkpoint)
    commit = CheckpointLayout(storage).latest_commit()
    assert commit is not None
    schema = commit.signature.operators[name].entries
    homes: dict[int, int] = {}
    for server, refs in enumerate(commit.manifest[name]):
        for key in StateView(storage, refs, schema).everything()[H1].to_pylist():
            assert key not in homes, f"key {key} lives on servers {homes[key]} and {server}"
            homes[key] = server
    return homes


def eventually(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until a condition holds, and return what it returned; fail if it takes too long."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.01)
    return value


class Clock:
    """A clock that only moves when it is told to, apart from a microsecond whenever somebody looks at it."""

    def __init__(self) -> None:
        self.seconds = 1e9

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def perf_counter(self) -> float:
        """Return the time, as the function of the same name does."""
        self.sleep(1e-6)
        return self.seconds

    monotonic = perf_counter

    def time_ns(self) -> int:
        """Return the time, as the function of the same name does."""
        return int(self.perf_counter() * 1e9)


@contextmanager
def told_time() -> Iterator[Clock]:
    """Let the engine look at a clock of ours wherever it measures how long something takes."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in ("batch.driver", "task.runtime", "metrics.latency"):
            patch.setattr(f"weir.engine.{module}.time", clock)
        yield clock
