"""Sinks belong to streams: anywhere, several, inherited by what follows, and added to those of the options."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow.parquet as pq
import pytest

import weir
from support import dicts
from weir.engine.batch.bootstrap import query_sinks
from weir.errors import TopologyError
from weir.flow import parts_of
from weir.sinks import Parquet
from weir.testing import run, start

POSTS = "place string, topic string"
ROWS = [{"place": f"p{i % 3}", "topic": f"t{i % 5}"} for i in range(40)]
PLACES = sorted(Counter(row["place"] for row in ROWS).items())
TOPICS = sorted(Counter(row["topic"] for row in ROWS).items())
NOON = dt.datetime(2024, 5, 1, 12)


class Taken:
    """A callable sink that keeps rows."""

    def __init__(self):
        self.rows = []

    def __call__(self, table, batch):
        self.rows += [tuple(row.values()) for row in table.to_pylist()]


def places():
    return weir.source(POSTS).count("place", name="places", emit="rows")


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_streams_have_sinks_anywhere_and_several(execution, tmp_path):
    first, second, last = Taken(), Taken(), Taken()
    app = places().sink(first, str(tmp_path)).sink(second).count("topic", name="topics").sink(last)
    result = run(app, [ROWS], servers=2, execution=execution)
    assert sorted(first.rows) == sorted(second.rows) == PLACES
    assert sorted(last.rows) == TOPICS
    written = pq.read_table(tmp_path).select(["place", "count"])
    assert sorted(tuple(row.values()) for row in dicts(written)) == PLACES
    assert sorted(tuple(row.values()) for row in dicts(result.output("places"))) == PLACES


def test_a_stream_with_and_without_its_sink_is_one_operator():
    plain, taken = places(), Taken()
    listening = plain.sink(taken)
    app = weir.Application(plain.count("topic", name="a"), listening.count("topic", name="b"), listening)
    assert [d.name for d in parts_of(app).declared] == ["places", "a", "b"]
    run(app, [ROWS], servers=2)
    assert sorted(taken.rows) == PLACES  # once, though two streams have it
    assert parts_of(plain).sinks == {}


def test_unions_joins_and_event_times_keep_the_sinks_of_their_streams():
    one, other, late, joined = Taken(), Taken(), Taken(), Taken()
    left = weir.source("k string, t timestamp", "left").filter(lambda row: True).sink(one).event_time("t")
    right = weir.source("k string, t timestamp", "right").filter(lambda row: True).sink(other).event_time("t")
    both = left.join(right, "k", within="1 minute", name="joined").late_sink(late).sink(joined)
    again = left.union(right).count("k", name="all")
    sinks = parts_of(weir.Application(both, again)).sinks
    assert sinks == {"filter": (one,), "filter_2": (other,), "joined~late": (late,), "joined": (joined,)}
    run(
        weir.Application(both, again),
        [{"left": [{"k": "a", "t": NOON}], "right": [{"k": "a", "t": NOON}]}],
        servers=2,
    )
    assert one.rows == other.rows == [("a", NOON.replace(tzinfo=dt.UTC))]
    assert len(joined.rows) == 1


def test_sinks_of_streams_and_of_the_options_add_up():
    mine, given, everywhere = Taken(), Taken(), Taken()
    app = places().count("topic", name="topics").sink(mine, everywhere)
    run(app, [ROWS], servers=2, sink=[given, everywhere])
    assert sorted(mine.rows) == sorted(given.rows) == sorted(everywhere.rows) == TOPICS
    by_name = Taken()
    run(app, [ROWS], servers=2, sink={"places": by_name})
    assert sorted(by_name.rows) == PLACES


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_late_rows_and_dead_letters_go_to_the_sinks_of_their_operator(execution):
    late, mine, others, all_letters = Taken(), Taken(), Taken(), Taken()

    def odd(row):
        return row.n % 2 == 1 or 1 // row.n < 9

    app = (
        weir.source("k string, n long, t timestamp")
        .filter(odd, on_error="divert", name="odd")
        .dead_letter_sink(mine)
        .map(lambda row: row._replace(n=100 // (row.n - 2)), on_error="divert", name="shift")
        .dead_letter_sink(others)
        .count("k", window=weir.tumbling("t", "1 minute"), name="w")
        .late_sink(late)
    )
    rows = [{"k": "a", "n": n, "t": NOON} for n in (0, 1, 2, 3)]
    with start(app, servers=2, dead_letters=all_letters, execution=execution) as query:
        query.feed(rows)
        query.feed([{"k": "b", "n": 3, "t": NOON + dt.timedelta(hours=1)}])
        query.feed([{"k": "c", "n": 3, "t": NOON}])
        assert [letter[0] for letter in mine.rows] == ["odd"]
        assert [letter[0] for letter in others.rows] == ["shift"]
        assert sorted(all_letters.rows) == sorted([*mine.rows, *others.rows])
        assert [row[0] for row in late.rows] == ["c"]
        assert query.dead_letters.num_rows == 2


def test_an_operator_with_its_own_sink_needs_no_other_dead_letters():
    stream = weir.source("n long").map(lambda row: row, on_error="divert")
    with pytest.raises(TopologyError, match=r"'map' diverts failing rows.*dead_letter_sink"):
        query_sinks(parts_of(stream), weir.Options(servers=1))
    assert list(query_sinks(parts_of(stream.dead_letter_sink(print)), weir.Options(servers=1))) == [
        "map~dead"
    ]


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (
            lambda s: s.sink(print),
            "source 'source' has no operator whose rows a sink could get; put one before",
        ),
        (
            lambda s: s.filter(bool).union(s.map(lambda r: r)).sink(print),
            "a union of streams has no operator",
        ),
        (lambda s: s.count("place").sink(), "takes at least one sink"),
        (lambda s: s.count("place").sink(5), "sink must be one of weir.sinks"),
        (lambda s: s.count("place").sink([print]), "sink must be one of weir.sinks"),
        (lambda s: s.count("place").late_sink(Parquet), "late_sink must be one of weir.sinks"),
        (lambda s: start(s.count("place").late_sink(print), servers=1), "no row is late for 'place'"),
        (lambda s: start(s.count("place").dead_letter_sink(print), servers=1), "'place' sets no row aside"),
        (
            lambda s: start(
                weir.Application(s.count("place"), s.count("topic")), servers=1, sink=lambda *_: None
            ),
            r"sink= is for one operator, and there are 2.*place, topic.*stream\.sink",
        ),
    ],
)
def test_mistakes_are_named(declare, says):
    with pytest.raises(TopologyError, match=says):
        declare(weir.source(POSTS))


def test_rows_owed_to_a_streams_sink_reach_it_after_a_crash():
    taken = Taken()
    app = places().sink(taken).count("topic", name="topics")
    run(app, [ROWS, ROWS], servers=2, faults=["commit-written:0", "delivery-started:1"])
    doubled = [(place, 2 * n) for place, n in PLACES]
    assert sorted(taken.rows) == sorted([*PLACES, *doubled])
