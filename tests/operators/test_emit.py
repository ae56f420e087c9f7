"""What counts and aggregates hand on: updates, the rows that came in, or changes."""

from __future__ import annotations

from collections import Counter

import pytest

import weir
from weir.errors import TopologyError
from weir.flow import parts_of
from weir.testing import run, start

POSTS = "place string, topic string, n long"
BATCHES = [
    [{"place": f"p{(i + b) % 3}", "topic": f"t{i % 5}", "n": i} for i in range(20 + b)] for b in range(3)
]
ROWS = [row for batch in BATCHES for row in batch]
EXECUTIONS = pytest.mark.parametrize("execution", ["jobs", "live"])


def posts():
    return weir.source(POSTS)


def rows_of(table):
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_count_and_aggregate_are_short_for_keyed():
    short = posts().count("place", column="rows", ttl="1 day"), posts().aggregate("place", total="sum(n)")
    long = (
        posts().keyed("place", weir.Count("rows"), ttl="1 day"),
        posts().keyed("place", weir.Aggregate(total="sum(n)")),
    )
    for one, other in zip(short, long, strict=True):
        mine, theirs = (parts_of(s).topology(2).signature() for s in (one, other))
        assert mine == theirs
        assert rows_of(run(one, BATCHES, servers=2).output()) == rows_of(
            run(other, BATCHES, servers=2).output()
        )


@EXECUTIONS
def test_updates_reach_the_operator_that_follows(execution):
    """Per batch, each place tells its count once: the second operator sees one row per place and batch."""
    app = (
        posts()
        .count("place", emit="updates")
        .aggregate("place", name="told", times="count", last="max(count)")
    )
    result = run(app, BATCHES, servers=3, execution=execution, sink={"place": lambda *_: None})
    truth = Counter(row["place"] for row in ROWS)
    assert rows_of(result.state("told")) == [(place, len(BATCHES), n) for place, n in sorted(truth.items())]
    assert result.output("place").num_rows == 3 * len(BATCHES)


@EXECUTIONS
def test_updates_follow_partial_states_once_they_are_merged(execution):
    app = (
        posts()
        .count("place", emit="updates", routing="partial_key")
        .aggregate("place", name="told", times="count", last="max(count)")
    )
    result = run(app, BATCHES, servers=3, execution=execution)
    truth = Counter(row["place"] for row in ROWS)
    assert rows_of(result.state("told")) == [(place, len(BATCHES), n) for place, n in sorted(truth.items())]


@EXECUTIONS
def test_rows_reach_the_operator_that_follows(execution):
    app = posts().count("place", emit="rows").count("topic")
    result = run(app, BATCHES, servers=3, execution=execution)
    assert rows_of(result.state("place")) == sorted(Counter(row["place"] for row in ROWS).items())
    assert rows_of(result.state("topic")) == sorted(Counter(row["topic"] for row in ROWS).items())


@EXECUTIONS
@pytest.mark.parametrize("emit", [None, "updates", "rows"])
def test_a_sink_gets_updates_whatever_operators_get(emit, execution):
    result = run(posts().count("place", emit=emit), BATCHES, servers=2, execution=execution)
    seen: Counter = Counter()
    for number, batch in enumerate(BATCHES):
        seen.update(row["place"] for row in batch)
        assert rows_of(result.output(batch=number)) == sorted(seen.items())


@pytest.mark.parametrize(
    "first",
    [
        lambda: posts().count("place"),
        lambda: posts().keyed("place", weir.Count()),
        lambda: posts().aggregate("place", total="sum(n)", n="max(n)"),
        lambda: posts().keyed("place", weir.Aggregate(total="sum(n)")),
    ],
)
def test_where_something_follows_what_it_gets_must_be_said(first):
    behind = first().filter(lambda row: True)
    for app in (weir.Application(behind), weir.Application(first(), behind)):
        with pytest.raises(
            TopologyError, match=r"'place': 'filter' follows.*emit=\"updates\".*emit=\"rows\""
        ):
            parts_of(app).topology(2)


def test_windows_hand_on_their_results_and_take_no_rows_or_changes():
    views = weir.source("page string, time timestamp")
    minutes = weir.tumbling("time", "1 minute")
    chain = views.count("page", window=minutes).aggregate("page", name="all", rows="sum(count)")
    assert parts_of(chain).topology(2).by_name["all"].input.names == ["page", "count"]
    for emit in ("rows", "changes"):
        with pytest.raises(TopologyError, match=f"emit='{emit}' is not for windows"):
            parts_of(views.count("page", window=minutes, emit=emit)).topology(2)


def test_a_restart_may_hand_on_something_else():
    """What it emits is not what it keeps: the counts go on."""
    with start(posts().count("place"), servers=2) as query:
        query.feed(BATCHES[0])
        query.restart(posts().count("place", emit="rows").count("topic"))
        query.feed(BATCHES[1])
        counts = Counter(row["place"] for batch in BATCHES[:2] for row in batch)
        assert rows_of(query.state("place")) == sorted(counts.items())
        assert rows_of(query.state("topic")) == sorted(Counter(row["topic"] for row in BATCHES[1]).items())


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda s: s.count("place", emit="row"), 'emit is "rows", "updates" or "changes"'),
        (lambda s: s.count("place", nmae="x"), "takes no 'nmae'; did you mean 'name'"),
        (lambda s: s.aggregate("place"), "at least one value"),
        (lambda s: s.aggregate("place", total="sum(n)", name="max(n)"), "would name the operator"),
        (lambda s: s.aggregate("place", tll=10), "cannot read tll=10"),
        (lambda s: s.keyed("place", weir.Count(name="rows")), "name= is called column= now"),
    ],
)
def test_mistakes_are_named(declare, says):
    with pytest.raises(TopologyError, match=says):
        declare(posts())
