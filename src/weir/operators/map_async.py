"""An asyncio function of each row: calls of a service or a model, many at a time."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import refuse
from weir.operators.instance import Context, Instance, TimeLimit, failed
from weir.operators.stateless import Map, RowFunction, columns_of, conform
from weir.rows import Rows
from weir.values import rows_of

PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds before a call is made again, doubled each time
GATHER = 0.05  # seconds in which rows whose calls have returned are gathered to go on together


class MapAsync(Map):
    """Turns each row into one row by an asyncio function; ``stream.map_async(…)`` makes one.

    Parameters
    ----------
    function
        An ``async def`` that takes a row as a named tuple, and returns one as :class:`MapRows` does. An object with an
        async ``__call__`` may be an async context manager, too: a copy of it is entered before the calls of a chunk of
        rows and left after them. That is the place of a session, whose connections the calls share.
    concurrency
        How many calls a server has under way at most.
    ordered
        Whether rows keep their order. If not, they go on as their calls return, while others are under way: operators
        behind work meanwhile, and a slow call holds up no other row.
    retries
        How often a call that fails, or lasts longer than the operator's ``timeout``, is made again: after 0.1 s, then
        after twice the time before, at most 10 s.
    schema, columns
        See :class:`MapRows`.

    Calls of one chunk of rows overlap, such as an Arrow batch of a source. All calls have ended
    when a chunk has, so a batch that runs again makes its own again and no others. Calls of a batch may happen twice.
    """

    def __init__(
        self,
        function: RowFunction,
        schema: Any = None,
        columns: Iterable[str] | None = None,
        concurrency: int = 64,
        retries: int = 0,
        ordered: bool = True,
    ) -> None:
        called = (
            function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
        )
        refuse(
            "map_async(…): ",
            (
                not inspect.iscoroutinefunction(called),
                f'it takes an "async def" function first, not {function!r}',
            ),
            (
                not _whole(concurrency, 1),
                f"concurrency={concurrency!r}: expected a number of calls, at least 1",
            ),
            (
                not _whole(retries, 0),
                f"retries={retries!r}: expected how often a call is made again, 0 or more",
            ),
            (not isinstance(ordered, bool), f"ordered={ordered!r}: expected True or False"),
        )
        super().__init__(function, schema, columns)
        self.concurrency, self.retries, self.ordered = concurrency, retries, ordered

    def instance(self, context: Context) -> Instance:
        return _AsyncInstance(context)


def _whole(number: Any, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def _outside_of_loops(act: Callable[[], None]) -> None:
    """Call a function that runs an event loop: in a thread of its own where one runs already, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        act()
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


class _CallFailed(Exception):
    """A call for a row failed, and so does the batch."""

    def __init__(self, row: int, error: BaseException) -> None:
        super().__init__(row, error)
        self.row, self.error = row, error


class _AsyncInstance(Instance):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.emits_early = not self.operator.ordered

    def push(self, rows: Rows) -> Iterator[Rows]:
        if not len(rows):
            return
        batch = rows.to_batch(self.node.input)
        results: list[Any] = [None] * batch.num_rows
        failures: dict[int, BaseException] = {}
        with closing(self._returned(batch, results, failures)) as returned:
            for numbers in returned:
                for row in sorted(failures.keys() & numbers):
                    self._failed(batch, row, failures[row])
                good = [row for row in numbers if row not in failures]
                for positions, made in self._made(batch, good, results):
                    self.report.rows_out += made.num_rows
                    origin = None if rows.origin is None else (rows.origin[0], rows.origin[1][positions])
                    yield Rows(made, origin=origin)

    def _returned(
        self, batch: pa.RecordBatch, results: list[Any], failures: dict[int, BaseException]
    ) -> Generator[Sequence[int], None, None]:
        """Make the calls for some rows; yield the numbers of those that have returned, or been given up."""
        seconds = self.node.declared.timeout / 1e6
        # a function that blocks the loop is interrupted; one that waits ends by its own timeout before
        limit = TimeLimit(self.node.declared.timeout + int(2e6 * LONGEST_PAUSE))

        ended: SimpleQueue[int | None] = SimpleQueue()  # None: all have
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

        async def call_all() -> None:
            task = asyncio.current_task()
            assert task is not None
            running.append((asyncio.get_running_loop(), task))
            await self._call_all(list(rows_of(batch)), seconds, limit, results, failures, ended)

        def calls() -> None:
            try:
                with limit, asyncio.Runner() as runner:
                    runner.run(call_all())
            finally:
                ended.put(None)

        try:
            if self.operator.ordered:
                with self.spending("calling"):
                    _outside_of_loops(calls)
                yield range(batch.num_rows)
                return
            with ThreadPoolExecutor(1) as pool:
                made = pool.submit(calls)
                try:
                    while numbers := self._gathered(ended):
                        yield numbers
                    made.result()
                finally:
                    for loop, task in running:
                        with suppress(RuntimeError):  # it is closed: all calls have ended
                            loop.call_soon_threadsafe(task.cancel)
        except _CallFailed as one:
            self._failed(batch, one.row, one.error)
        except (Exception, SystemExit) as other:
            raise failed(self.node, None, f"one of {batch.num_rows} rows", other) from other

    def _gathered(self, ended: SimpleQueue[int | None]) -> list[int]:
        """Return the numbers of rows whose calls end in a short while from the next one on; none if all have."""
        numbers: list[int] = []
        with self.spending("calling"), suppress(Empty):
            until: float | None = None
            while (number := ended.get(timeout=until and max(0.0, until - time.monotonic()))) is not None:
                numbers.append(number)
                until = until or time.monotonic() + GATHER
            if numbers:
                ended.put(None)  # for the next time
        return numbers

    def _failed(self, batch: pa.RecordBatch, number: int, error: BaseException) -> None:
        row = batch.slice(number, 1).to_pylist()[0]
        if self.node.declared.on_error != "divert":
            raise failed(self.node, None, row, error) from error
        self.report.diverted += 1
        self.context.divert(self.node, None, row, error)

    def _made(
        self, batch: pa.RecordBatch, rows: Sequence[int], results: Sequence[Any]
    ) -> Iterator[tuple[Any, pa.RecordBatch]]:
        """Yield positions of rows and what was made of them; a result that does not fit is found by halving."""
        if not rows:
            return
        try:
            columns = columns_of([results[row] for row in rows], self.operator.schema or batch.schema)
            made = conform(columns, self.node.rows_out, "it")
        except Exception as error:
            if len(rows) == 1:
                self._failed(batch, rows[0], error)
                return
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                yield from self._made(batch, half, results)
            return
        yield np.array(rows), made

    async def _call_all(
        self,
        rows: Sequence[Any],
        seconds: float,
        limit: TimeLimit,
        results: list[Any],
        failures: dict[int, BaseException],
        ended: SimpleQueue[int | None],
    ) -> None:
        waiting, tries, extra = iter(enumerate(rows)), list[None](), self.extra
        limit.begin(tries)

        async def call(function: Any, row: Any) -> Any:
            tried = 0
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        return await function(row, *extra)
                except Exception as error:
                    if tried == self.operator.retries:
                        if isinstance(error, TimeoutError) and not error.args:
                            error.args = (f"it did not return within {seconds:g} s, its timeout=",)
                        raise
                finally:
                    tries.append(None)
                await asyncio.sleep(min(PAUSE * 2 ** min(tried, 10), LONGEST_PAUSE))
                tried += 1

        async def work(function: Any) -> None:
            for number, row in waiting:
                try:
                    results[number] = await call(function, row)
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                        raise  # another call has failed
                    if self.node.declared.on_error != "divert":
                        raise _CallFailed(number, error) from None
                    failures[number] = error
                ended.put(number)

        async with AsyncExitStack() as stack:
            function = self.operator.function
            if hasattr(function, "__aenter__"):
                function = await stack.enter_async_context(copy.copy(function))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self.operator.concurrency, len(rows))):
                        group.create_task(work(function))
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None
