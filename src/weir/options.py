"""The options of a query: what `start` and `run` take, checked in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict

from weir.durations import Duration, microseconds
from weir.elasticity.autoscale import Autoscale
from weir.errors import TopologyError, did_you_mean
from weir.graph.declare import GroupingLike, check_count, to_grouping
from weir.network.racks import RacksLike
from weir.sinks.base import Sink
from weir.sinks.parquet import Parquet

OneSink = Sink | Callable[[Any, int], Any] | str  # a sink, a callable (DataFrame, batch_id), or a path
SinkLike = OneSink | Sequence[OneSink]
TRIGGERS = ("processingTime", "availableNow", "once")
EXECUTIONS = ("live", "jobs", "auto")
FORGET = ("undelivered", "positions")
RENAMED = {"parcels": "host_handoff"}  # in this version
ONLY_STREAMING = ("trigger", "name", "autoscale", "source_checkpoint", "watch")


# the type of an option, and how it is said; those below may be None, too
KINDS: dict[str, tuple[Any, str]] = {
    "prune": (bool, "True or False"),
    "host_handoff": (bool, "True or False"),
    "trigger": (Mapping, 'what writeStream.trigger takes, e.g. {"availableNow": True}'),
    "clock": (Callable, "a function that returns microseconds since 1970"),
    "autoscale": (Autoscale, "weir.Autoscale(target_lag=…, min=…, max=…)"),
    "name": (str, "a text"),
    "source_checkpoint": (str, "a folder or a URI"),
    "watch": (int | Mapping, "True, the port to serve the page on, or a dict of what weir watch takes"),
    "forget": (Mapping, '{"undelivered": [operators], "positions": [sources]}'),
}
NULLABLE = {"trigger", "clock", "autoscale", "name", "source_checkpoint", "watch"}


class Settings(TypedDict, total=False):
    """The keyword arguments of ``start`` and ``run``: the fields of :class:`Options`."""

    servers: int | Literal["auto"]
    routing: GroupingLike | str | None
    sink: SinkLike | Mapping[str, SinkLike] | None
    late: SinkLike | Mapping[str, SinkLike] | None
    dead_letters: SinkLike | None
    trigger: Mapping[str, Any] | None
    prune: bool
    retain: int
    drop_state: Iterable[str]
    forget: Mapping[str, Collection[str]]
    clock: Callable[[], int] | None
    clock_jump: Duration
    racks: RacksLike | None
    name: str | None
    autoscale: Autoscale | None
    host_handoff: bool
    execution: str
    storage_options: Mapping[str, str | int | float | bool] | None
    source_checkpoint: str | None
    target_batch: Duration | None
    watch: bool | int | Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an application is run: on how many servers, with which grouping, to which sinks.

    ``start`` and ``run`` take the fields as keyword arguments, or one ``Options`` for all of them.

    Parameters
    ----------
    servers
        Number of servers. ``"auto"``: as many as the session's task slots allow, less an eighth for source tasks where
        servers are live. A restart with ``"auto"`` keeps the number that the checkpoint has.
    routing
        The grouping of keyed operators that have none of their own; by hash if not given. One of :mod:`weir.routing`, a
        :class:`~weir.Locality`, or a name: ``"auto"``, ``"hash"``, ``"locality"``, ``"consistent"``, ``"partial_key"``,
        ``"weighted"`` or ``"shuffle"``.
    sink
        One or a list of what :meth:`weir.Stream.sink` takes, for the last operator; or a dict from operators' names.
        Sinks that streams have are added.
    late
        The same for rows that come too late: of the only operator that has windows, or a dict. See
        :meth:`weir.Stream.late_sink`.
    dead_letters
        The same for rows that any operator has set aside; see :meth:`weir.Stream.dead_letter_sink`.
    trigger
        As in ``writeStream.trigger``, e.g. ``{"availableNow": True}``. For ``start`` only.
    prune
        Send only the columns that somebody reads; switch off to carry whole rows everywhere.
    retain
        Number of commits to keep; older ones and their files are deleted.
    drop_state
        Operators whose saved state may be given up because the application no longer has them.
    forget
        What else may be given up: ``{"undelivered": ["topics"]}``, rows that sinks of an operator have not had;
        ``{"positions": ["posts"]}``, how far a source that is gone was read.
    clock
        A function that returns microseconds since 1970, for ``ttl``; the wall clock if not given.
    clock_jump
        How far the wall clock may be from the last commit's at the start, where operators have a ``ttl``: a wrong clock
        would forget their keys. Raise it for a query that stood still for longer.
    racks
        The racks of hosts: :meth:`weir.Racks.from_file`, :meth:`weir.Racks.from_script`, a dict from hosts to racks,
        or a function of a host. Without it all hosts count as one rack.
    name
        The name of the streaming query, as ``writeStream.queryName``. For ``start`` only.
    autoscale
        Add and remove servers by lag and congestion; see :class:`~weir.Autoscale`. For ``start`` only.
    host_handoff
        Let servers of one host leave long rows for each other in files of Spark's local folder; switch off to send
        all rows through Spark's exchange.
    execution
        How batches run: ``"live"``, on servers that stay and send rows straight to each other; ``"jobs"``, each as one
        Spark job; ``"auto"``, live where the session has room for it.
    storage_options
        Settings of the object store that the checkpoint is in, e.g. ``{"region": "eu-west-1"}``, by their
        names in obstore. They go to the executors with every task, so leave secrets to the environment.
    source_checkpoint
        Where Spark keeps its own offsets, as any path or URI that Hadoop can write; ``source`` in the checkpoint if not
        given. For ``start`` only.
    target_batch
        How long a batch should take, e.g. ``"2 s"``. The size of batches from :func:`weir.kafka` and :func:`weir.files`
        follows what the last ones took, within the source's own limits.
    watch
        Serve a page that shows the query as it runs, on this machine alone: True, or the port to serve it on. A dict
        says more: ``host``, ``port``, ``control``, ``token``, ``public_url``, ``allowed_hosts``, ``trusted_proxies``,
        ``frame_ancestors``, as the options of ``weir watch``.
        ``query.page`` is the link to it. Needs ``pip install 'weir-streams[watch]'``. For ``start`` only.

    Examples
    --------
    >>> Options().servers, Options(servers=4).retain
    ('auto', 10)
    >>> Options(servers=0)
    Traceback (most recent call last):
    weir.errors.TopologyError: servers=0: expected a whole number, 1 or more, or "auto"
    """

    servers: int | Literal["auto"] = "auto"
    routing: GroupingLike | None = None
    sink: SinkLike | Mapping[str, SinkLike] | None = None
    late: SinkLike | Mapping[str, SinkLike] | None = None
    dead_letters: SinkLike | None = None
    trigger: Mapping[str, Any] | None = None
    prune: bool = True
    retain: int = 10
    drop_state: Iterable[str] = ()
    forget: Mapping[str, Collection[str]] = field(default_factory=dict)
    clock: Callable[[], int] | None = None
    clock_jump: Duration = "7 days"
    racks: RacksLike | None = None
    name: str | None = None
    autoscale: Autoscale | None = None
    host_handoff: bool = True
    execution: str = "auto"
    storage_options: Mapping[str, str | int | float | bool] | None = field(default=None, repr=False)
    source_checkpoint: str | None = None
    target_batch: Duration | None = None
    watch: bool | int | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.servers != "auto":
            check_count("servers", self.servers, ', or "auto"')
        check_count("retain", self.retain)
        object.__setattr__(self, "routing", to_grouping(self.routing))
        for option in ("sink", "late", "dead_letters"):
            given = getattr(self, option)
            if isinstance(given, Mapping):
                for name, sink in given.items():
                    sinks_of([None] if sink is None else sink, f"{option} of {name!r}")
            else:
                sinks_of(given, option)
        for name, (kind, expected) in KINDS.items():
            value = getattr(self, name)
            fits = isinstance(value, kind) or (value is None and name in NULLABLE)
            if fits and name == "watch" and not isinstance(value, Mapping):
                fits = 0 <= (value or 0) < 1 << 16
            if fits and name == "forget":
                fits = value.keys() <= {*FORGET}
            if not fits:
                raise TopologyError(f"{name}={value!r}: expected {expected}")
        for name in ("clock_jump", "target_batch"):
            value = getattr(self, name)
            if not (value is None and name == "target_batch") and microseconds(value) <= 0:
                raise TopologyError(f"{name}={value!r}: expected a positive duration")
        if self.execution not in EXECUTIONS:
            raise TopologyError(
                f"execution={self.execution!r}; {did_you_mean(str(self.execution), EXECUTIONS)}"
            )
        for key in self.trigger or ():
            if key not in TRIGGERS:
                raise TopologyError(
                    f"trigger={self.trigger!r}: no {key!r}; {did_you_mean(str(key), TRIGGERS)}"
                )
        object.__setattr__(self, "drop_state", _names("drop_state", self.drop_state))
        names = {what: _names(f"forget[{what!r}]", self.forget.get(what, ())) for what in FORGET}
        object.__setattr__(self, "forget", names)

    @classmethod
    def of(cls, options: Options | None, settings: Mapping[str, Any]) -> Options:
        """Return the options of a call: those given as keyword arguments, before those of ``options``.

        >>> Options.of(None, {"servers": 2, "retains": 5})
        Traceback (most recent call last):
        weir.errors.TopologyError: no option 'retains'; did you mean 'retain'? Known: 'autoscale', ...
        """
        if options is not None and not isinstance(options, Options):
            raise TopologyError(
                f"{options!r} are no options: pass servers=… and others by name, or a weir.Options"
            )
        names = [f.name for f in fields(cls)]
        for name in settings:
            if name in RENAMED:
                raise TopologyError(f"{name}= is called {RENAMED[name]}= now")
            if name not in names:
                raise TopologyError(f"no option {name!r}; {did_you_mean(name, names)}")
        return cls(**settings) if options is None else replace(options, **settings)

    def check_bounded(self) -> None:
        """Raise a TopologyError if an option is set that only a streaming query has."""
        for name in ONLY_STREAMING:
            if getattr(self, name) is not None:
                raise TopologyError(
                    f"{name}= is for start(…): run(…) goes through bounded sources once, to their end; leave it out"
                )


def check_checkpoint(checkpoint: Any) -> str:
    """Return a checkpoint's folder or URI as text, or raise a TopologyError."""
    if not isinstance(checkpoint, str | os.PathLike) or not os.fspath(checkpoint):
        raise TopologyError(f"checkpoint {checkpoint!r}: expected a folder or a URI, one per query")
    return str(os.fspath(checkpoint))


def sinks_of(given: Any, where: str = "sink") -> tuple[Any, ...]:
    """Return what was given for one operator as a list of sinks and functions; none for None.

    >>> sinks_of(["out/", print])
    (Parquet('out/'), <built-in function print>)
    """
    if given is None:
        return ()
    parts = list(given) if isinstance(given, list | tuple) else [given]
    for part in parts:
        if not (isinstance(part, Sink | str) or callable(part)) or isinstance(part, type):
            raise TopologyError(
                f"{where} must be one of weir.sinks, a callable (DataFrame, batch_id), a path, or a list of these, not "
                f"{part!r}"
            )
    return tuple(Parquet(part) if isinstance(part, str) else part for part in parts)


def _names(option: str, names: Any) -> tuple[str, ...]:
    if not isinstance(names, str) and isinstance(names, Iterable):
        listed = tuple(names)
        if all(isinstance(name, str) for name in listed):
            return listed
    raise TopologyError(f'{option}={names!r}: expected a list of names, e.g. {option}=["topics"]')
