"""What cannot work is refused when the application is built, with the reason and a remedy."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

import weir
from weir.graph.build import build
from weir.graph.model import Declared
from weir.operators.windows import EventTime, Window

POSTS = pa.schema(
    [
        ("place", pa.string()),
        ("topic", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("score", pa.float64()),
    ]
)


@dataclass
class Seen:
    n: int = 0


class Last(weir.Process):
    state = Seen
    output = {"topic": "string"}

    def process(self, key, rows, state):
        state.n += len(rows)


class Alarmed(Last):
    timers = "event"

    def process(self, key, rows, state, timers):
        state.n += len(rows)

    def on_timer(self, key, timer, state, timers):
        return None


def built(*declared, servers=4, **options):
    return build({"posts": POSTS}, declared, servers, **options)


def counts(name="c", key=("place",), inputs=("posts",), **options):
    return Declared(name, weir.Count(emit="rows"), inputs, key, **options)


@pytest.mark.parametrize(
    ("declared", "error", "says"),
    [
        (counts(key=("plce",)), weir.errors.UnknownColumn, "did you mean 'place'"),
        (counts(key=("score",)), weir.errors.TopologyError, "cannot be a key"),
        (counts(key=()), weir.errors.TopologyError, "give it a key"),
        (counts(name="posts"), weir.errors.TopologyError, "two parts of the application are named 'posts'"),
        (counts(name="place~held"), weir.errors.TopologyError, "names what Weir keeps beside them"),
        (counts(name="place~late"), weir.errors.TopologyError, "names what Weir keeps beside them"),
        (counts(name="__dead_letters"), weir.errors.TopologyError, "names what Weir keeps beside them"),
        (counts(inputs=("post",)), weir.errors.TopologyError, "did you mean 'posts'"),
        (counts(parallelism=5), weir.errors.TopologyError, "parallelism 5, but there are 4 servers"),
        (counts(placement=(0, 0)), weir.errors.TopologyError, "names a server twice"),
        (counts(placement=(9,)), weir.errors.TopologyError, "impossible"),
        (counts(null_keys="ignore"), weir.errors.TopologyError, "null_keys"),
        (counts(on_error="shrug"), weir.errors.TopologyError, "on_error"),
        (counts(window=Window("topic", 10)), weir.errors.TopologyError, "not a timestamp"),
        (counts(window=Window("tme", 10)), weir.errors.UnknownColumn, "did you mean 'time'"),
        (counts(window=Window("time", 0)), weir.errors.TopologyError, "positive size"),
        (counts(ttl=-1), weir.errors.TopologyError, "ttl must be positive"),
        (counts(window=Window("time", 10), ttl=5), weir.errors.TopologyError, "ends by itself"),
        (
            Declared("a", weir.Aggregate(x="sum(topic)"), ("posts",), ("place",)),
            weir.errors.TopologyError,
            "does not work on type string",
        ),
        (
            Declared("a", weir.Aggregate(x="sum(scre)"), ("posts",), ("place",)),
            weir.errors.UnknownColumn,
            "did you mean 'score'",
        ),
        (
            Declared("a", weir.Aggregate(place="count"), ("posts",), ("place",)),
            weir.errors.TopologyError,
            "rename the value",
        ),
        (
            Declared("p", Last(), ("posts",), ("topic",), grouping=weir.Shuffle()),
            weir.errors.GroupingError,
            "cannot merge partial states",
        ),
        (
            Declared("p", Last(), ("posts",), ("topic",), grouping=weir.Weighted(weir.Hash())),
            weir.errors.GroupingError,
            r"Weighted \('WG'\) on the edge posts → p .* cannot merge partial states",
        ),
        (
            Declared(
                "m",
                weir.operators.Filter(lambda batch: batch["score"]),
                ("posts",),
                grouping=weir.Weighted(weir.Hash()),
            ),
            weir.errors.GroupingError,
            r"Weighted \('WG'\) routes by key",
        ),
        (counts(grouping=weir.Table.of({"x": 7})), weir.errors.GroupingError, "names instance 7"),
        (
            Declared("p", Last(order_by="when"), ("posts",), ("topic",)),
            weir.errors.UnknownColumn,
            "no column 'when'",
        ),
        (
            Declared("w", Last(), ("posts",), ("topic",), window=Window("time", 5, session=True)),
            weir.errors.TopologyError,
            "two sessions of a key one, and Last cannot merge",
        ),
        (
            Declared("w", Last(), ("posts",), ("topic",), window=Window("time", 5, early=1)),
            weir.errors.TopologyError,
            "early= is for Count and Aggregate",
        ),
        (
            Declared("w", Alarmed(), ("posts",), ("topic",), window=Window("time", 5)),
            weir.errors.TopologyError,
            "timers are for a Process without one",
        ),
        (
            Declared("t", Alarmed(), ("posts",), ("topic",)),
            weir.errors.TopologyError,
            "timers by event time, but what comes from 'posts' has none",
        ),
        (
            counts(grouping=weir.PartialKey(), window=Window("time", 5)),
            weir.errors.GroupingError,
            "windows, timers and ttl are not available behind",
        ),
        (counts(event_time=EventTime("tme")), weir.errors.UnknownColumn, "did you mean 'time'"),
        (counts(event_time=EventTime("topic")), weir.errors.TopologyError, "not a timestamp"),
    ],
)
def test_each_mistake_has_its_message(declared, error, says):
    with pytest.raises(error, match=says):
        built(declared)


def test_cycles_and_unlike_unions_are_refused():
    with pytest.raises(weir.errors.TopologyError, match="cycle among: a → b"):
        built(counts("a", inputs=("b",)), counts("b", inputs=("a",)))
    other = pa.schema([("place", pa.int64())])
    with pytest.raises(weir.errors.TopologyError, match="differ in column 'place'"):
        build({"posts": POSTS, "more": other}, [counts(inputs=("posts", "more"))], 2)


def test_operators_check_themselves():
    with pytest.raises(weir.errors.TopologyError, match="at least one value"):
        weir.Aggregate()
    with pytest.raises(weir.errors.TopologyError, match="did you mean 'sum'"):
        weir.Aggregate(x="summ(y)")
    with pytest.raises(weir.errors.TopologyError, match="needs a column"):
        weir.Aggregate(x="sum")
    with pytest.raises(weir.errors.TopologyError, match="pass a function, or subclass"):
        weir.Process()
    with pytest.raises(weir.errors.TopologyError, match="dataclass or msgspec.Struct"):
        weir.Process(lambda k, r, s: None, state=dict)

    @dataclass
    class Needs:
        n: int

    with pytest.raises(weir.errors.TopologyError, match="creatable without arguments"):
        weir.Process(lambda k, r, s: None, state=Needs)
    with pytest.raises(weir.errors.TopologyError, match="10 minutes"):
        weir.tumbling("time", "ten minutes")


def test_only_columns_that_somebody_reads_travel():
    a = counts("a")
    b = Declared("b", weir.Aggregate(best="max(score)"), ("a",), ("topic",))
    pruned = built(a, b)
    assert [e.schema.names for e in pruned.edges] == [["place", "topic", "score"], ["topic", "score"]]
    whole = built(a, b, prune=False)
    assert [e.schema.names for e in whole.edges] == [POSTS.names, POSTS.names]


def test_levels_count_the_exchanges_on_the_longest_path():
    a, b = counts("a"), counts("b", key=("topic",), inputs=("a",))
    side = counts("side", key=("topic",))
    joined = counts("joined", key=("place",), inputs=("b", "side"))
    topology = built(a, b, side, joined)
    assert {n.name: n.level for n in topology.nodes} == {"a": 1, "b": 2, "side": 1, "joined": 3}
    assert topology.steps == 3
