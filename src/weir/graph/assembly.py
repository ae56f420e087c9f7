"""An application put together from the streams that it ends in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from weir.errors import TopologyError
from weir.graph.build import build
from weir.graph.declare import LISTED, Part, Source, Step, agree
from weir.graph.model import Declared, Topology


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
    for part in parts:
        if isinstance(part, Source):
            names[id(part)] = part.name
            continue
        name = names[id(part)] = part.declared.name or _free(part.kind, taken)
        taken.add(name)
        inputs = tuple(names[id(before)] for before in part.inputs)
        distinct = list(zip(inputs, part.declared.sides or [0] * len(inputs), strict=True))
        if len(set(distinct)) < len(distinct):
            twice = next(i for i, _ in distinct if inputs.count(i) > 1)
            raise TopologyError(
                f"operator {name!r} unites {twice!r} with itself; name each stream once in union(…)"
            )
        operator = replace(part.declared, name=name, inputs=inputs)
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
    return Assembly(sources, tuple(declared.values()), taken_by)


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


def _free(kind: str, taken: set[str]) -> str:
    name, number = kind, 1
    while name in taken:
        number += 1
        name = f"{kind}_{number}"
    return name


def _same(one: Declared, other: Declared) -> bool:
    """Return whether two declarations say the same; operators do if they are of one class with equal attributes."""
    mine, theirs = one.operator, other.operator
    if type(mine) is not type(theirs) or replace(one, operator=theirs) != other:
        return False
    try:
        return mine is theirs or vars(mine) == vars(theirs)
    except ValueError:  # attributes that cannot be compared, such as arrays
        return False
