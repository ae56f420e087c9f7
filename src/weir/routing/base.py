"""What a grouping is: the rule that picks the receiving instance of an operator for each row.

A :class:`Grouping` is an immutable description that a user writes down. A :class:`Router` is one running copy of
it, owned by one upstream instance ("source" in the papers). The engine, the simulator and the figures all route
through the same routers.

The engine never asks for a grouping's class, only for what is written here. So one that you write gets everything
that ours get.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import ParameterError

if TYPE_CHECKING:
    from weir.routing.table import Table

Keys = NDArray[np.uint64]
Instances = NDArray[np.int32]
Counters = dict[str, NDArray[np.generic]]
Feedback = Any  # JSON-able data, from Grouping.feedback to Router.listen
PERIODS = 1 << 20  # that are numbered in a batch: parts of it, then the batch as a whole


@dataclass(frozen=True)
class RouterContext:
    """Everything that a router may depend on."""

    n: int  # receiving instances
    # makes random choices repeatable; the same for every batch and source, so that a key keeps its
    # choices
    seed: int = 0
    source: int = 0  # number of the upstream instance
    local: int = -1  # the instance on the same server, −1 if none
    # how far each receiver is (`weir.network.distance.Distance`); None if nobody knows
    distances: NDArray[np.int8] | None = None


@dataclass(frozen=True)
class InstanceLoad:
    """What the instances of an operator did in a period: rows, seconds of work, seconds that rows waited in all.

    A period is a batch, or on live servers a part of it. Its number grows; a batch as a whole comes after its parts.
    """

    period: int
    rows: NDArray[np.float64]
    busy: NDArray[np.float64]
    waited: NDArray[np.float64]
    warm: bool = True  # not in the first batch of a run, which loads modules and compiles


@dataclass(frozen=True)
class PlannedRouting:
    """What a batch's plan says about the routing of one operator."""

    # the table in force, with key groups once scaling has taken homes of unlisted keys from their plain hash
    table: Table | None = None
    hot: Keys | None = None  # hashes of keys that are too heavy for one server
    spare: float = 0.0  # part of all keys, by hash, whose rows may go to other servers than their home


@dataclass(frozen=True)
class RoutingRule:
    """A rule as data: keys with homes of their own, key groups for all others."""

    homes: Instances  # the instance of each key group; see weir.hashing.key_group
    # hashes of keys that live elsewhere than their key group, and the instance of each
    listed: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    instances: Instances = field(default_factory=lambda: np.empty(0, np.int32))


class Router(ABC):
    """Routes the rows of one upstream instance to ``n`` downstream instances.

    Keys arrive as 64-bit hashes (see :mod:`weir.hashing`). ``route`` may change the router's counters;
    everything that later answers depend on is in :meth:`counters`, so that a router restored from them
    goes on exactly as the original would have. That is how a replayed batch routes the same.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ParameterError(f"a router needs at least one instance, got {n}")
        self.n = n

    @abstractmethod
    def route(self, keys: Keys) -> Instances:
        """Return the receiving instance, 0 … n−1, of each key, in the order given; any 64-bit number may come.

        Called once or many times per batch, never without keys: turns and loads go on from call to call.
        """

    def counters(self) -> Counters:
        """Return everything that later answers depend on, as arrays; empty for stateless routers.

        They are kept per edge and upstream instance, and written with every batch: keep them small. After a change of
        servers routers begin anew, without :meth:`restore`. So results must not depend on them.
        """
        return {}

    def restore(self, counters: Counters) -> None:  # noqa: B027 - a stateless router has nothing to restore
        """Go on from counters taken with :meth:`counters`."""

    def listen(self, feedback: Feedback) -> None:  # noqa: B027 - most routers don't
        """Take in what :meth:`Grouping.feedback` made of the load of the last period."""

    def server_slowed(self) -> None:  # noqa: B027 - most routers keep to their plan
        """Hear, in the middle of a batch, that a server is much slower than when the batch was planned."""

    def shares(self) -> list[int] | None:
        """Return the weight of each receiver, where weights decide: the part of the rows that it gets."""
        return None

    @property
    def shares_decide(self) -> bool:
        """Whether they decide alone, so that each receiver gets just that part."""
        return True


class Grouping(ABC):
    """An immutable, user-facing description of a grouping; compares by value.

    Attributes say what the grouping may do, and plans are refused by them:

    * ``splits_keys``: rows of one key may reach several instances, so the operator behind it must merge. State lives
      at the key's home by hash. Without it, all routers must send a key to one instance, whatever their seed.
    * ``keyed``: it needs a key; otherwise it only suits stateless operators.
    * ``order_free``: the answer for a row depends on that row alone. Other groupings are handed all rows of a task in a
      canonical order, since a task that Spark runs again must route each row as before.
    * ``stays_local``: rows stay on their server wherever that has an instance.
    * ``learnt``: tables are learnt for it while the stream runs (``settings`` says how).
    * ``uses_distances``: routers want to know how far receivers are.
    * ``follows_load``: routers want :meth:`feedback` also while a batch runs, where that can be had.
    * ``scales``: keys and their state can move to another number of instances while the stream runs.
      ``scales_by_key_group``: by moving as few key groups as balance needs; otherwise its own routers for the
      new number say where keys live (not where it splits keys: there homes follow the hash).

    :class:`CountingGrouping` sets what one needs that splits keys by what it has sent. The guide has an example. An
    application is built only if routers keep these promises for some keys; see :func:`weir.testing.check_grouping`.

    Routers get a key's 64-bit hash (Spark's ``xxhash64``), never its value. To route by a range of keys, make the
    range a column and a part of the key.
    """

    # what progress calls it and checkpoints know it by: after a restart, one of the same name goes on with its counters
    name: ClassVar[str]
    splits_keys: ClassVar[bool] = False
    keyed: ClassVar[bool] = True
    order_free: ClassVar[bool] = True
    stays_local: ClassVar[bool] = False
    learnt: ClassVar[bool] = False
    uses_distances: bool = False
    follows_load: bool = False
    scales_by_key_group: ClassVar[bool] = False
    settings: Any = None  # a weir.Locality, where tables are learnt

    def __str__(self) -> str:
        """Return what errors call it."""
        return f"{type(self).__name__} ({self.name!r})"

    @abstractmethod
    def make_router(self, context: RouterContext) -> Router:
        """Return a router for one upstream instance."""

    def router(
        self,
        n: int,
        *,
        seed: int = 0,
        source: int = 0,
        local: int = -1,
        distances: ArrayLike | None = None,
    ) -> Any:
        """Return a router to ``n`` instances; the terms are those of :class:`RouterContext`."""
        far = None if distances is None else np.asarray(distances, np.int8)
        if far is not None and far.shape != (n,):
            raise ParameterError(f"expected the distances of {n} receivers, got {far.shape}")
        return self.make_router(RouterContext(n, seed, source, local, far))

    def rule(self, n: int) -> RoutingRule | None:
        """Return the rule for ``n`` instances as data, or None if only its routers know.

        It must agree with the routers: a key goes to the same instance by either.
        """
        return None

    @property
    def home_rule(self) -> Grouping | None:
        """The rule by which every key has its one home; None: its hash decides, or its key group."""
        return None if self.splits_keys else self

    @property
    def scales(self) -> bool:
        """Whether keys can move to another number of instances in mid-stream."""
        return self.splits_keys or self.order_free

    def in_force(self, planned: PlannedRouting) -> Grouping:
        """Return the grouping of a batch: with what its plan says, where that decides."""
        table = planned.table
        scaled = table is not None and table.key_groups is not None and self.scales_by_key_group
        return table if table is not None and scaled else self

    def for_operator(self, operator: OperatorTraits) -> Grouping:
        """Return the grouping that stands for this one in front of an operator."""
        return self

    def feedback(self, load: InstanceLoad) -> Feedback | None:
        """Return what routers should hear of a period's load, as JSON-able data; None if nothing."""
        return None

    def check(self, n: int, where: str) -> None:  # noqa: B027 - most fit any number
        """Raise a GroupingError unless it fits ``n`` instances; ``where`` names the operator."""

    def signature(self) -> list[Any]:
        """Return what the homes of saved keys depend on, as JSON-able data."""
        if self.splits_keys:
            return [self.name]  # states live by hash
        # an object's default representation names its address, which differs from run to run
        plain = type(self).__repr__ is object.__repr__
        text = repr(sorted(vars(self).items())) if plain else repr(self)
        return [self.name, zlib.crc32(text.encode())]


class CountingGrouping(Grouping):
    """A grouping that splits keys by what its routers have sent so far."""

    splits_keys: ClassVar[bool] = True
    order_free: ClassVar[bool] = False


@dataclass(frozen=True)
class OperatorTraits:
    """What a grouping may ask about the operator behind it."""

    name: str
    mergeable: bool = False
    timed: bool = False  # has windows or a ttl
    everywhere: bool = True  # has an instance on every server
    explicit: bool = False  # the routing was given for this very operator


def part_of(counters: Mapping[str, NDArray[np.generic]], prefix: str) -> Counters:
    """Return the counters whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in counters.items() if k.startswith(prefix)}
