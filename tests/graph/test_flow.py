"""Streams are values, applications are what streams depend on, and options are checked before anything starts."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa
import pytest

import weir
from weir.errors import TopologyError, UnknownColumn
from weir.flow import parts_of
from weir.options import Options, Settings
from weir.routing import LocalOrShuffle

POSTS = "place string, topic string, n long"


def posts(name="posts"):
    return weir.source(POSTS, name)


def names(*streams):
    return [d.name for d in parts_of(weir.Application(*streams)).declared]


def inputs(*streams):
    return {d.name: d.inputs for d in parts_of(weir.Application(*streams)).declared}


# ---------------------------------------------------------------------- values


def test_a_method_returns_a_new_stream_and_changes_nothing():
    source = posts()
    places = source.keyed("place", weir.Count(emit="rows"))
    places.keyed("topic", weir.Count())
    places.map(lambda row: row)
    places.union(posts("others"))
    assert names(source) == []
    assert names(places) == ["place"]
    with pytest.raises(AttributeError):
        places.ends = ()


def test_a_notebook_cell_that_is_run_twice_gives_the_same_application():
    source = posts()

    def cell():
        places = source.keyed("place", weir.Count(emit="rows"))
        return places.filter_batches(lambda batch: batch.column("n")).keyed("topic", weir.Count())

    first, second = cell(), cell()
    one, two = parts_of(first).topology(3), parts_of(second).topology(3)
    assert one.draw() == two.draw()
    assert one.signature() == two.signature()
    assert names(first) == ["place", "filter", "topic"]


def test_what_two_runs_of_a_cell_declare_alike_is_there_once():
    source = posts()
    before = source.keyed("place", weir.Count(emit="rows"))
    topics = before.keyed("topic", weir.Count())
    again = source.keyed("place", weir.Count(emit="rows"))
    assert inputs(topics, again.keyed("n", weir.Count())) == {
        "place": ("posts",),
        "topic": ("place",),
        "n": ("place",),
    }
    other = source.keyed("place", weir.Aggregate(total="sum(n)"))
    with pytest.raises(TopologyError, match="two operators are named 'place'"):
        weir.Application(topics, other)


def test_a_stream_says_what_it_is():
    stream = posts().keyed("place", weir.Count(emit="rows")).map(lambda row: row)
    assert repr(stream) == "Stream(posts → place → map)"
    clash = posts().keyed("place", weir.Count(emit="rows")).keyed("place", weir.Count())
    assert "two operators are named 'place'" in repr(clash)


# ---------------------------------------------------------------------- branches and unions


def test_an_application_is_what_its_streams_depend_on():
    places = posts().keyed("place", weir.Count(emit="rows"))
    topics = places.keyed("topic", weir.Count())
    pairs = places.keyed(["place", "topic"], weir.Count())
    assert names(topics) == ["place", "topic"]
    both = weir.Application(topics, pairs)
    assert [d.name for d in parts_of(both).declared] == ["place", "topic", "place_topic"]
    assert parts_of(both).leaves == ["topic", "place_topic"]
    assert parts_of(weir.Application(topics, places)).leaves == ["topic"]


def test_streams_are_united():
    web, app = posts("web"), posts("app")
    big = app.filter(lambda row: row.n > 500, name="big")
    topics = web.union(big).keyed("topic", weir.Count())
    application = weir.Application(topics, web.keyed("place", weir.Count()))
    assert list(parts_of(application).schemas) == ["web", "app"]
    assert {d.name: d.inputs for d in parts_of(application).declared} == {
        "big": ("app",),
        "topic": ("web", "big"),
        "place": ("web",),
    }
    assert parts_of(application).topology(2).steps == 1


def test_a_stream_is_not_united_with_itself():
    source = posts()
    with pytest.raises(TopologyError, match="unites 'posts' with itself"):
        weir.Application(source.union(source).keyed("place", weir.Count()))
    with pytest.raises(TopologyError, match=r"union\(…\) takes streams"):
        source.union("posts")


def test_the_source_of_several_streams_is_there_once():
    source = posts()
    shared = weir.Application(source.keyed("place", weir.Count()), source.keyed("topic", weir.Count()))
    assert list(parts_of(shared).schemas) == ["posts"]
    alike = weir.Application(posts().keyed("place", weir.Count()), posts().keyed("topic", weir.Count()))
    assert list(parts_of(alike).schemas) == ["posts"]
    other = weir.source("place string", "posts").keyed("place", weir.Count(), name="p")
    with pytest.raises(TopologyError, match="two sources are named 'posts'; pass name="):
        weir.Application(source.keyed("place", weir.Count()), other)


def test_a_long_chain_is_no_problem():
    stream = posts()
    for number in range(2000):
        stream = stream.map(lambda row: row, name=f"m{number}")
    assert len(names(stream)) == 2000


def test_an_application_needs_streams():
    with pytest.raises(TopologyError, match="at least one stream"):
        weir.Application()
    with pytest.raises(TopologyError, match=r"Application\(…\) takes streams"):
        weir.Application("posts")


# ---------------------------------------------------------------------- names


def test_state_is_never_found_under_a_name_that_was_guessed():
    chain = posts().keyed("topic", weir.Count(emit="rows")).keyed("topic", weir.Count())
    with pytest.raises(
        TopologyError, match="two operators are named 'topic', after the key topic; pass name="
    ):
        weir.Application(chain)
    named = posts().keyed("topic", weir.Count(emit="rows"), name="a").keyed("topic", weir.Count())
    assert names(named) == ["a", "topic"]
    with pytest.raises(TopologyError, match="two parts of the application are named 'posts'"):
        parts_of(posts().keyed("place", weir.Count(), name="posts")).topology(2)


def test_operators_without_state_are_numbered_in_order():
    stream = posts().map(lambda row: row).filter(lambda row: True, name="map_2")
    stream = stream.map_batches(lambda batch: batch).filter_batches(lambda batch: batch["n"])
    assert names(stream.flat_map(lambda row: [row])) == ["map", "map_2", "map_3", "filter", "flat_map"]


# ---------------------------------------------------------------------- schemas instead of DataFrames


@pytest.mark.parametrize(
    "schema",
    [
        "place string, n long",
        {"place": "string", "n": "long"},
        pa.schema([("place", pa.large_string()), ("n", pa.int64())]),
    ],
)
def test_a_schema_stands_for_a_source(schema, tmp_path):
    application = weir.Application(weir.source(schema).keyed("place", weir.Count()))
    assert parts_of(application).schemas == {"source": pa.schema([("place", pa.string()), ("n", pa.int64())])}
    assert parts_of(application).frames == {}
    assert parts_of(application).topology(2).servers == 2
    for begin in (application.start, application.run):
        with pytest.raises(TopologyError, match="'source' has a schema but no rows"):
            begin(str(tmp_path), servers=2)


@pytest.mark.parametrize(
    ("schema", "says"), [({}, "at least one column"), ("a int, a int", "each name once"), ("a", "name type")]
)
def test_a_source_needs_columns(schema, says):
    with pytest.raises(TopologyError, match=says):
        weir.source(schema)


# ---------------------------------------------------------------------- mistakes in parameters


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda s: s.keyed(weir.Count(), "place"), "expected a column's name"),
        (lambda s: s.keyed("place", "count"), "expected an operator such as"),
        (lambda s: s.keyed("place", weir.Count), "expected an operator such as"),
        (lambda s: s.keyed([], weir.Count()), "give it a key"),
        (lambda s: s.keyed(3, weir.Count()), "expected a column's name"),
        (lambda s: s.keyed("place", weir.Count(), name=7), "expected a text"),
        (lambda s: s.map(lambda row: row, name=""), "expected a text"),
        (lambda s: s.keyed("place", weir.Count(), routing=7), "expected a grouping"),
        (lambda s: s.keyed("place", weir.Count(), routing=weir.Hash), r"as in routing=Hash\(\)"),
        (lambda s: s.keyed("place", weir.Count(), parallelism=0), "parallelism=0"),
        (lambda s: s.keyed("place", weir.Count(), parallelism="2"), "parallelism='2'"),
        (lambda s: s.keyed("place", weir.Count(), placement=3), r"placement=\[1, 3\]"),
        (lambda s: s.keyed("place", weir.Count(), placement="03"), r"placement=\[1, 3\]"),
        (lambda s: s.keyed("place", weir.Count(), window="10 min"), "weir.tumbling"),
        (lambda s: s.keyed("place", weir.Count(), ttl="soon"), "cannot read the duration"),
        (lambda s: s.keyed("place", weir.Count(), ttl=[1]), "cannot read the duration"),
        (lambda s: s.process("place", None), "pass a function"),
        (lambda s: s.map("place"), "takes a function first"),
        (lambda s: s.flat_map(None), "takes a function first"),
        (lambda s: s.filter("n > 5"), "takes a function first"),
        (lambda s: s.map_batches("n"), "takes a function first"),
        (lambda s: s.filter_batches(5), "takes a function first"),
    ],
)
def test_a_mistake_is_named_where_it_is_made(declare, says):
    with pytest.raises(TopologyError, match=says):
        declare(posts())


def test_a_typing_error_in_a_parameter_is_an_error():
    stream, wrong = posts(), {"paralelism": 2}
    for method in (stream.map, stream.flat_map, stream.filter, stream.map_batches, stream.filter_batches):
        with pytest.raises(TopologyError, match=f"{method.__name__}.*did you mean 'parallelism'"):
            method(lambda row: row, **wrong)
        with pytest.raises(TopologyError, match="takes no 'ttl'"):
            method(lambda row: row, ttl=1)
    with pytest.raises(TopologyError, match="did you mean 'parallelism'"):
        stream.process("place", lambda key, rows, state: None, **wrong)
    with pytest.raises(TopologyError, match="takes no 'grouping'"):
        stream.keyed("place", weir.Count(), grouping=weir.Hash())


def test_what_needs_the_rows_is_checked_when_the_application_is_built():
    application = weir.Application(posts().keyed("plce", weir.Count()))
    with pytest.raises(UnknownColumn, match="did you mean 'place'"):
        parts_of(application).topology(2)


def test_what_is_declared_reaches_the_graph():
    stream = posts().process(
        "topic",
        lambda key, rows, state: None,
        name="p",
        output="topic string",
        order_by="n",
        columns=["n"],
        routing=weir.Table.of({"x": 1}),
        placement=[1, 0],
        null_keys="error",
        on_error="divert",
        ttl="1h",
    )
    declared = parts_of(stream).declared[0]
    assert declared.grouping == weir.Table.of({"x": 1})
    assert (declared.placement, declared.null_keys, declared.on_error) == ((1, 0), "error", "divert")
    assert declared.ttl == 3_600_000_000
    assert declared.operator.order_by == ("n",)
    mapped = posts().map(lambda row: row, key="place", routing=weir.Hash(), parallelism=2)
    edge = parts_of(mapped).topology(3).edges[0]
    assert edge.grouping == weir.Hash()
    plain = parts_of(posts().map(lambda row: row)).topology(3).edges[0]
    assert isinstance(plain.grouping, LocalOrShuffle)


# ---------------------------------------------------------------------- options


def test_settings_and_options_have_the_same_fields():
    assert list(Settings.__annotations__) == [f.name for f in fields(Options)]


@pytest.mark.parametrize("method", ["start", "run"])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"servers": 2, "retains": 3}, "no option 'retains'; did you mean 'retain'"),
        ({"servers": 2, "grouping": weir.Hash()}, "no option 'grouping'"),
        ({"servers": 0}, "servers=0: expected a whole number"),
        ({"servers": "4"}, "servers='4': expected a whole number, 1 or more, or \"auto\""),
        ({"servers": True}, "servers=True: expected a whole number"),
        ({"servers": 2, "retain": 0}, "retain=0: expected a whole number"),
        ({"servers": 2, "routing": 7}, "expected a grouping"),
        ({"servers": 2, "sink": 5}, "sink must be one of weir.sinks, a callable"),
        ({"servers": 2, "sink": {"place": None}}, "sink of 'place' must be one of weir.sinks"),
        ({"servers": 2, "dead_letters": 5}, "dead_letters must be one of weir.sinks"),
        ({"servers": 2, "drop_state": "place"}, r'drop_state=\["topics"\]'),
        ({"servers": 2, "forget": ["place"]}, '"undelivered"'),
        ({"servers": 2, "forget": {"state": ["place"]}}, '"undelivered"'),
        ({"servers": 2, "forget": {"positions": "posts"}}, "expected a list of names"),
        ({"servers": 2, "prune": "no"}, "expected True or False"),
        ({"servers": 2, "clock": 5}, "microseconds since 1970"),
        ({"servers": 2, "trigger": "once"}, "availableNow"),
        ({"servers": 2, "autoscale": 8}, "weir.Autoscale"),
        ({"servers": 2, "name": 8}, "expected a text"),
    ],
)
def test_options_are_checked(method, settings, says, tmp_path):
    application = weir.Application(posts().keyed("place", weir.Count()))
    with pytest.raises(TopologyError, match=says):
        getattr(application, method)(str(tmp_path), **settings)


@pytest.mark.parametrize(
    "settings",
    [{"trigger": {"availableNow": True}}, {"name": "q"}, {"autoscale": weir.Autoscale(target_lag=1)}],
)
def test_run_takes_what_start_takes_or_says_why_not(settings, tmp_path):
    with pytest.raises(TopologyError, match=rf"{next(iter(settings))}= is for start"):
        posts().keyed("place", weir.Count()).run(str(tmp_path), servers=2, **settings)


@pytest.mark.parametrize("method", ["start", "run"])
def test_start_and_run_hand_on_the_same_options(method, monkeypatch):
    from weir.spark import query

    calls = []
    monkeypatch.setattr(query, method, lambda *call: calls.append(call))
    monkeypatch.setattr(weir.Application, "_check_frames", lambda self: None)
    stream = posts().keyed("place", weir.Count())
    options = weir.Options(servers=2, retain=3, drop_state=["old"])
    getattr(stream, method)("ckpt", servers=2, retain=3, drop_state=("old",))
    getattr(stream, method)("ckpt", options)
    getattr(weir.Application(stream), method)("ckpt", weir.Options(servers=9, retain=3), servers=2)
    assert [checkpoint for _, checkpoint, *_ in calls] == ["ckpt"] * 3
    assert calls[0][2] == calls[1][2] == options
    assert (calls[2][2].servers, calls[2][2].retain) == (2, 3)
    with pytest.raises(TopologyError, match="pass servers=… and others by name"):
        getattr(stream, method)("ckpt", 4)
    with pytest.raises(TopologyError, match="expected a folder or a URI"):
        getattr(stream, method)(None, servers=2)


@pytest.mark.parametrize(
    ("name", "routing"),
    [
        ("hash", weir.Hash()),
        ("locality", weir.Locality()),
        ("consistent", weir.Consistent()),
        ("partial_key", weir.PartialKey()),
        ("weighted", weir.Weighted(weir.Hash())),
        ("shuffle", weir.Shuffle()),
    ],
)
def test_a_routing_may_be_given_by_name(name, routing):
    assert weir.Options(servers=2, routing=name).routing == routing
    counts = weir.source("k string").keyed("k", weir.Count(), routing=name)
    assert counts.ends[0].declared.grouping == routing


def test_a_routing_that_is_misspelt_is_refused():
    with pytest.raises(TopologyError, match=r"routing='localty': did you mean 'locality'\?"):
        weir.Options(servers=2, routing="localty")
    with pytest.raises(TopologyError, match=r"operator 'k': routing='hsh'.*did you mean 'hash'"):
        weir.source("k string").keyed("k", weir.Count(), routing="hsh", name="k")
