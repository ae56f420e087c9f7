"""How an application is written down: chains with dots, DAGs with names.

A chain::

    app = (weir.source(posts)
               .keyed("place", weir.Count(), name="places")
               .keyed("topic", weir.Count(), name="topics"))

The same, and any DAG, with the explicit builder::

    flow = weir.Flow()
    flow.source("posts", posts)
    flow.keyed("places", weir.Count(), key="place", after="posts")
    flow.keyed("topics", weir.Count(), key="topic", after=["places", "comments"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from weir.columns import to_schema
from weir.durations import microseconds
from weir.elasticity.autoscale import Autoscale
from weir.errors import TopologyError
from weir.graph.model import Declared, Topology, Window, build
from weir.locality.config import Locality
from weir.network.racks import RacksLike
from weir.operators.base import Operator
from weir.operators.process import Process
from weir.operators.read import PARTITION, Read
from weir.operators.stateless import ArrowFunction, Filter, Map
from weir.routing.base import Grouping
from weir.routing.hash import Hash
from weir.routing.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.spark.query import Query

Duration = str | int | float | timedelta
Sink = Any  # a callable (DataFrame, batch_id) or a path


def tumbling(column: str, size: Duration, lateness: Duration = 0) -> Window:
    """Tumbling event-time windows.

    Rows may arrive ``lateness`` after newer ones; later than that they are dropped and counted. A window's
    result is emitted once, when no more rows can belong to it.

    >>> tumbling("time", "10 minutes", lateness="1 minute")
    Window(column='time', size=600000000, lateness=60000000)
    """
    return Window(column, microseconds(size), microseconds(lateness))


class Flow:
    """An application under construction: sources and operators, by name.

    Names may be used before they are defined. Everything is checked when the application is built.
    """

    def __init__(self) -> None:
        self.frames: dict[str, DataFrame] = {}
        self.declared: list[Declared] = []

    def source(self, name: str, frame: DataFrame) -> Stream:
        """Adds a source: any DataFrame, streaming or bounded."""
        from weir.spark.session import check_frame

        check_frame(frame, name)
        if name in self.frames:
            raise TopologyError(f"two sources are named {name!r}; pass name= to one of them")
        self.frames[name] = frame
        return Stream(self, (name,))

    def files(
        self,
        name: str,
        reader: Any,
        path: str,
        *,
        schema: Any = None,
        format: str = "parquet",
        by: str = "folder",
        place: Mapping[str, int] | str | None = None,
    ) -> Stream:
        """Adds files as a source, each read on the server that its partition is assigned to.

        Spark only lists the files (a streaming reader remembers which it has listed) and sends each path to a
        server, which reads the file and hands its rows on. Rows whose next key lives on that server never leave
        it. Where files were written by key, the partition is a vertex of the key graph like any key: with
        ``routing=weir.Locality()`` keys and the partitions that hold them come together.

        A file must appear whole (written elsewhere, then moved here) and must not change. One that has changed
        after it was listed, is gone, damaged, or of other columns stops the query with a
        :class:`~weir.SourceError` that names it.

        Parameters
        ----------
        reader
            ``spark.readStream`` for a stream, ``spark.read`` for what is there now; with options of Spark's file
            source if you like, e.g. ``spark.readStream.option("maxFilesPerTrigger", 8)``.
        path
            The folder, with all folders below; or a file, or a pattern.
        schema
            Columns and types, as ``"place string, n long"``, a dict or a ``pyarrow.Schema``; those of a file
            that is there already if not given. A column may also come from folder names (``…/day=7/…``). Only
            columns that somebody reads are read.
        format
            ``"parquet"``, or ``"arrow"`` for Arrow's file format.
        by
            What a file's partition is: the name of its ``"folder"``, its own name (``"file"``, if files have
            nothing in common), or the group of a pattern, e.g. ``r"-(\\d+)\\.parquet"``.
        place
            Where partitions are read: ``{"part=3": 0}`` on given servers (others by hash), ``"hash"`` always
            by hash; if not given, where it pays, with ``routing=weir.Locality()``, else by hash.

        Examples
        --------
        ::

            posts = weir.files(spark.readStream, "posts/", schema="place string, topic string")
            query = posts.keyed("place", weir.Count()).start(checkpoint, servers=6, routing=weir.Locality())
            query.progress["edges"]["files → place"]      # {"local": …, "remote": …, "bytes": …, "locality": …}
        """
        from weir.spark.sources import base_of, columns_of, listing

        frame = listing(reader, path, by)
        columns = columns_of(path, format) if schema is None else to_schema(schema)
        source = f"{name} (paths)"
        if source in self.frames:
            raise TopologyError(f"two sources are named {name!r}; pass name= to one of them")
        self.frames[source] = frame
        return self._add(
            Declared(
                name=name,
                operator=Read(columns, format, base_of(path) if by == "folder" else "", by != "file"),
                inputs=(source,),
                key=(PARTITION,),
                grouping=_place(place, by),
            )
        )

    def stateless(
        self,
        name: str,
        operator: Operator,
        *,
        after: str | Stream | Sequence[str | Stream],
        grouping: Grouping | Locality | None = None,
        key: str | Sequence[str] = (),
        parallelism: int | None = None,
        placement: Iterable[int] | None = None,
        on_error: str = "fail",
    ) -> Stream:
        """Adds a stateless operator (:class:`~weir.Map`, :class:`~weir.Filter`)."""
        return self._add(
            Declared(
                name=name,
                operator=operator,
                inputs=_names(after),
                key=_columns(key),
                grouping=grouping,
                parallelism=parallelism,
                placement=None if placement is None else tuple(placement),
                on_error=on_error,
            )
        )

    def keyed(
        self,
        name: str,
        operator: Operator,
        *,
        key: str | Sequence[str],
        after: str | Stream | Sequence[str | Stream],
        grouping: Grouping | Locality | None = None,
        parallelism: int | None = None,
        placement: Iterable[int] | None = None,
        null_keys: str = "drop",
        on_error: str = "fail",
        window: Window | None = None,
        ttl: Duration | None = None,
        aggregate_every: int = 1,
    ) -> Stream:
        """Adds a stateful operator. Several names in ``after`` are united.

        Parameters
        ----------
        key
            The column or columns whose value decides which state a row belongs to.
        grouping
            How rows find their instance; the application's ``routing`` if not given.
        parallelism, placement
            How many instances, or on which servers; everywhere if neither is given.
        null_keys
            ``"drop"`` rows without a key and count them, or ``"error"``.
        on_error
            ``"fail"``, or ``"divert"`` the rows that the operator fails on to the dead letters.
        window
            Event-time windows, from :func:`weir.tumbling`.
        ttl
            Forget a key's state when it has been idle for so long.
        aggregate_every
            Behind a grouping that splits keys: batches after which the partial states of a key are merged at
            its home. Sinks get a key's value when it is merged; ``query.state`` always shows merged values.
        """
        return self._add(
            Declared(
                name=name,
                operator=operator,
                inputs=_names(after),
                key=_columns(key),
                grouping=grouping,
                parallelism=parallelism,
                placement=None if placement is None else tuple(placement),
                null_keys=null_keys,
                on_error=on_error,
                window=window,
                ttl=None if ttl is None else microseconds(ttl),
                aggregate_every=aggregate_every,
            )
        )

    def _add(self, declared: Declared) -> Stream:
        if not isinstance(declared.operator, Operator):
            raise TopologyError(
                f"operator {declared.name!r}: expected an operator such as weir.Count(), got {declared.operator!r}"
            )
        if isinstance(declared.operator, Process):
            _ = declared.operator.configured
        self.declared.append(declared)
        return Stream(self, (declared.name,))

    def topology(
        self,
        servers: int,
        *,
        routing: Grouping | Locality | None = None,
        sinks: Sequence[str] = (),
        prune: bool = True,
        placements: Mapping[str, Sequence[int]] | None = None,
    ) -> Topology:
        """The validated application; raises a :class:`~weir.errors.TopologyError` if it cannot run."""
        from weir.spark.session import arrow_schema

        schemas = {name: arrow_schema(frame) for name, frame in self.frames.items()}
        return build(
            schemas,
            self.declared,
            servers,
            routing=routing,
            sinks=sinks,
            prune=prune,
            placements=placements,
        )

    def leaves(self) -> list[str]:
        """Operators that nothing follows: what a single sink listens to."""
        used = {name for d in self.declared for name in d.inputs}
        return [d.name for d in self.declared if d.name not in used]

    def start(
        self,
        checkpoint: str,
        *,
        servers: int,
        routing: Grouping | Locality | None = None,
        sink: Sink | Mapping[str, Sink] | None = None,
        dead_letters: Sink | None = None,
        trigger: Mapping[str, Any] | None = None,
        prune: bool = True,
        retain: int = 10,
        drop_state: Iterable[str] = (),
        clock: Callable[[], int] | None = None,
        racks: RacksLike | None = None,
        name: str | None = None,
        autoscale: Autoscale | None = None,
        parcels: bool = True,
    ) -> Query:
        """Starts the application on streaming sources, and returns at once.

        Parameters
        ----------
        checkpoint
            Folder or URI for state and progress, as Spark's ``checkpointLocation``.
        servers
            Number of servers; each is one Spark partition of every step.
        routing
            The grouping of keyed operators that name none; by hash if not given. With
            :class:`~weir.Locality`, where keys live is learnt and changed while the stream runs.
        sink
            A callable ``(DataFrame, batch_id)`` or a path to write Parquet to, for the last operator; or a
            dict from operators' names to such. Delivered after the commit; a callable may see a batch id
            again after a crash, with the same rows; a path is overwritten per batch, so it has each once.
        dead_letters
            Like a sink, for rows diverted with ``on_error="divert"``.
        trigger
            As in ``writeStream.trigger``, e.g. ``{"availableNow": True}``.
        prune
            Let only the columns travel that somebody reads; switch off to carry whole rows everywhere.
        retain
            Number of commits to keep; older ones and their files are deleted.
        drop_state
            Operators whose saved state may be given up because the application no longer has them.
        clock
            Microseconds since 1970, for ``ttl``; the wall clock if not given.
        racks
            The racks of hosts: :meth:`weir.Racks.from_file`, :meth:`weir.Racks.from_script`, a dict from hosts to
            racks, or a function of a host. Without it all hosts count as one rack.
        autoscale
            Add and let go of servers by lag and congestion; see :class:`~weir.Autoscale`.
        parcels
            Let servers of one host leave long rows for each other in files of Spark's local folder; switch off to send
            all through Spark's exchange.
        """
        from weir.spark.query import start

        return start(
            self,
            checkpoint,
            servers=servers,
            routing=routing,
            sink=sink,
            dead_letters=dead_letters,
            trigger=dict(trigger or {}),
            prune=prune,
            retain=retain,
            drop_state=tuple(drop_state),
            clock=clock,
            racks=racks,
            name=name,
            autoscale=autoscale,
            parcels=parcels,
        )

    def run(self, checkpoint: str, *, servers: int, **options: Any) -> Query:
        """Runs the application over bounded sources to their end, and returns when it is done.

        Takes the options of :meth:`start` but ``trigger``. At the end of the input, open windows close.
        """
        from weir.spark.query import run

        return run(self, checkpoint, servers=servers, **options)


@dataclass(frozen=True)
class Stream:
    """A point in a flow from which rows go on: what the fluent surface hands from call to call."""

    flow: Flow
    names: tuple[str, ...]

    def _fresh(self, name: str | None, hint: str) -> str:
        if name is not None:
            return name
        taken = {*self.flow.frames, *(d.name for d in self.flow.declared)}
        candidate, number = hint, 1
        while candidate in taken:
            number += 1
            candidate = f"{hint}_{number}"
        return candidate

    def keyed(
        self, key: str | Sequence[str], operator: Operator, *, name: str | None = None, **options: Any
    ) -> Stream:
        """Sends each row to the home of its key; see :meth:`Flow.keyed` for the options."""
        hint = "_".join(_columns(key))
        return self.flow.keyed(self._fresh(name, hint), operator, key=key, after=list(self.names), **options)

    def process(
        self,
        key: str | Sequence[str],
        function: Callable[..., Any],
        *,
        name: str | None = None,
        **options: Any,
    ) -> Stream:
        """A keyed operator from a function ``(key, rows, state)``; see :class:`~weir.Process`."""
        own = {k: options.pop(k) for k in ("state", "output", "order_by", "columns", "merge") if k in options}
        return self.keyed(key, Process(function, **own), name=name, **options)

    def map(
        self,
        function: ArrowFunction,
        schema: Any = None,
        *,
        name: str | None = None,
        columns: Iterable[str] | None = None,
        parents: str | None = None,
        **options: Any,
    ) -> Stream:
        """Applies an Arrow function to batches of rows; see :class:`~weir.Map`."""
        operator = Map(function, schema, columns, parents)
        return self.flow.stateless(self._fresh(name, "map"), operator, after=list(self.names), **options)

    flat_map = map

    def filter(self, function: ArrowFunction, *, name: str | None = None, **options: Any) -> Stream:
        """Keeps the rows that an Arrow function marks; see :class:`~weir.Filter`."""
        operator = Filter(function)
        return self.flow.stateless(self._fresh(name, "filter"), operator, after=list(self.names), **options)

    def union(self, *others: Stream) -> Stream:
        """Unites streams: the next operator gets the rows of all."""
        names = list(self.names)
        for other in others:
            if other.flow is not self.flow:
                for source, frame in other.flow.frames.items():
                    if source in self.flow.frames:
                        raise TopologyError(f"two sources are named {source!r}; pass name= to weir.source")
                    self.flow.frames[source] = frame
                self.flow.declared.extend(other.flow.declared)
                other.flow.frames, other.flow.declared = self.flow.frames, self.flow.declared
            names.extend(n for n in other.names if n not in names)
        return Stream(self.flow, tuple(names))

    def start(self, checkpoint: str, **options: Any) -> Query:
        """Starts the application this stream belongs to; see :meth:`Flow.start`."""
        return self.flow.start(checkpoint, **options)

    def run(self, checkpoint: str, **options: Any) -> Query:
        """Runs the application over bounded sources; see :meth:`Flow.run`."""
        return self.flow.run(checkpoint, **options)

    def topology(self, servers: int, **options: Any) -> Topology:
        return self.flow.topology(servers, **options)


def source(frame: DataFrame, name: str = "source") -> Stream:
    """Begins an application: any DataFrame, streaming or bounded."""
    return Flow().source(name, frame)


def files(reader: Any, path: str, *, name: str = "files", **options: Any) -> Stream:
    """Begins an application over files, each read on the server its partition is assigned to.

    See :meth:`Flow.files` for the options.
    """
    return Flow().files(name, reader, path, **options)


def _place(place: Mapping[str, int] | str | None, by: str) -> Grouping | None:
    if place == "hash" or (place is None and by == "file"):
        return Hash()  # a file is read once: there is nothing to learn about it
    if place is None:
        return None
    if not isinstance(place, Mapping) or not all(
        isinstance(k, str) and isinstance(v, int) for k, v in place.items()
    ):
        raise TopologyError(f'place={place!r}: expected {{"partition": server}} or "hash"')
    return Table.of(place)


def _names(after: str | Stream | Sequence[str | Stream]) -> tuple[str, ...]:
    if isinstance(after, (str, Stream)):
        after = [after]
    names: list[str] = []
    for item in after:
        names.extend(item.names if isinstance(item, Stream) else [item])
    return tuple(names)


def _columns(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
