"""What every sink answers, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from weir.columns import check_columns
from weir.errors import ParameterError, TopologyError
from weir.faults import reach

CHUNK_ROWS = 1 << 16
BY_SERVERS = 1 << 17  # rows of a batch from which its parts are worth tasks of their own
# of a part, in memory: smaller ones are put together, where a table would have many files
TARGET_BYTES = 32 << 20


@dataclass(frozen=True)
class Part:
    """What one task has to write of a batch: files ``first`` to ``last - 1`` of those that :class:`Delivery` names.

    It is read where the task runs.
    """

    batch: int
    first: int
    last: int
    schema: pa.Schema
    read: Callable[[int], pa.Table]

    def table(self) -> pa.Table:
        """Return all rows."""
        return pa.concat_tables([self.schema.empty_table(), *map(self.read, range(self.first, self.last))])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return all rows, some ten thousand at a time."""
        for part in range(self.first, self.last):
            yield from self.read(part).to_batches(CHUNK_ROWS)


@dataclass(frozen=True)
class Delivery:
    """The rows that one batch has for one sink.

    ``(query, operator, batch)`` names them: a delivery that comes again has the same rows in the same parts. ``again``
    says that it may have been made before, by a driver that died or a try that was cut off. ``parts`` is the number of
    files that tasks wrote; ``read(part)`` returns one.
    ``each(count, task)`` runs ``task(0)`` … on the executors and returns their answers, which JSON must hold; a task
    that fails may run again, and one that is thought dead may still be at work. ``sizes`` are the bytes of the files.
    ``frame()`` returns the rows as a DataFrame, where Spark runs the query; ``frame(order=…)`` adds a column of this
    name that numbers them.
    """

    query: str
    operator: str
    batch: int
    again: bool
    schema: pa.Schema
    rows: int
    parts: int
    read: Callable[[int], pa.Table]
    each: Callable[[int, Callable[[int], Any]], list[Any]]
    sizes: Sequence[int] = ()
    frame: Callable[..., Any] | None = None

    @property
    def owner(self) -> str:
        """Who delivers: the query and the operator, as one text."""
        return f"{self.query}/{self.operator}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return all rows, some ten thousand at a time."""
        return Part(self.batch, 0, self.parts, self.schema, self.read).batches()

    def staged(self, write: Callable[[Part], Any], size: int = 0) -> list[Any]:
        """Let servers write the batch in parts, of ``size`` bytes at least where files are smaller.

        Returns their answers; the driver makes the parts count when all of them are there.
        """
        ends, filled = [0], 0
        for part in range(self.parts):
            if part and filled >= size:
                ends.append(part)
                filled = 0
            filled += self.sizes[part] if size else 0
        pairs = list(zip(ends, [*ends[1:], self.parts], strict=True))
        answers = self.each(len(pairs), partial(_write, self.batch, self.schema, self.read, write, pairs))
        reach("parts-written", self.batch)
        return answers


def _write(
    batch: int,
    schema: pa.Schema,
    read: Callable[[int], pa.Table],
    write: Callable[[Part], Any],
    pairs: list[tuple[int, int]],
    number: int,
) -> Any:
    first, last = pairs[number]
    reach("part-started", 100 * batch + first)
    answer = write(Part(batch, first, last, schema, read))
    reach("part-written", 100 * batch + first)
    return answer


class Sink(ABC):
    """Base of all sinks: takes the rows of a batch once, however often they are handed over.

    A sink lives on the driver. It finds out whether it has had ``(query, operator, batch)`` from what it wrote in the
    same transaction as the rows; so each row arrives exactly once. Where it can't reach its target it raises
    :class:`~weir.errors.SinkUnavailable`, and the query tries again. Any other error stops the query; the batch is
    delivered at the next start.

    >>> class Totals(Sink):
    ...     def __init__(self): self.batches = {}
    ...     def deliver(self, delivery):
    ...         self.batches[delivery.batch] = sum(len(b) for b in delivery.batches())
    >>> import weir, weir.testing
    >>> totals = Totals()
    >>> counts = weir.source("place string").count("place")
    >>> query = weir.testing.run(counts, [[{"place": "FR"}, {"place": "US"}]], servers=2, sink=totals)
    >>> totals.batches
    {0: 2}
    """

    def prepare(self, frame: Callable[[], Any]) -> None:  # noqa: B027
        """Get ready to write with Spark, before ``open``; ``frame()`` is like that of deliveries, without rows."""

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:  # noqa: B027
        """Make sure that rows can go there, before the first batch; ``fresh``: the query has no batch yet."""

    @abstractmethod
    def deliver(self, delivery: Delivery) -> None:
        """Take the rows of a batch, all or none, unless they are there already. Never called without rows."""

    def close(self) -> None:  # noqa: B027
        """Let go of connections; they are opened again if need be."""

    def __repr__(self) -> str:
        return type(self).__name__


def check_deleted(deleted: str | None, keys: Sequence[str], schema: pa.Schema, where: str) -> None:
    """Refuse a ``deleted=`` that can't say which rows are to be deleted."""
    if deleted is None:
        return
    check_columns([deleted], schema, where)
    if not keys or deleted in keys:
        raise TopologyError(f"{where}: deleted={deleted!r} needs keys, other columns that name a row")
    if not pa.types.is_boolean(schema.field(deleted).type):
        raise TopologyError(f"{where}: deleted={deleted!r} is not a boolean column")


def check_servers_from(rows: int | None) -> int | float:
    """Return from how many rows of a batch on servers write it."""
    if rows is not None and rows < 0:
        raise ParameterError(f"servers_from={rows!r}: expected a number of rows, or None for never")
    return float("inf") if rows is None else rows
