"""A grouping that breaks what it promises is refused: at build, at a change of servers, or in the batch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import weir
import weir.testing
from support import POSTS, posts
from weir.errors import GroupingError, OperatorError
from weir.hashing import key_group, mix
from weir.operators import Filter
from weir.routing import CountingGrouping, Grouping, InstanceLoad, Router, RouterContext, RoutingRule
from weir.routing.checks import NAMES

TABLE = posts(300, 1, places=15, topics=60)
EDGE = r"^operator 'topics': \w+ \('\w+'\) on the edge source → topics: "


def counted(grouping: Grouping) -> Any:
    return weir.source(POSTS).count("topic", name="topics", routing=grouping)


def total(query: weir.testing.LocalQuery) -> int:
    state = query.state("topics").to_pylist()
    assert len({row["topic"] for row in state}) == len(state), "a key lives twice"
    return sum(row["count"] for row in state)


def in_process(context: RouterContext, keys: np.ndarray) -> np.ndarray:
    return key_group(keys, context.n)


@dataclass(frozen=True)
class Routed(Grouping):
    """Routes by a function of the router's context and the keys; the flags are what a user has to say."""

    by: Any = in_process
    homes: Any = None
    listed: tuple[int, ...] = ()
    instances: tuple[int, ...] = ()
    splits_keys: bool = False  # type: ignore[misc]
    order_free: bool = True  # type: ignore[misc]
    name: ClassVar[str] = "routed"
    uses_distances = True

    def make_router(self, context: RouterContext) -> Router:
        return _Routed(context, self.by)

    def rule(self, n: int) -> RoutingRule | None:
        if self.homes is None:
            return None
        listed, instances = np.array(self.listed, np.uint64), np.array(self.instances, np.int32)
        return RoutingRule(np.asarray(self.homes(n), np.int32), listed, instances)


class _Routed(Router):
    def __init__(self, context: RouterContext, by: Any) -> None:
        super().__init__(context.n)
        self.context, self.by = context, by

    def route(self, keys: np.ndarray) -> Any:
        return self.by(self.context, keys)


class _Turns(Router):
    """In turn from row to row; nothing is counted before the first."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.next = 0

    def route(self, keys: np.ndarray) -> np.ndarray:
        out = (self.next + np.arange(len(keys))) % self.n
        self.next = int(out[-1]) + 1
        return out


class _CountingTurns(_Turns):
    def counters(self) -> dict[str, np.ndarray]:
        return {"next": np.array([self.next])} if self.next else {}


class _RestoredTurns(_CountingTurns):
    def restore(self, counters: dict[str, np.ndarray]) -> None:
        self.next = int(counters["next"][0])


SPLITS = r"rows of one key go to several instances \(hash \d+ to \d and \d\), so it needs splits_keys = True"


@pytest.mark.parametrize(
    ("router", "said", "needs"),
    [
        (_RestoredTurns, {}, f"{SPLITS} and order_free = False$"),
        (_Turns, {}, f"{SPLITS} and order_free = False$"),
        (_RestoredTurns, {"order_free": False}, f"{SPLITS}$"),
        (_RestoredTurns, {"splits_keys": True}, ".* several instances .* it needs order_free = False$"),
        (
            _CountingTurns,
            {"splits_keys": True},
            r".* needs order_free = False and restore\(counters\) on its router$",
        ),
        (
            _CountingTurns,
            {"splits_keys": True, "order_free": False},
            r".* needs restore\(counters\) on its router$",
        ),
    ],
)
def test_a_router_that_goes_by_the_rows_before_needs_all_of_this(tmp_path, router, said, needs) -> None:
    class Turns(Grouping):
        name = "turns"
        splits_keys, order_free = said.get("splits_keys", False), said.get("order_free", True)

        def make_router(self, context: RouterContext) -> Router:
            return router(context.n)

    with pytest.raises(GroupingError, match=EDGE + needs):
        weir.testing.start(counted(Turns()), str(tmp_path / "ckpt"), servers=2)
    assert not (tmp_path / "ckpt").exists()


def test_what_one_instance_cannot_show_is_refused_when_there_are_to_be_two() -> None:
    turns = Routed(lambda context, keys: np.arange(len(keys)) % context.n)
    with weir.testing.start(counted(turns), servers=1) as query:
        query.feed(TABLE)
        with pytest.raises(GroupingError, match=EDGE + SPLITS):
            query.scale_out(1)
        query.feed(TABLE)
        assert (query.topology.servers, total(query)) == (1, 2 * len(TABLE))


@pytest.mark.parametrize(
    "by",
    [
        lambda context, keys: mix(keys, np.uint64(context.seed)) % np.uint64(context.n),
        lambda context, keys: np.where(context.local < 0, key_group(keys, context.n), context.local),
        lambda context, keys: (key_group(keys, context.n) + context.source) % context.n,
        lambda context, keys: np.full(
            len(keys), 0 if context.distances is None else context.distances.argmin()
        ),
    ],
    ids=["seed", "local", "source", "distances"],
)
def test_upstream_instances_must_agree_on_the_home_of_a_key(by) -> None:
    by_key = r" \(or to go by the key alone, not by seed, source, local or distances\)$"
    with pytest.raises(GroupingError, match=EDGE + SPLITS + by_key):
        weir.testing.start(counted(Routed(by)), servers=3)
    with weir.testing.start(counted(Routed(by, splits_keys=True)), servers=3) as query:
        query.feed(TABLE)
        query.feed(TABLE)
        assert total(query) == 2 * len(TABLE)


def test_keys_may_be_split_in_front_of_an_operator_without_state() -> None:
    chosen = Routed(lambda context, keys: np.full(len(keys), max(0, context.local)))
    kept = weir.source(POSTS).keyed("topic", Filter(lambda rows: rows["n"]), name="kept", routing=chosen)
    with pytest.raises(OperatorError):  # it is built, and runs
        weir.testing.run(kept, [TABLE], servers=2)


def contiguous(context: RouterContext, keys: np.ndarray) -> np.ndarray:
    return key_group(keys, 8) * context.n // 8


@pytest.mark.parametrize(
    ("grouping", "why"),
    [
        (Routed(contiguous, lambda n: np.arange(8) % n), r"by rule\(2\) the key with hash \d+ lives on inst"),
        (Routed(homes=np.arange, listed=(7, 9), instances=(0, 1)), "hash 9 lives on instance 1, .* it to 0"),
        (Routed(homes=np.arange, listed=(7, 9), instances=(0,)), "an instance for each listed key"),
        (Routed(homes=lambda n: []), "for each key group"),
        (Routed(homes=lambda n: [0, "one"]), "ValueError: .*test_checks.py"),
    ],
    ids=["homes", "listed", "lengths", "no groups", "no numbers"],
)
def test_a_rule_must_agree_with_its_routers(grouping, why) -> None:
    with pytest.raises(GroupingError, match=EDGE + ".*" + why):
        weir.testing.start(counted(grouping), servers=2)


def test_a_rule_that_is_wrong_for_another_number_of_servers_is_refused_when_they_change(tmp_path) -> None:
    grouping = Routed(contiguous, lambda n: np.arange(8) // 4 if n == 2 else np.arange(8) % n)
    folder = str(tmp_path / "ckpt")
    with weir.testing.start(counted(grouping), folder, servers=2) as query:
        query.feed(TABLE)
        with pytest.raises(GroupingError, match=EDGE + r"by rule\(3\) .* state moves by rule"):
            query.scale_out(1)
        query.feed(TABLE)
        assert (query.topology.servers, total(query)) == (2, 2 * len(TABLE))
    with pytest.raises(GroupingError, match=EDGE + r"by rule\(4\)"):
        weir.testing.start(counted(grouping), folder, servers=4)
    with weir.testing.start(counted(grouping), folder, servers=2) as query:
        query.feed(TABLE)
        assert total(query) == 3 * len(TABLE)


def fails(context: RouterContext, keys: np.ndarray) -> None:
    raise KeyError("second")


WRONG = {
    "too large": (
        lambda c, keys: np.full(len(keys), 7),
        r"it answered instance 7 of 3 \(row 0\); route must",
    ),
    "negative": (lambda c, keys: np.full(len(keys), -1, np.int32), r"it answered instance -1 of 3 \(row 0\)"),
    "too short": (lambda c, keys: np.zeros(1, np.int32), r"it answered 1 int32 values for \d+ keys"),
    "nothing": (lambda c, keys: None, r"it answered None for \d+ keys; route must return an integer"),
    "floats": (lambda c, keys: np.zeros(len(keys)), r"it answered \d+ float64 values for \d+ keys"),
    "an error": (fails, r"KeyError: 'second' \(test_checks.py, line \d+\)$"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("counts", [False, True], ids=["order-free", "counts"])
@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_what_a_router_answers_in_a_batch_is_looked_at(wrong, counts, execution) -> None:
    answer, why = WRONG[wrong]
    now: list[Any] = [in_process]
    grouping = Routed(lambda context, keys: now[0](context, keys), splits_keys=counts, order_free=not counts)
    with weir.testing.start(counted(grouping), servers=3, execution=execution) as query:
        query.feed(TABLE)
        now[0] = answer
        who = r"^operator 'topics': the router of Routed \('routed'\) on the edge source → topics: "
        with pytest.raises(GroupingError, match=who + why):
            query.feed(TABLE)
        assert query._driver.ledger.last.batch == 0
        now[0] = in_process
        query.restart()
        query.feed(TABLE)
        assert total(query) == 2 * len(TABLE)


def test_lists_and_other_integers_are_as_good() -> None:
    kinds = itertools.cycle([list, np.int64, np.uint8])

    def listed(context: RouterContext, keys: np.ndarray) -> Any:
        kind, out = next(kinds), key_group(keys, context.n)
        return out.tolist() if kind is list else out.astype(kind)

    query = weir.testing.run(counted(Routed(listed)), [TABLE] * 3, servers=3)
    assert total(query) == 3 * len(TABLE)


def test_what_a_weighted_grouping_asks_first_is_looked_at_too() -> None:
    with pytest.raises(GroupingError, match="'topics': its routing table names instance 7"):
        weir.testing.start(counted(weir.Weighted(weir.Table.of({"x": 7}))), servers=3)
    beyond = weir.Weighted(Routed(lambda context, keys: np.full(len(keys), context.n)))
    with pytest.raises(GroupingError, match=r"router of Weighted \('WG'\) on .* answered instance 3 of 3"):
        weir.testing.run(counted(beyond), [TABLE], servers=3)


def test_counters_that_no_longer_fit_name_the_grouping() -> None:
    known = "next"

    class Forgetful(_RestoredTurns):
        def restore(self, counters: dict[str, np.ndarray]) -> None:
            self.next = int(counters[known][0])

    class Turns(CountingGrouping):
        name = "turns"

        def make_router(self, context: RouterContext) -> Router:
            return Forgetful(context.n)

    with weir.testing.start(counted(Turns()), servers=2) as query:
        query.feed(TABLE)
        known = "turn"
        why = r"KeyError: 'turn' \(test_checks.py, line \d+\)$"
        with pytest.raises(GroupingError, match=r"the router of Turns \('turns'\) on the edge .*: " + why):
            query.feed(TABLE)
        with pytest.raises(GroupingError, match=EDGE + why):
            query.restart()
        known = "next"
        query.restart()
        query.feed(TABLE)
        assert total(query) == 2 * len(TABLE)


def test_a_grouping_needs_a_name_of_its_own() -> None:
    class NoName(Grouping):
        def make_router(self, context: RouterContext) -> Router:
            return _Routed(context, in_process)

    class Taken(NoName):
        name = "PKG"

    class Inherits(weir.Hash):
        pass

    with pytest.raises(GroupingError, match=r"'topics': NoName needs name = \"…\": progress and checkpoints"):
        weir.testing.start(counted(NoName()))
    with pytest.raises(
        GroupingError,
        match=r"'topics': Taken \('PKG'\) needs another name: in checkpoints",
    ):
        weir.testing.start(counted(Taken()))
    assert total(weir.testing.run(counted(Inherits()), [TABLE])) == len(TABLE)
    ours = {
        k.name for k in _below(Grouping) if k.__module__.startswith("weir.routing.") and hasattr(k, "name")
    }
    assert ours == set(NAMES)


def _below(kind: type) -> set[type]:
    return {kind}.union(*map(_below, kind.__subclasses__()))


# ---------------------------------------------------------------------- weir.testing.check_grouping


def test_what_is_refused_at_build_is_refused_by_name_and_number_of_instances() -> None:
    turns = Routed(lambda context, keys: np.arange(len(keys)) % context.n, order_free=False)
    with pytest.raises(GroupingError, match=r"^Routed \('routed'\), n=2: " + SPLITS):
        weir.testing.check_grouping(turns)
    weir.testing.check_grouping(turns, stateful=False)
    weir.testing.check_grouping(Routed(contiguous, lambda n: np.arange(8) * n // 8))
    with pytest.raises(GroupingError, match=r"n=3: by rule\(3\)"):
        weir.testing.check_grouping(Routed(contiguous, lambda n: np.arange(8) * n // 8 if n < 3 else [0]))


def test_a_router_must_go_on_from_its_counters_and_feedback_must_be_json() -> None:
    class Forgets(_RestoredTurns):
        def restore(self, counters: dict[str, np.ndarray]) -> None:
            self.next = 0

    class Turns(CountingGrouping):
        name = "turns"
        made: Any = Forgets
        told: Any = None

        def make_router(self, context: RouterContext) -> Router:
            return self.made(context.n)

        def feedback(self, load: InstanceLoad) -> Any:
            return self.told

    with pytest.raises(GroupingError, match="n=2: a router that is restored from counters.. does not go on"):
        weir.testing.check_grouping(Turns())
    with pytest.raises(GroupingError, match=EDGE + "a router that is restored"):
        weir.testing.start(counted(Turns()), servers=3)
    Turns.made = _RestoredTurns
    weir.testing.check_grouping(Turns())
    Turns.told = np.ones(2)
    with pytest.raises(GroupingError, match="n=1: TypeError: .* numpy.ndarray"):
        weir.testing.check_grouping(Turns())
