"""Running copies of operators: one per operator placed on a server, alive for one step of one batch.
On live servers a copy lives for all steps up to the last one in which rows can reach it.

An instance is pushed rows as they arrive, may emit at once, and finishes when no more rows can come in this step.
What it must remember it returns as state entries; the server saves them.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import OperatorError, WeirError, raised_at, said
from weir.rows import Rows, one_batch
from weir.state.index import positions_among
from weir.state.segment import DEADLINE, H1, H2
from weir.state.view import StateView

if TYPE_CHECKING:
    from weir.graph.model import Node


KEYED = (pa.field(H1, pa.uint64(), nullable=False), pa.field(H2, pa.uint64(), nullable=False))


def keyed_schema(state: pa.Schema) -> pa.Schema:
    """Return the columns in which an operator's partial states travel: two hashes of the key, then its state."""
    return pa.schema([*KEYED, *state])


NO_TIME = int(np.iinfo(np.int64).min)
END_OF_TIME = (1 << 63) - 2  # the watermark when a bounded input has ended


class OperatorReport(msgspec.Struct, array_like=True, gc=False):
    """What one operator did in one task."""

    rows_in: int = 0
    rows_out: int = 0
    null_keys: int = 0
    late: int = 0
    diverted: int = 0
    busy: float = 0.0
    merging: float = 0.0  # of it, in steps in which no rows can come, only partial states
    # over all rows: seconds from the task's start to the row's turn; on live servers, from the row's arrival
    waited: float = 0.0
    queued: int = 0  # most rows that waited for it at once, on live servers
    ages: dict[int, int] = {}  # rows by their time since the source, see weir.engine.metrics.latency
    pairs: int = 0  # distinct keys that this instance worked on: its share of the (server, key) pairs
    ahead: int = 0  # rows too far ahead of the clock to be believed
    keys_delta: int = 0  # keys that came into being minus keys that went
    # of a user's own operator, seconds: fetching states, in the function, rows and states to Python and back, writing
    fetching: float = 0.0
    calling: float = 0.0
    encoding: float = 0.0
    writing: float = 0.0
    weighed: float = 0.0  # rows, those of keys that take long by as much more; 0: not measured


@dataclass(frozen=True)
class Context:
    """What an instance may know of the operator it runs and of the batch it runs in."""

    # the operator as placed: key, window, ttl, schemas, and the steps in which rows and state are
    # complete
    node: Node
    report: OperatorReport  # where it counts
    batch: int
    step: int  # the step of the batch
    first: bool  # whether no other copy of this operator has run here in this batch
    clock: int  # µs; what ttl is measured by, in this batch and the one before
    previous_clock: int
    watermark: int | None  # µs of event time; None without windows, or before any row
    previous_watermark: int | None
    side: Callable[[], Any]  # returns what its functions get of its side input
    view: Callable[[], StateView]  # returns the saved state of this operator on this server
    # takes a row that a user's function failed on, where the operator diverts them
    divert: Callable[[Node, Any, Any, BaseException], None]
    late: Callable[[Rows], None]  # takes rows that come too late
    set_aside: Callable[[Rows, str], None]  # takes rows that the operator does not believe, and why
    to_sink: Callable[[pa.RecordBatch], None]  # takes rows that are for the operator's sink alone
    want_updates: bool  # whether a sink listens
    passes_on: bool  # whether rows that came in go on to other operators

    @property
    def late_at(self) -> int | None:
        """The watermark behind which rows are late: at the end of the input, what comes from other windows is not."""
        return self.previous_watermark if self.watermark == END_OF_TIME else self.watermark


class Instance(ABC):
    """One operator on one server in one step."""

    buffers_rows: ClassVar[bool] = False  # rows are only put by when pushed; the work is done in finish
    emits_early = (
        False  # what `push` yields goes on before it is asked for more; its work is the time spent calling
    )

    def __init__(self, context: Context) -> None:
        self.context = context
        self.node = context.node
        self.operator: Any = context.node.operator
        self.report = context.report
        self._written: pa.Table | None = None
        # hashes of keys, and the seconds that a function took for each, where it is called by key and that is asked for
        self.key_times: list[tuple[NDArray[np.uint64], list[float]]] | None = None

    @contextlib.contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the time that passes as time spent on something, see :class:`OperatorReport`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self.report, what, getattr(self.report, what) + time.perf_counter() - began)

    @property
    def extra(self) -> tuple[Any, ...]:
        """What functions get besides their rows: the side input, if there is one."""
        return () if self.operator.side is None else (self.context.side(),)

    @abstractmethod
    def push(self, rows: Rows) -> Iterator[Rows]:
        """Take rows; yield what goes on at once."""

    def push_side(self, rows: Rows, side: int) -> Iterator[Rows]:
        """Take rows of one side, for operators that tell them apart."""
        return self.push(rows)

    def absorb(self, partial: pa.RecordBatch) -> None:
        """Take partial states of keys that live here."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """How many rows were put by that may be worked on before all have come, see :meth:`work`."""
        return 0

    def work(self, most: int) -> Iterator[Rows]:
        """Work on rows that were put by, on so many at most; yields what goes on."""
        return iter(())

    def finish(self) -> Iterator[Rows]:
        """Called when no more rows can come in this step; yields what goes on."""
        return iter(())

    @property
    def ends_quietly(self) -> bool:
        """Whether :meth:`finish` yields nothing for sure in the step in which state is final: nobody waits for it."""
        return False

    def partials(self) -> pa.Table | None:
        """Return what must travel to the keys' homes with the next exchange."""
        return None

    def updates(self) -> pa.RecordBatch | None:
        """Return rows for the operator's sink alone; asked once per batch, when its state is final.

        What it yields reaches its sink anyway, unless it passes the rows on that came in (``passes_rows``).
        """
        return None

    def written(self) -> pa.Table | None:
        """Return the state entries this step makes."""
        return self._written


class BufferingInstance(Instance):
    """Puts rows by until the step ends, those of each side for themselves."""

    buffers_rows = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.schemas = self.node.sides or (self.node.input,)
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in self.schemas]

    def push(self, rows: Rows) -> Iterator[Rows]:
        return self.push_side(rows, 0)

    def push_side(self, rows: Rows, side: int) -> Iterator[Rows]:
        if len(rows):
            self._batches[side].append(rows.to_batch(self.schemas[side]))
        return iter(())

    def arrived(self, side: int = 0) -> Rows:
        """Return the rows of a side that were put by."""
        schema, parts = self.schemas[side], self._batches[side]
        return Rows(one_batch(parts) if parts else pa.RecordBatch.from_pylist([], schema=schema))

    def emitted(self, batch: pa.RecordBatch | None) -> Iterator[Rows]:
        """Yield and count rows that go on, if there are any."""
        if batch is not None and batch.num_rows:
            self.report.rows_out += batch.num_rows
            yield Rows(batch)

    def due(
        self,
        by_watermark: bool,
        written: Sequence[pa.Table],
        replaced: Sequence[pa.Table] = (),
        columns: Sequence[str] | None = (H1, H2),
    ) -> pa.Table:
        """Return entries whose time is up by the watermark or the clock: saved ones, and those just written.

        ``replaced`` are entries of which what is saved no longer counts.
        """
        context = self.context
        after, until = context.previous_clock, context.clock
        if by_watermark:
            before, now = context.previous_watermark, context.watermark
            after, until = (NO_TIME if mark is None else mark for mark in (before, now))
        due = context.view().due(after, until, columns)
        if replaced:
            due = due.filter(pa.array(~among(due, *hashes_of(pa.concat_tables(replaced)))))
        fresh = [table.filter(pa.array(table[DEADLINE].to_numpy() <= until)) for table in written]
        return pa.concat_tables([due, *(table.select(due.column_names) for table in fresh)])


@contextlib.contextmanager
def naming(node: Node) -> Iterator[None]:
    """Let errors name the operator that they are about."""
    try:
        yield
    except OperatorError as error:
        raise OperatorError(f"operator {node.name!r}: {error}") from None


def failed(node: Node, key: Any, row: Any, error: BaseException) -> WeirError:
    """Return the error that a user sees when a function of theirs fails."""
    if isinstance(error, WeirError) and not isinstance(error, OperatorError):
        error_text = str(error)
    else:
        error_text = f"{type(error).__name__}: {said(error)}"
        if isinstance(error, SystemExit):
            error_text = (
                f"it called sys.exit({error.code!r}), which would end the worker; raise an error instead"
            )
        if isinstance(error, TimeoutError) and not error.args:
            seconds = node.declared.timeout / 1e6
            error_text = f"it did not return within {seconds:g} s, its timeout="
        error_text += raised_at(error)
    what = f"row {row._asdict() if hasattr(row, '_asdict') else row!r}" if not isinstance(row, str) else row
    about = f", key {key!r}" if key is not None else ""
    return OperatorError(
        f"operator {node.name!r}{about}: {error_text}; at {what}. "
        'Fix the function, or set on_error="divert" to send such rows to the dead letters.'
    )


def hashes_of(table: pa.Table) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return both hashes of the keys of entries."""
    return table[H1].to_numpy(), table[H2].to_numpy()


def among(table: pa.Table, key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which entries of a table belong to the given keys."""
    return positions_among(*hashes_of(table), key_hash, key_check) >= 0


def one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], column.type)
    return one_batch([pa.record_batch([chunk], ["x"]) for chunk in column.chunks]).column(0)


def record_batch(columns: Sequence[pa.Array | pa.ChunkedArray], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as one batch of a schema."""
    arrays = [one_array(c) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return pa.RecordBatch.from_arrays(
        [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)],
        schema=schema,
    )


def conformed(columns: Sequence[pa.Array | pa.ChunkedArray], schema: pa.Schema) -> pa.Table:
    """Return columns as a table of a schema; those that have 64-bit offsets meanwhile get back their own type."""
    return pa.Table.from_arrays(
        [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
        schema=schema,
    )


POLL_SECONDS = 1.0
_watched: dict[int, TimeLimit] = {}
_watcher: threading.Thread | None = None


class TimeLimit:
    """Ends a call that does not return: within ``with``, a TimeoutError is raised in this thread.

    One of many calls is stuck if the list to which each of them adds (:meth:`begin`) stays the same for that long.
    Python code is interrupted between two bytecodes, so a call that blocks in native code is not.
    """

    def __init__(self, micros: int) -> None:
        self.seconds = micros / 1e6
        self._begun, self._ended = 0, list[Any]()
        self._seen = ((0, 0), 0.0)  # calls, when that number was first seen
        self._thread = 0

    def __enter__(self) -> TimeLimit:
        global _watcher
        self._thread, self._seen = threading.get_ident(), (self._calls(), time.monotonic())
        _watched[id(self)] = self
        if _watcher is None or not _watcher.is_alive():  # threads do not survive a fork
            _watcher = threading.Thread(target=_watch, name="weir-time-limit", daemon=True)
            _watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        _watched.pop(id(self), None)

    def begin(self, ended: list[Any]) -> None:
        """Turn to calls each of which adds to a list when it ends."""
        self._begun, self._ended = self._begun + 1, ended

    def _calls(self) -> tuple[int, int]:
        return self._begun, len(self._ended)

    def check(self, at: float) -> None:
        """Interrupt the call if it has lasted too long at a time."""
        calls = self._calls()
        if calls != self._seen[0]:
            self._seen = (calls, at)
        elif at - self._seen[1] > self.seconds:
            self._seen = (calls, at)  # one that ignores it is interrupted again
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread), ctypes.py_object(TimeoutError)
            )


def _watch() -> None:
    while True:
        limits = list(_watched.values())
        for limit in limits:
            limit.check(time.monotonic())
        time.sleep(min([POLL_SECONDS, *(limit.seconds / 4 for limit in limits)]))
