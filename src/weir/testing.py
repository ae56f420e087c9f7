"""Test applications without Spark: whole, in this process, on Arrow tables, in milliseconds.

An application is a function of its sources. In production they are DataFrames; in a test they are schemas, and
batches are tables::

    def app(posts):
        return posts.count("place", name="places", emit="rows").keyed("topic", Trending(), name="topics")

    def test_trending():
        result = weir.testing.run(app(weir.source("place string, topic string")), [table, table], servers=3)
        assert result.state("places").to_pylist() == [...]
        assert result.output("topics").num_rows == 2

A source of files, ``weir.files(None, folder, schema=…)``, is fed with lists of their paths; topics of
:func:`weir.kafka` are read when ``query.feed()`` is called.

All operators and groupings, reconfiguration, scaling, restarts and crashes do what they do on Spark: it is the same
engine with another runner. What Spark decides (placement, retries of tasks, sources, sinks) needs Spark;
:func:`local_spark` is a session for that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from weir.engine.batch.bootstrap import open_query
from weir.engine.batch.driver import Driver
from weir.engine.batch.handle import QueryHandle
from weir.engine.inspect.inspection import state_table
from weir.engine.local.in_process import InProcessRunner, LiveThreads, TaskFailed
from weir.errors import EngineError, SourceError, did_you_mean, renamed
from weir.faults import IN_TASKS, POINTS, watching
from weir.flow import Application, Stream, parts_of
from weir.graph.declare import LISTED
from weir.graph.model import DEAD_LETTERS, LATE
from weir.options import Options, Settings
from weir.routing.base import Grouping
from weir.routing.checks import check_name, check_routers, naming
from weir.state.local_files import without_flushing
from weir.state.storage import Storage
from weir.values import to_array
from weir.watch.page_server import page_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Any  # a pyarrow Table or RecordBatch, or a list of dicts
Batch = Any  # rows, or paths of files; with several sources a dict of their names and rows or paths

__all__ = ["Crash", "LocalQuery", "check_grouping", "local_spark", "run", "start"]


class Crash(BaseException):
    """The driver has died at a fault point. Not an ``Exception``: nothing in the engine may catch it."""


class LocalQuery(QueryHandle):
    """A query in this process: feed it batches, steer it, look at it.

    It is a context manager. Everything that :class:`weir.Query` offers is here, too, but tables are Arrow's.
    """

    _live_runner = LiveThreads

    def __init__(
        self,
        application: Application | Stream,
        checkpoint: str | None,
        options: Options,
        faults: Iterable[str],
        **terms: Any,
    ) -> None:
        self._parts, self._options, self._terms = parts_of(application), options, terms
        # a temporary folder is removed together with the query
        self._folder = None if checkpoint else tempfile.TemporaryDirectory(prefix="weir-testing-")
        self._checkpoint = checkpoint or self._folder.name  # type: ignore[union-attr]
        self._faults = [_fault(f) for f in faults]
        self._outputs: dict[str, dict[int, pa.Table]] = defaultdict(dict)
        self.deliveries: list[tuple[str, int, pa.Table]] = []  # every call of a sink: operator, batch, rows
        self._active, self._crashed = True, False
        if importlib.util.find_spec("pyspark") is not None:
            from weir.spark.failures import check_sendable  # what a test accepts, a cluster must, too

            check_sendable(self._parts.declared)
        super().__init__(self._open())
        self._page = page_of(options.watch, self._driver.storage)

    def feed(self, batch: Batch = None, *, end_of_input: bool = False, number: int | None = None) -> None:
        """Process one micro-batch. After a crash, start again from the checkpoint and process it then.

        What topics have by then is processed, too, in as many batches as their limits ask for.
        With ``end_of_input`` open windows close and waiting partial states are merged when it is done. ``number`` is
        the batch's number, the next one if not given: whoever hands a batch over again after an error names it, since
        it may have been committed, and only its delivery be owed.
        """
        rows = self._rows({} if batch is None else batch)

        def hand_over() -> None:
            nonlocal number
            if number is None:
                last = self._driver.ledger.last
                number = 0 if last is None else last.handed_over + 1
            self._driver.batch(rows, number, end_of_input=end_of_input)

        self._surviving(hand_over)  # as Spark does, hand the same batch over again after a crash

    def tick(self) -> bool:
        """Run a batch without rows if time is up for a window, a timer or a `ttl`, as a query does on a quiet stream.

        Returns whether there was anything to do.
        """
        return bool(self._surviving(lambda: self._driver.tick()))

    def _surviving(self, act: Callable[[], Any]) -> Any:
        """Do something; after a crash, start again from the checkpoint and do it then."""
        while True:
            try:
                with watching(self._watch), without_flushing():
                    if self._crashed:
                        self.restart()
                    return act()
            except Crash:
                self._crashed = True
            except Exception as error:
                self._driver.fail(error)
                raise

    def finish(self, *, keep_open: bool = False) -> None:
        """End the input: open windows close, unless they are to be kept open for a stream, as by ``run`` on Spark."""
        if keep_open:
            self._surviving(lambda: self._driver.leave_open())
        elif self._driver.needs_end_of_input:
            self.feed(end_of_input=True)
        self._driver.finish()

    def restart(self, application: Application | Stream | None = None, **settings: Any) -> None:
        """Close the query and open it again on its checkpoint, with other settings or another application."""
        self._crashed = True  # until it is open again: that may fail, too
        self._driver.close()
        if application is not None:
            self._parts = parts_of(application)
        if settings:
            self._options = Options.of(self._options, settings)
        before, self._driver = self._driver, self._open()
        for listener in before.listeners:
            self.add_listener(listener)
        self._crashed = False

    @property
    def pending_faults(self) -> list[str]:
        """The faults that have not happened yet; after a test, those that it never came to."""
        return [f"{point}:{batch}" for point, batch in self._faults]

    @property
    def is_active(self) -> bool:
        """Whether it can be fed."""
        return self._active

    def state(self, name: str, batch: int | None = None) -> pa.Table:
        """Return the committed state of an operator: the last one, or that which a batch left."""
        return state_table(self._driver.storage, self._commit(name, batch), name, self.topology)

    def output(self, name: str | None = None, batch: int | None = None) -> pa.Table:
        """Return what a sink has received of an operator: of one batch, or of all in order.

        Without a name, of the only operator that nothing follows.
        """
        leaves = self._parts.leaves
        if name is None and len(leaves) != 1:
            raise EngineError(f"the application ends in {len(leaves)} operators; name one of {leaves}")
        chosen = leaves[0] if name is None else name
        if chosen != DEAD_LETTERS and chosen not in self.topology.by_name:
            raise EngineError(f"no operator {chosen!r}; {did_you_mean(chosen, self.topology.by_name)}")
        batches = self._outputs.get(chosen, {})
        if batch is not None:
            batches = {batch: batches[batch]} if batch in batches else {}
        if not batches:
            return self.topology.by_name[chosen].sink_out.empty_table()
        return pa.concat_tables([batches[b] for b in sorted(batches)])

    @property
    def outputs(self) -> dict[str, pa.Table]:
        """What sinks have received, by operator."""
        return {name: self.output(name) for name in self._outputs if name in self.topology.by_name}

    def late(self, name: str) -> pa.Table:
        """Return the rows that came too late for an operator's windows."""
        batches = self._outputs.get(name + LATE, {})
        return pa.concat_tables([self.topology.by_name[name].input.empty_table(), *batches.values()])

    @property
    def dead_letters(self) -> pa.Table | None:
        """The rows that were diverted, if any."""
        return self.output(DEAD_LETTERS) if self._outputs.get(DEAD_LETTERS) else None

    def stop(self) -> None:
        """Stop it; a later start on its checkpoint goes on from the last commit."""
        if self._page is not None:
            self._page.stop()
        self._active = False
        self._driver.stop()

    def __enter__(self) -> LocalQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open(self) -> Driver:
        options = self._options
        steps = InProcessRunner(Storage(self._checkpoint, options.storage_options), **self._terms)
        runner = self._live_runner(steps) if options.execution == "live" else steps
        with without_flushing():
            # the same seed, the same choices of routers
            identity = hashlib.md5(str(self._terms.get("seed")).encode()).hexdigest()
            return open_query(self._parts, options, runner, identity, self._collector)

    def _collector(self, name: str) -> Callable[[pa.Table, int], None]:
        def collect(table: pa.Table, batch: int) -> None:
            self._outputs[name][batch] = table
            self.deliveries.append((name, batch, table))

        return collect

    def _rows(self, batch: Batch) -> dict[str, pa.Table]:
        """Return the rows of each source, whose names users know without what marks a listing of files."""
        schemas, listings = self._parts.schemas, self._parts.listings
        sources = {name.removesuffix(LISTED): name for name in schemas}
        if not isinstance(batch, Mapping):
            if len(sources) != 1:
                raise SourceError(f"the application has {len(sources)} sources; feed {{name: rows}} for each")
            batch = {next(iter(sources)): batch}
        rows = {name: schema.empty_table() for name, schema in schemas.items()}
        for given, content in batch.items():
            if given not in sources:
                raise SourceError(f"no source {given!r}; {did_you_mean(given, sources)}")
            name = sources[given]
            if name in self._parts.feeds:
                raise SourceError(
                    f"source {given!r} reads a topic: write to that, and call feed() without rows"
                )
            listed = name in listings
            rows[name] = listings[name](content) if listed else _conform(content, schemas[name], given)
        return rows

    def _watch(self, point: str, batch: int) -> None:
        if (point, batch) in self._faults:
            self._faults.remove((point, batch))
            raise TaskFailed(f"{point}:{batch}") if point in IN_TASKS else Crash(f"{point}:{batch}")


class LocalSettings(Settings, total=False):
    """The keyword arguments of :func:`start` and :func:`run`; :func:`start` explains those that are not Spark's."""

    source_tasks: int
    hosts: Sequence[str]
    seed: int | None
    faults: Iterable[str]


@renamed(sources="source_tasks")
def start(
    application: Application | Stream, checkpoint: str | None = None, **settings: Unpack[LocalSettings]
) -> LocalQuery:
    """Start an application in this process, and return a query to feed.

    Parameters
    ----------
    checkpoint
        A folder; a temporary one if not given. It may be a copy of a checkpoint that Spark has written: the
        application goes on from its last commit, with the batches that it is fed here. Use a copy, because Spark's
        own record of the source knows nothing of these batches.
    source_tasks, hosts, seed
        Source tasks per batch; hosts that servers pretend to live on; a seed that shuffles the order in which rows
        reach servers. See :class:`~weir.engine.local.in_process.InProcessRunner`.
    faults
        Points at which the driver dies once, e.g. ``"commit-written:1"`` (see :data:`weir.faults.POINTS`), and is
        started again from its checkpoint; ``"step-started:102"`` lets a task of step 2 of batch 1 run twice,
        ``"part-written:102"`` one that delivers its part 2.
    settings
        As in :class:`weir.Options`; ``servers="auto"`` are two. Sinks are called with Arrow tables; what they get is
        also kept in ``outputs``. With ``execution="live"`` servers are threads that send rows to each other; else they
        take turns.

    Examples
    --------
    >>> import weir
    >>> counts = weir.source("place string").count("place")
    >>> with start(counts, servers=2) as query:
    ...     query.feed([{"place": "FR"}, {"place": "US"}, {"place": "FR"}])
    ...     query.state("place").sort_by("place").to_pylist()
    [{'place': 'FR', 'count': 2}, {'place': 'US', 'count': 1}]
    """
    others: dict[str, Any] = dict(settings)
    faults = others.pop("faults", ())
    terms = {name: others.pop(name) for name in ("source_tasks", "hosts", "seed") if name in others}
    return LocalQuery(application, checkpoint, Options.of(None, others), faults, **terms)


def run(
    application: Application | Stream,
    batches: Iterable[Batch],
    checkpoint: str | None = None,
    *,
    keep_open: bool = False,
    **settings: Unpack[LocalSettings],
) -> LocalQuery:
    """Run an application over some batches to the end of the input; takes what :func:`start` takes.

    With ``keep_open`` windows stay open, and :func:`start` goes on from the checkpoint.

    >>> import weir
    >>> app = weir.source("place string, n long").aggregate("place", total="sum(n)")
    >>> batches = [[{"place": "FR", "n": 1}], [{"place": "FR", "n": 4}]]
    >>> result = run(app, batches, servers=2, faults=["commit-written:0"])
    >>> result.state("place").to_pylist(), [p.batch for p in result.recent_progress]
    ([{'place': 'FR', 'total': 5}], [0, 1])
    >>> result.output("place").to_pylist()
    [{'place': 'FR', 'total': 1}, {'place': 'FR', 'total': 5}]
    """
    query = start(application, checkpoint, **settings)
    for batch in batches:
        query.feed(batch)
    query.finish(keep_open=keep_open)
    query.stop()
    return query


def check_grouping(grouping: Grouping, *, stateful: bool = True) -> None:
    """Try a grouping of your own as when an application is built, to 1, 2, 3, 8 and 17 instances.

    Raise a GroupingError that names the promise which it breaks. Unless ``stateful``, it may split keys without saying.

    >>> from weir.routing import PartialKey
    >>> check_grouping(PartialKey())
    """
    check_name(grouping)
    for n in (1, 2, 3, 8, 17):
        with naming(f"{grouping}, n={n}"):
            check_routers(grouping, n, stateful=stateful)


def local_spark(master: str = "local[6]", name: str = "weir", **settings: str) -> SparkSession:
    """Return a quiet Spark session on this machine, for tests, notebooks and examples.

    It has room for five live servers and their sources, however many cores there are.
    """
    from weir.spark.session import quiet

    return quiet(master, name, **settings)


def _fault(text: str) -> tuple[str, int]:
    point, _, batch = text.partition(":")
    if point not in POINTS or not batch.isdigit():
        raise EngineError(f"fault {text!r}: expected POINT:BATCH; {did_you_mean(point, POINTS)}")
    return point, int(batch)


def _conform(rows: Rows, schema: pa.Schema, source: str) -> pa.Table:
    """Return rows as a table of exactly the source's columns, or say which one is wrong."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    try:
        dicts = None if isinstance(rows, pa.Table) else [dict(row) for row in rows]
        given = rows.column_names if dicts is None else [name for row in dicts for name in row]
        for unknown in sorted({*given} - {*schema.names}):
            known = did_you_mean(unknown, schema.names)
            raise SourceError(f"source {source!r} has no column {unknown!r}; {known}")
        if dicts is not None:  # a part of the columns will do
            columns = [to_array([row.get(f.name) for row in dicts], f.type) for f in schema]
            return pa.Table.from_arrays(columns, schema=schema)
        for missing in (name for name in schema.names if name not in given):
            raise SourceError(f"rows for source {source!r} have no column {missing!r}")
        return rows.select(schema.names).cast(schema)
    except (ValueError, TypeError, NotImplementedError, OverflowError) as error:  # Arrow's, too
        raise SourceError(f"rows for source {source!r} do not fit its columns ({schema}): {error}") from None
