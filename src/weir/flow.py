"""Streams and applications: how a program is written down.

A stream that is used twice is a branch. With several ends, an application names them::

    web, app = weir.source(web_posts, "web"), weir.source(app_posts, "app")
    topics = web.union(app.filter(lambda row: row.n > 500)).count("topic")
    pairs = web.count(["place", "topic"], name="pairs")
    weir.Application(topics, pairs).start(checkpoint, servers=4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Unpack

from weir.columns import column_names
from weir.durations import Duration, microseconds
from weir.errors import TopologyError, did_you_mean
from weir.extras import require_spark
from weir.graph.declare import (
    Assembly,
    Attached,
    JoinOptions,
    Key,
    KeyedOptions,
    Part,
    Source,
    StatelessOptions,
    assemble,
    declared_time,
    operator_step,
    timed,
)
from weir.graph.drawing import outline, svg
from weir.graph.model import DEAD, LATE
from weir.operators.aggregate.aggregate import Aggregate, Count, Emit
from weir.operators.base import Operator
from weir.operators.deduplicate import Deduplicate
from weir.operators.join import AsOfJoin, Join
from weir.operators.lookup import Lookup
from weir.operators.map_async import MapAsync
from weir.operators.process import Process, ProcessBatch
from weir.operators.stateless import (
    ArrowFunction,
    Filter,
    FilterRows,
    FlatMapRows,
    Map,
    MapRows,
    RowFunction,
    check_function,
)
from weir.operators.windows import event_time
from weir.options import OneSink, Options, Settings, check_checkpoint, sinks_of

if TYPE_CHECKING:
    from weir.spark.query import Query


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """Rows on their way: what a source delivers, or what operators make of it.

    A stream is a value. Its methods return new streams; it stays what it is, and may be used any number of times.
    Begin with :func:`weir.source`, :func:`weir.files` or :func:`weir.kafka`.

    The methods share these parameters:

    name
        What progress, state and sinks call the operator. Without it, an operator that keeps state is called after its
        key columns, joined by "_", and others ``map``, ``map_2`` … . Saved state is found by name.
    routing
        The grouping in front of the operator, or its name; see :class:`weir.Options`. If not given, that of ``start``
        and ``run`` for operators that keep state. Other operators then work where the rows are.
    parallelism, placement
        How many instances, or on which servers; one on every server if neither is given.
    on_error
        ``"fail"``, or ``"divert"`` the rows that the operator fails on to the dead letters.
    timeout
        How long one call of your function may take, by default 10 minutes. Then it fails as if it had raised an error,
        unless it blocks in native code.
    side
        A :class:`~weir.SideInput`: the functions of ``map``, ``filter``, ``process`` … get it as one more argument.
    key
        The column or columns by which rows are routed, and whose value decides which state a row belongs to.

    >>> from weir import source
    >>> posts = source("place string, topic string", "posts")
    >>> topics = posts.keyed("place", Process(lambda key, rows, state: None)).filter(lambda row: True)
    >>> posts, topics
    (Stream(posts), Stream(posts → place → filter))
    """

    ends: tuple[Part, ...]
    sinks: tuple[Attached, ...] = ()

    def __repr__(self) -> str:
        try:
            return f"Stream({assemble(self.ends)})"
        except TopologyError as error:
            return f"Stream({error})"

    def _repr_html_(self) -> str:
        try:
            return svg(assemble(self.ends, self.sinks))
        except TopologyError as error:
            return escape(f"Stream({error})")

    def keyed(self, key: Key, operator: Operator, **options: Unpack[KeyedOptions]) -> Stream:
        """Send each row to the home of its key, to an operator that keeps state there.

        Parameters
        ----------
        operator
            :class:`~weir.Count`, :class:`~weir.Aggregate`, a :class:`~weir.Process`, or another of
            :mod:`weir.operators`.
        null_keys
            ``"drop"`` rows without a key and count them (the default), or ``"error"``.
        window
            Event-time windows: :func:`weir.tumbling`, :func:`weir.sliding` or :func:`weir.session`.
        ttl
            Forget a key that has had no rows for so long.
        initial
            What it keeps before its first batch: a DataFrame, an Arrow table, a list of dicts or a folder of Parquet,
            with the columns that :func:`weir.read_state` shows, one row per key; or a :class:`weir.State`. It is taken
            once, when a checkpoint does not know the operator yet. A DataFrame goes through the driver.
        key, name, routing, parallelism, placement, on_error, timeout
            See :class:`Stream`.
        """
        return self._then(operator, "keyed", KeyedOptions, {"key": key, **options})

    def count(
        self, key: Key, *, column: str = "count", emit: Emit | None = None, **options: Unpack[KeyedOptions]
    ) -> Stream:
        """Count the rows of each key, in a column of the name ``column``.

        ``emit`` says what follows: ``"updates"``, ``"rows"`` or ``"changes"``, see :class:`~weir.Aggregate`. Sinks get
        updates if it is not given. The other parameters are those of :meth:`keyed`.

        >>> from weir import source
        >>> source("place string, topic string").count("place", emit="rows").count("topic", name="topics")
        Stream(source → place → topics)
        """
        return self._then(Count(column, emit=emit), "count", KeyedOptions, {"key": key, **options})

    def aggregate(self, key: Key, *, emit: Emit | None = None, **values: Any) -> Stream:
        """Keep aggregates of each key, such as ``total="sum(n)"``.

        ``values`` are those of :class:`~weir.Aggregate`, which also explains ``emit``. Names that are parameters of
        :meth:`keyed` (``name``, ``routing``, ``window`` …) have their meaning there; for a value of such a name, write
        ``keyed(key, weir.Aggregate(…))``.

        >>> from weir import source
        >>> source("place string, n long").aggregate("place", posts="count", total="sum(n)", name="places")
        Stream(source → places)
        """
        options = {name: values.pop(name) for name in KeyedOptions.__annotations__ if name in values}
        if "(" in str(options.get("name")):
            raise TopologyError(
                f"aggregate(…): name={options['name']!r} would name the operator; for a value called 'name', write "
                "keyed(key, weir.Aggregate(…))"
            )
        return self._then(Aggregate(emit=emit, **values), "aggregate", KeyedOptions, {"key": key, **options})

    def process(
        self,
        key: Key,
        function: Callable[..., Any],
        *,
        state: Any = None,
        output: Any = None,
        order_by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        timers: str | Sequence[str] | None = None,
        on_timer: Callable[..., Any] | None = None,
        closed: Callable[..., Any] | None = None,
        **options: Unpack[KeyedOptions],
    ) -> Stream:
        """Call ``function(key, rows, state)`` for each key of a batch; without ``order_by``, maybe several times.

        ``state``, ``output``, ``order_by``, ``columns``, ``merge``, ``timers``, ``on_timer`` and ``closed`` are those
        of :class:`~weir.Process`; the other parameters those of :meth:`keyed`.
        """
        operator = Process(
            function,
            state=state,
            output=output,
            order_by=order_by,
            columns=columns,
            merge=merge,
            timers=timers,
            on_timer=on_timer,
            closed=closed,
        )
        return self._then(operator, "process", KeyedOptions, {"key": key, **options})

    def process_batch(
        self,
        key: Key,
        function: Callable[..., Any],
        *,
        state: Any,
        output: Any = None,
        order_by: str | Sequence[str] = (),
        columns: Sequence[str] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        **options: Unpack[KeyedOptions],
    ) -> Stream:
        """Call ``function(batch)`` with the rows and states of many keys at once, as columns for Arrow and NumPy.

        ``state``, ``output``, ``order_by``, ``columns`` and ``merge`` are those of
        :class:`weir.operators.ProcessBatch`; the other parameters those of :meth:`keyed`, but for ``window``.
        """
        operator = ProcessBatch(
            function, state=state, output=output, order_by=order_by, columns=columns, merge=merge
        )
        return self._then(operator, "process_batch", KeyedOptions, {"key": key, **options})

    def map(
        self,
        function: RowFunction,
        schema: Any = None,
        *,
        columns: Iterable[str] | None = None,
        **options: Unpack[StatelessOptions],
    ) -> Stream:
        """Turn each row into one row.

        ``function`` gets a named tuple and returns a dict or a tuple of ``schema``'s columns; without a ``schema``,
        of the columns it was given. ``columns`` names those that it reads, so that no others travel.
        See :class:`weir.operators.MapRows`, and :class:`Stream` for the other parameters.
        """
        return self._then(MapRows(function, schema, columns), "map", StatelessOptions, options)

    def map_async(
        self,
        function: RowFunction,
        schema: Any = None,
        *,
        concurrency: int = 64,
        retries: int = 0,
        ordered: bool = True,
        columns: Iterable[str] | None = None,
        **options: Unpack[StatelessOptions],
    ) -> Stream:
        """Turn each row into one row by an ``async def`` function, such as a call of a service or a model.

        Up to ``concurrency`` calls are under way on each server. Rows keep their order, or, with ``ordered=False``, go
        on as their calls return. A call that fails, or lasts
        longer than ``timeout``, is made again up to ``retries`` times; then ``on_error`` says what happens. After a
        crash, calls of the batch are made again. See :class:`weir.operators.MapAsync` for sessions and their end, and
        :meth:`map` for the other parameters.

        >>> from weir import source
        >>> async def score(row):
        ...     return {"text": row.text, "score": len(row.text)}
        >>> source("text string").map_async(score, "text string, score long", concurrency=16, timeout="5 s", retries=2)
        Stream(source → map_async)
        """
        operator = MapAsync(function, schema, columns, concurrency, retries, ordered)
        return self._then(operator, "map_async", StatelessOptions, options)

    def flat_map(
        self,
        function: RowFunction,
        schema: Any = None,
        *,
        columns: Iterable[str] | None = None,
        **options: Unpack[StatelessOptions],
    ) -> Stream:
        """Turn each row into any number of rows, returned in a list or yielded.

        See :class:`weir.operators.FlatMapRows`; parameters are those of :meth:`map`.
        """
        return self._then(FlatMapRows(function, schema, columns), "flat_map", StatelessOptions, options)

    def filter(self, function: RowFunction, **options: Unpack[StatelessOptions]) -> Stream:
        """Keep the rows, given as named tuples, for which ``function`` returns True; see :class:`Stream`."""
        return self._then(FilterRows(function), "filter", StatelessOptions, options)

    def map_batches(
        self,
        function: ArrowFunction,
        schema: Any = None,
        *,
        columns: Iterable[str] | None = None,
        parents: str | None = None,
        **options: Unpack[StatelessOptions],
    ) -> Stream:
        """Turn each batch of rows, a ``pyarrow.RecordBatch``, into another of any length.

        How rows are cut into batches is not defined: ``function`` must treat rows independently of each other.
        ``columns`` and ``parents`` are those of :class:`weir.operators.Map`; see :class:`Stream` for the others.
        """
        check_function(function, "map_batches")
        return self._then(Map(function, schema, columns, parents), "map_batches", StatelessOptions, options)

    def filter_batches(self, function: ArrowFunction, **options: Unpack[StatelessOptions]) -> Stream:
        """Keep the rows of each batch, a ``pyarrow.RecordBatch``, that ``function`` marks by an array of booleans."""
        check_function(function, "filter_batches")
        return self._then(Filter(function), "filter_batches", StatelessOptions, options)

    def union(self, *others: Stream) -> Stream:
        """Put streams of equal columns together: what follows gets the rows of all."""
        for other in others:
            _check_stream(other, "union")
        streams = (self, *others)
        ends = tuple(end for stream in streams for end in stream.ends)
        return Stream(ends, tuple(sink for stream in streams for sink in stream.sinks))

    def sink(self, *sinks: OneSink) -> Stream:
        """Send what the last operator emits to sinks; the stream goes on as it was.

        A sink is one of :mod:`weir.sinks`, a path (short for :class:`weir.sinks.Parquet`), or a callable
        ``(DataFrame, batch_id)``. Rows are delivered once, after their batch is committed. After a crash, a callable
        may see a batch id again, with the same rows.

        >>> from weir import source
        >>> source("place string").count("place").sink("out/counts", print)
        Stream(source → place)
        """
        return self._attach("sink", "", sinks)

    def late_sink(self, *sinks: OneSink) -> Stream:
        """Send rows that come too late for the last operator's windows to sinks, with the columns that reach it."""
        return self._attach("late_sink", LATE, sinks)

    def dead_letter_sink(self, *sinks: OneSink) -> Stream:
        """Send rows that the last operator fails on (``on_error="divert"``), or does not believe, to sinks.

        They get a row of texts for each: ``operator``, ``key``, ``row`` and ``error``.
        """
        return self._attach("dead_letter_sink", DEAD, sinks)

    def join(
        self,
        other: Stream,
        on: Key,
        *,
        how: str = "inner",
        within: Duration | tuple[Duration, Duration] | None = None,
        time: str | tuple[str, str] | None = None,
        lateness: Duration = 0,
        suffix: str = "_right",
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Join rows of this stream with those of another that have the same key and a time within a bound.

        Parameters
        ----------
        on
            The key: a column or columns that both streams have, of one type.
        how
            ``"inner"``; ``"left"``: rows of this stream that never find a partner follow alone, with nulls, when none
            can come any more; ``"full"``: those of both streams.
        within
            How far the times of two rows may be apart; as a pair, how much earlier and how much later the row of the
            other stream may be. None: no bound, for inner joins; all rows are kept, or those of the last ``ttl``.
        time
            The event-time column, or that of this stream and that of the other; if not given, those that the streams
            have declared (:meth:`~weir.Stream.event_time`).
        lateness
            How much later than newer ones rows may arrive. Rows later than that are dropped and counted.
        suffix
            Appended to columns of the other stream that this one has, too.
        null_keys, ttl, initial, name, routing, parallelism, placement, on_error, timeout
            See :meth:`keyed`.

        See :class:`weir.operators.Join` for what is guaranteed.

        >>> from weir import source
        >>> ads = source("ad string, shown timestamp", "ads")
        >>> clicks = source("ad string, clicked timestamp", "clicks")
        >>> ads.join(clicks, "ad", within=("0 s", "1 h"), time=("shown", "clicked"), name="seen")
        Stream(ads → clicks → seen)
        """
        _check_stream(other, "join")
        if within is not None and options.get("ttl") is not None:
            raise TopologyError("join: rows leave by within=; ttl= is for joins without a bound")
        bounds = within if isinstance(within, tuple) else (within, within)
        operator = Join(
            how,
            None if within is None else _pair(bounds, "within", microseconds),
            self._times(other, time) if within is not None or time is not None else None,
            microseconds(lateness),
            suffix,
        )
        return self._then(operator, "join", JoinOptions, {"key": on, **options}, other)

    def join_asof(
        self,
        other: Stream,
        on: Key,
        *,
        tolerance: Duration,
        how: str = "left",
        time: str | tuple[str, str] | None = None,
        lateness: Duration = 0,
        suffix: str = "_right",
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Add to each row the latest row of another stream that has the same key and is not newer.

        Parameters
        ----------
        tolerance
            How much older than the row that one may be.
        how
            ``"left"``: rows for which there is none follow alone, with nulls; ``"inner"``: they are dropped.
        on, time, lateness, suffix, null_keys, name, routing, parallelism, placement, on_error, timeout
            See :meth:`join`.

        Rows follow when no row before them can come any more. See :class:`weir.operators.AsOfJoin`.

        >>> from weir import source
        >>> trades = source("stock string, n long, at timestamp", "trades").event_time("at")
        >>> quotes = source("stock string, bid double, at timestamp", "quotes").event_time("at")
        >>> trades.join_asof(quotes, "stock", tolerance="1 minute", name="priced")
        Stream(trades → quotes → priced)
        """
        _check_stream(other, "join_asof")
        if options.get("ttl") is not None:
            raise TopologyError("join_asof: rows leave by tolerance=; it takes no ttl=")
        times = self._times(other, time)
        operator = AsOfJoin(microseconds(tolerance), times, how, microseconds(lateness), suffix)
        return self._then(operator, "join_asof", JoinOptions, {"key": on, **options}, other)

    def _times(self, other: Stream, time: str | tuple[str, str] | None) -> tuple[str, str] | None:
        """Return the event-time columns of both sides; None if they are neither said nor declared."""
        if time is not None:
            return _pair(time if isinstance(time, tuple) else (time, time), "time", str)
        left, right = declared_time(self.ends), declared_time(other.ends)
        return None if left is None or right is None else (left, right)

    def lookup(
        self,
        table: Stream,
        on: Key,
        *,
        how: str = "left",
        latest: str | None = None,
        deleted: str | None = None,
        suffix: str = "_right",
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Add to each row what a table says about its key: the latest row that the stream ``table`` has brought.

        With ``how="left"`` rows without an answer go on, with nulls; ``"inner"`` drops them. The greatest ``latest``, a
        column of the table, is the latest row; a boolean column ``deleted`` removes a key. See
        :class:`weir.operators.Lookup`, and :meth:`join` for the other parameters.
        """
        _check_stream(table, "lookup")
        if options.get("ttl") is not None:
            raise TopologyError("lookup: rows of a table stay until they change; it takes no ttl=")
        operator = Lookup(how, latest, deleted, suffix)
        return self._then(operator, "lookup", JoinOptions, {"key": on, **options}, table)

    def deduplicate(
        self,
        key: Key,
        *,
        within: Duration | None = None,
        time: str | None = None,
        lateness: Duration = 0,
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Pass on a row unless another of its key has passed less than ``within`` before or after it.

        ``time`` is the event-time column, and ``lateness`` how late rows may be. Without ``time`` the wall clock
        counts; without ``within`` a key passes once for ever. See :class:`weir.operators.Deduplicate`, and
        :meth:`keyed` for the other parameters.
        """
        if options.get("ttl") is not None:
            raise TopologyError("deduplicate: say within= instead of ttl=")
        bound = None if within is None else microseconds(within)
        operator = Deduplicate(bound, time, microseconds(lateness))
        if within is not None and time is None:
            options["ttl"] = within
        return self._then(operator, "deduplicate", JoinOptions, {"key": key, **options})

    def event_time(
        self,
        column: str,
        *,
        lateness: Duration = 0,
        idle: Duration | None = "5 minutes",
        ahead: Duration | None = "1 day",
    ) -> Stream:
        """Declare the event time of this stream, by which windows and timers behind it go.

        Declare it right behind a source, before :meth:`union`: an operator's watermark is the least over its inputs.
        Where it is not declared, the column of a window is read with these defaults.

        Parameters
        ----------
        column
            A timestamp.
        lateness
            How much older than the newest row before it a row may be; that of a window comes on top.
        idle
            After so long without a row, this stream no longer holds up others. If all are idle, time goes on by the
            clock. None: it is waited for.
        ahead
            Rows further ahead of the clock belong to no window and close none. They are counted (``ahead`` in the
            progress) and are dead letters. None: all rows are believed.
        """
        time = event_time(column, lateness, idle, ahead)
        ends = {id(end): timed(end, time) for end in self.ends}
        sinks = (replace(a, part=ends.get(id(a.part), a.part)) for a in self.sinks)
        return Stream(tuple(ends[id(end)] for end in self.ends), tuple(sinks))

    def start(self, checkpoint: str, options: Options | None = None, **settings: Unpack[Settings]) -> Query:
        """Start the application that ends in this stream; see :meth:`Application.start`."""
        return Application(self).start(checkpoint, options, **settings)

    def run(
        self,
        checkpoint: str,
        options: Options | None = None,
        *,
        keep_open: bool = False,
        **settings: Unpack[Settings],
    ) -> Query:
        """Run the application that ends in this stream; see :meth:`Application.run`."""
        return Application(self).run(checkpoint, options, keep_open=keep_open, **settings)

    def _then(
        self,
        operator: Operator,
        method: str,
        allowed: Any,
        options: Mapping[str, Any],
        other: Stream | None = None,
    ) -> Stream:
        allowed_names = {*allowed.__annotations__, "key"}
        for name in options:
            if name not in allowed_names:
                raise TopologyError(f"{method}(…) takes no {name!r}; {did_you_mean(name, allowed_names)}")
        declaration = {
            **options,
            "key": column_names("key", options.get("key", ())),
            "kind": method.removesuffix("_batches"),
            "sides": (0,) * len(self.ends) + (1,) * len(other.ends) if other else (),
        }
        ends, sinks = (other.ends, other.sinks) if other else ((), ())
        step = operator_step((*self.ends, *ends), operator, **declaration)
        return Stream((step,), (*self.sinks, *sinks))

    def _attach(self, method: str, suffix: str, sinks: tuple[Any, ...]) -> Stream:
        last = self.ends[0]
        if len(self.ends) > 1 or isinstance(last, Source):
            where = f"source {last.name!r}" if isinstance(last, Source) else "a union of streams"
            raise TopologyError(
                f"{method}(…): {where} has no operator whose rows a sink could get; put one before the sink, e.g. "
                "map_batches(lambda batch: batch), or give each stream of a union its own"
            )
        if not sinks:
            raise TopologyError(f"{method}(…) takes at least one sink")
        return replace(self, sinks=(*self.sinks, Attached(last, suffix, sinks_of(sinks, method))))


class Application:
    """All that one or several streams depend on: sources and operators.

    Parameters
    ----------
    streams
        The ends of the application. The streams that they come from belong to it, and no others.

    Examples
    --------
    >>> from weir import source
    >>> posts = source("place string, topic string", "posts")
    >>> places = posts.process("place", lambda key, rows, state: None, output="topic string")
    >>> Application(places.process("topic", lambda key, rows, state: None), posts.filter(lambda row: True))
    Application(posts → place → topic → filter)
    """

    def __init__(self, *streams: Stream) -> None:
        if not streams:
            raise TopologyError("an application needs at least one stream: weir.Application(stream, …)")
        for stream in streams:
            _check_stream(stream, "Application")
        ends = [end for stream in streams for end in stream.ends]
        self._parts = assemble(ends, [sink for stream in streams for sink in stream.sinks])

    def __repr__(self) -> str:
        return f"Application({self._parts})"

    def _repr_html_(self) -> str:
        return svg(self._parts)

    def describe(self) -> str:
        """Return the sources, operators and sinks as text, one per line.

        >>> from weir import source
        >>> print(Application(source("place string", "posts").count("place", name="places").sink("out/")).describe())
        source posts
        posts → places: Count by place
        places → sink: Parquet('out/')
        """
        return outline(self._parts)

    def start(self, checkpoint: str, options: Options | None = None, **settings: Unpack[Settings]) -> Query:
        """Start the application on streaming sources, and return at once.

        Parameters
        ----------
        checkpoint
            Folder or URI for state and progress, as Spark's ``checkpointLocation``; one per query.
        options, settings
            ``servers=4`` and the other fields of :class:`weir.Options` by name; or an ``Options``, in which those that
            are given by name are replaced.
        """
        chosen = Options.of(options, settings)
        self._check_frames()
        require_spark()
        from weir.spark.query import start

        return start(self._parts, check_checkpoint(checkpoint), chosen)

    def run(
        self,
        checkpoint: str,
        options: Options | None = None,
        *,
        keep_open: bool = False,
        **settings: Unpack[Settings],
    ) -> Query:
        """Run the application over bounded sources to their end, and return when it is done.

        Takes what :meth:`start` takes, but for ``trigger``, ``name`` and ``autoscale``, which only a streaming query
        has. At the end of the input, open windows close; with ``keep_open`` they stay open, and :meth:`start` goes on
        from this checkpoint. Topics (:func:`weir.kafka`) then continue behind what the run has read, and so do files
        (:func:`weir.files`) of a source of the same name. What Spark's own sources read, their options say.
        """
        chosen = Options.of(options, settings)
        chosen.check_bounded()
        self._check_frames()
        require_spark()
        from weir.spark.query import run

        return run(self._parts, check_checkpoint(checkpoint), chosen, keep_open)

    def _check_frames(self) -> None:
        for name, source in self._parts.sources.items():
            if source.frame is None and source.feed is None:
                raise TopologyError(
                    f"source {name!r} has a schema but no rows: pass a DataFrame to weir.source to run it on Spark, "
                    "or feed it with weir.testing"
                )


def parts_of(application: Application | Stream) -> Assembly:
    """Return what an application is made of, or the one that ends in a stream."""
    return (application if isinstance(application, Application) else Application(application))._parts


def _pair(given: Any, name: str, read: Callable[[Any], Any]) -> tuple[Any, Any]:
    if len(given) != 2:
        raise TopologyError(f"join: {name}={given!r}: expected one, or a pair of them")
    return read(given[0]), read(given[1])


def _check_stream(stream: Any, where: str) -> None:
    """Refuse anything but a stream."""
    if not isinstance(stream, Stream):
        raise TopologyError(f"{where}(…) takes streams, made by weir.source or weir.files, not {stream!r}")
