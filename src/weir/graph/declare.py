"""Sources and operators as a user declares them, and how an application is put together from them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from numbers import Integral
from typing import Any, TypedDict, cast

import pyarrow as pa

from weir.durations import Duration, microseconds
from weir.errors import TopologyError, did_you_mean, refuse
from weir.graph.build import build
from weir.graph.model import Declared, GroupingLike, Topology
from weir.locality.auto import Auto
from weir.locality.config import Locality
from weir.operators.base import Operator
from weir.operators.side_input import SideInput
from weir.operators.windows import EventTime, Window
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir.routing.weighted import Weighted

LISTED = " (paths)"  # ends the name of a source that lists files, before the operator that reads them


@dataclass(frozen=True)
class State:
    """The state of an operator in another checkpoint, for ``initial=`` of :meth:`weir.Stream.keyed`.

    It is taken as it is stored, with open windows, timers and times at which keys expire. So the operator must be
    defined as there, apart from what may change at a restart.

    Parameters
    ----------
    checkpoint
        The folder or URI of the other query.
    operator
        Its name there.
    batch
        The state as this batch left it; the last one if not given.
    storage_options
        Settings of the object store that it is in, as in :class:`weir.Options`.
    """

    checkpoint: str
    operator: str
    batch: int | None = None
    storage_options: Mapping[str, str | int | float | bool] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Source:
    """A source: a DataFrame and its columns, or only these, where :mod:`weir.testing` feeds it.

    Where files are fed, ``listing`` turns their paths into the rows of the source. With a ``feed`` the driver itself
    plans what is read (see :mod:`weir.engine.batch.source_batching`); a frame only says when there is something.
    """

    name: str
    schema: pa.Schema
    frame: Any = None
    inputs: tuple[Part, ...] = ()
    listing: Callable[[Iterable[Any]], pa.Table] | None = None
    event_time: EventTime | None = None
    feed: Any = None

    def same_as(self, other: Source) -> bool:
        """Return whether both read the same DataFrame, or have the same schema, and tell the time alike."""
        same = self.schema == other.schema and agree(self.event_time, other.event_time)
        return self is other or (self.frame is other.frame and same)


@dataclass(frozen=True, eq=False)
class Step:
    """An operator behind its inputs. Its name is "" until the application is known, if it has none of its own."""

    inputs: tuple[Part, ...]
    declared: Declared
    kind: str  # what an operator without a name is called
    named: bool
    initial: Any = None  # rows, or a State, that it begins with

    @property
    def event_time(self) -> EventTime | None:
        return self.declared.event_time


# what a configuration file can say; with parameters, they are made in code
GROUPINGS: dict[str, Callable[[], GroupingLike]] = {
    "auto": Auto,
    "hash": Hash,
    "locality": Locality,
    "consistent": Consistent,
    "partial_key": PartialKey,
    "weighted": lambda: Weighted(Hash()),
    "shuffle": Shuffle,
}
Part = Source | Step
Key = str | Sequence[str]


class OperatorOptions(TypedDict, total=False):
    """The parameters that all methods of :class:`Stream` share; that class explains them."""

    name: str | None
    routing: GroupingLike | str | None
    parallelism: int | None
    placement: Iterable[int] | None
    on_error: str
    timeout: Duration


class StatelessOptions(OperatorOptions, total=False):
    """Those of operators without state."""

    key: Key
    side: SideInput | None


class JoinOptions(OperatorOptions, total=False):
    """Those of joins; :meth:`Stream.keyed` explains them."""

    null_keys: str
    ttl: Duration | None
    initial: Any


class KeyedOptions(JoinOptions, total=False):
    """Those of operators with state; :meth:`Stream.keyed` explains them."""

    window: Window | None
    side: SideInput | None


def operator_step(
    inputs: tuple[Part, ...],
    operator: Operator,
    *,
    kind: str,
    key: tuple[str, ...] = (),
    name: str | None = None,
    side: Any = None,
    initial: Any = None,
    **options: Any,
) -> Step:
    """Return an operator behind its inputs, after the checks that need no knowledge of the rows."""
    where = f"operator {name or '_'.join(key) or kind!r}: "
    if name is not None and (not isinstance(name, str) or not name):
        raise TopologyError(f"name={name!r}: expected a text, not empty")
    if not isinstance(operator, Operator):
        raise TopologyError(f"{where}expected an operator such as weir.Count(), got {operator!r}")
    if side is not None:
        what = type(operator).__name__
        refuse(
            where,
            (not isinstance(side, SideInput), f"side={side!r}: expected a weir.SideInput(table)"),
            (not operator.takes_side, f"{what} has no function that could take a side input"),
        )
        operator = copy.copy(operator)
        operator.side = side
    operator.prepare()
    kinds = str | os.PathLike | State | list
    given = (
        isinstance(initial, kinds) or hasattr(initial, "toArrow") or hasattr(initial, "__arrow_c_stream__")
    )
    unfit = "expected a DataFrame, an Arrow table, a folder of Parquet, or a weir.State(checkpoint, operator)"
    refuse(
        where,
        (initial is not None and not given, f"initial={initial!r}: {unfit}"),
        (
            getattr(initial, "isStreaming", False) is True,
            "initial= is a stream; give rows that are there now",
        ),
    )
    if operator.stateful and not key:
        raise TopologyError(f'{where}it keeps state per key: give it a key, e.g. keyed("topic", …)')
    options["grouping"] = to_grouping(options.pop("routing", None), where)
    window = options.get("window")
    if options.get("parallelism") is not None:
        check_count("parallelism", options["parallelism"])
    if window is not None and not isinstance(window, Window):
        example = 'weir.tumbling("column", "10 minutes")'
        raise TopologyError(f"{where}window={window!r}: expected one such as {example}")
    options["placement"] = _placement(options.get("placement"), where)
    if "timeout" in options:
        timeout = options["timeout"]
        options["timeout"] = microseconds(timeout)
        refuse(where, (options["timeout"] <= 0, f"timeout={timeout!r}: expected more than nothing"))
    if options.get("ttl") is not None:
        options["ttl"] = microseconds(options["ttl"])
    named = name if name is not None else ("_".join(key) if operator.stateful else "")
    return Step(inputs, Declared(named, operator, (), key, **options), kind, name is not None, initial)


def timed(part: Part, time: EventTime) -> Part:
    """Return a part of an application whose rows have an event time."""
    if isinstance(part, Source):
        return replace(part, event_time=time)
    return replace(part, declared=replace(part.declared, event_time=time))


def declared_time(parts: Sequence[Part]) -> str | None:
    """Return the column that all of some parts have declared as their event time, or passed on; None if they don't."""
    columns: set[str | None] = set()
    for part in parts:
        time = part.event_time
        passes = isinstance(part, Step) and part.declared.passes
        columns.add(time.column if time is not None else declared_time(part.inputs) if passes else None)
    return columns.pop() if len(columns) == 1 else None


def check_count(name: str, value: Any, otherwise: str = "") -> None:
    """Raise a TopologyError unless a parameter is a whole number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TopologyError(f"{name}={value!r}: expected a whole number, 1 or more{otherwise}")


def to_grouping(routing: Any, where: str = "") -> GroupingLike | None:
    """Return the grouping that a parameter is or names; raise a TopologyError if it is neither, nor None.

    >>> to_grouping("consistent") == Consistent()
    True
    """
    if routing is None:
        return None
    if isinstance(routing, str):
        if routing not in GROUPINGS:
            raise TopologyError(f"{where}routing={routing!r}: {did_you_mean(routing, GROUPINGS)}")
        return GROUPINGS[routing]()
    fits, kind = hasattr(routing, "for_operator"), getattr(routing, "__name__", "")
    named = 'expected a grouping such as weir.Locality(), or its name, such as "locality"'
    refuse(
        where,
        (isinstance(routing, type) and fits, f"routing={kind}: make one, as in routing={kind}()"),
        (not fits, f"routing={routing!r}: {named}"),
    )
    return cast(GroupingLike, routing)


def agree(one: EventTime | None, other: EventTime | None) -> bool:
    return one is None or other is None or one == other


def _placement(placement: Any, where: str) -> tuple[int, ...] | None:
    if placement is None:
        return None
    servers = tuple(placement) if isinstance(placement, Iterable) else (None,)
    wrong = f"placement={placement!r}: expected a list of servers, e.g. placement=[1, 3]"
    refuse(where, (not all(isinstance(server, Integral) for server in servers), wrong))
    return tuple(int(server) for server in servers)


@dataclass(frozen=True, eq=False)
class Attached:
    """Sinks that a stream was given, and what they get of its last operator; see :mod:`weir.graph.model`."""

    part: Part
    suffix: str
    sinks: tuple[Any, ...]


@dataclass(frozen=True)
class Assembly:
    """All that some streams depend on: sources, operators, and the sinks that they were given."""

    sources: dict[str, Source]
    declared: tuple[Declared, ...]
    sinks: dict[str, tuple[Any, ...]]
    initial: dict[str, Any]  # what operators begin with

    def __str__(self) -> str:
        return " → ".join([*self.sources, *(d.name for d in self.declared)])

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of each source."""
        return {name: source.schema for name, source in self.sources.items()}

    @property
    def frames(self) -> dict[str, Any]:
        """The DataFrame of each source that has one."""
        return {name: source.frame for name, source in self.sources.items() if source.frame is not None}

    @property
    def listings(self) -> dict[str, Callable[[Iterable[Any]], pa.Table]]:
        """How lists of paths become rows, for each source of files that is fed by :mod:`weir.testing`."""
        return {name: source.listing for name, source in self.sources.items() if source.listing is not None}

    @property
    def feeds(self) -> dict[str, Any]:
        """The sources of which the driver itself plans what is read."""
        return {name: source.feed for name, source in self.sources.items() if source.feed is not None}

    @property
    def leaves(self) -> list[str]:
        """The operators that nothing follows."""
        used = {name for d in self.declared for name in d.inputs}
        return [d.name for d in self.declared if d.name not in used]

    def topology(
        self, servers: int, placements: Mapping[str, Sequence[int]] | None = None, **terms: Any
    ) -> Topology:
        """Return the validated application; ``terms`` are those of :func:`weir.graph.build.build`."""
        times = {name: s.event_time for name, s in self.sources.items() if s.event_time is not None}
        return build(self.schemas, self.declared, servers, placements=placements, times=times, **terms)


def assemble(ends: Sequence[Part], sinks: Sequence[Attached] = ()) -> Assembly:
    """Return all that some parts of an application depend on, with the sinks that streams were given.

    Inputs come before what follows them, in the order in which they are reached from the ends: the same streams
    give the same application. A part that is reached in several ways is there once. So are two declarations of one
    name that say the same, as a notebook cell makes them that is run again.
    """
    parts = _ancestors([*ends, *(attached.part for attached in sinks)])
    sources: dict[str, Source] = {}
    for part in parts:
        if isinstance(part, Source) and not part.same_as(sources.setdefault(part.name, part)):
            name = part.name.removesuffix(LISTED)
            raise TopologyError(
                f"two sources are named {name!r}; pass name= to one of them. If they are one, give it one event_time"
            )
        if isinstance(part, Source) and part.event_time is not None:
            sources[part.name] = part  # declared on one of its ways, it holds on all
    taken = {*sources, *(part.declared.name for part in parts if isinstance(part, Step))}
    names: dict[int, str] = {}
    declared: dict[str, Declared] = {}
    initial: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, Source):
            names[id(part)] = part.name
            continue
        numbered = chain([part.kind], (f"{part.kind}_{number}" for number in count(2)))
        name = names[id(part)] = part.declared.name or next(n for n in numbered if n not in taken)
        taken.add(name)
        inputs = tuple(names[id(before)] for before in part.inputs)
        distinct = list(zip(inputs, part.declared.sides or [0] * len(inputs), strict=True))
        if len(set(distinct)) < len(distinct):
            twice = next(i for i, _ in distinct if inputs.count(i) > 1)
            raise TopologyError(
                f"operator {name!r} unites {twice!r} with itself; name each stream once in union(…)"
            )
        operator = replace(part.declared, name=name, inputs=inputs)
        if part.initial is not None and initial.setdefault(name, part.initial) is not part.initial:
            raise TopologyError(f"operator {name!r} is declared twice, each time with an initial= of its own")
        first = declared.setdefault(name, operator)
        time = operator.event_time or first.event_time
        declared[name] = replace(first, event_time=time)
        if not (
            agree(operator.event_time, first.event_time)
            and _same(replace(operator, event_time=time), declared[name])
        ):
            why = "" if part.named else f", after the key {', '.join(operator.key)}"
            raise TopologyError(
                f"two operators are named {name!r}{why}; pass name= to one of them: saved state is found by name"
            )
    taken_by: dict[str, tuple[Any, ...]] = {}
    for attached in sinks:
        sink_name = names[id(attached.part)] + attached.suffix
        taken_by[sink_name] = added(taken_by.get(sink_name, ()), attached.sinks)
    return Assembly(sources, tuple(declared.values()), taken_by, initial)


def added(sinks: Sequence[Any], more: Sequence[Any]) -> tuple[Any, ...]:
    """Return sinks and more of them, each once: streams that share an operator share its sinks."""
    return (*sinks, *(sink for sink in more if sink not in sinks))


def _ancestors(ends: Sequence[Part]) -> list[Part]:
    """Return the ends and all that they depend on, inputs first."""
    order: list[Part] = []
    done: set[int] = set()
    stack = [(end, False) for end in reversed(ends)]
    while stack:
        part, inputs_done = stack.pop()
        if id(part) in done:
            continue
        if inputs_done:
            done.add(id(part))
            order.append(part)
        else:
            stack.append((part, True))
            stack.extend((before, False) for before in reversed(part.inputs))
    return order


def _same(one: Declared, other: Declared) -> bool:
    """Return whether two declarations say the same; operators do if they are of one class with equal attributes."""
    mine, theirs = one.operator, other.operator
    if type(mine) is not type(theirs) or replace(one, operator=theirs) != other:
        return False
    try:
        return mine is theirs or vars(mine) == vars(theirs)
    except ValueError:  # attributes that cannot be compared, such as arrays
        return False
