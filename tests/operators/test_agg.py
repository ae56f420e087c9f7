"""``weir.agg``: the same functions as the texts, with completion and types."""

from __future__ import annotations

import inspect

import pytest

import weir
from weir import agg
from weir.errors import TopologyError
from weir.flow import parts_of
from weir.operators.aggregate.aggregate_functions import FUNCTIONS
from weir.testing import run, start

POSTS = weir.source("place string, word string, n long, t long")
VALUES = {
    "count": agg.count(),
    "count(n)": agg.count("n"),
    "sum(n)": agg.sum("n"),
    "min(n)": agg.min("n"),
    "max(word)": agg.max("word"),
    "mean(n)": agg.mean("n"),
    "avg(n)": agg.avg("n"),
    "variance(n)": agg.variance("n"),
    "stddev(n)": agg.stddev("n"),
    "first(word, t)": agg.first("word", "t"),
    "last(word, t)": agg.last("word", order="t"),
    "top_k(word, 3)": agg.top_k("word", 3),
    "top_k(word, 3, n)": agg.top_k("word", 3, by="n"),
    "approx_distinct(word)": agg.approx_distinct("word"),
    "approx_quantile(n, 0.5)": agg.approx_quantile("n", 0.5),
    "approx_quantile(n, 0.01, 0.99)": agg.approx_quantile("n", 0.01, 0.99),
}
ROWS = [{"place": f"p{i % 3}", "word": f"w{i % 7}", "n": i * i % 11, "t": i} for i in range(60)]


def test_every_function_is_there_with_types():
    assert agg.__all__ == sorted(FUNCTIONS)
    assert {text.split("(")[0] for text in VALUES} == {*FUNCTIONS}
    for name in agg.__all__:
        signature = inspect.signature(getattr(agg, name))
        assert signature.return_annotation == "AggregateFunction"
        assert all(p.annotation is not p.empty for p in signature.parameters.values())


@pytest.mark.parametrize("text", VALUES)
def test_a_function_and_its_text_are_one(text):
    by_text, by_function = POSTS.aggregate("place", v=text), POSTS.aggregate("place", v=VALUES[text])
    one, other = parts_of(by_text).topology(2), parts_of(by_function).topology(2)
    assert one.signature() == other.signature()
    assert one.draw() == other.draw()
    assert vars(one.by_name["place"].operator) == vars(other.by_name["place"].operator)
    first, second = (run(app, [ROWS, ROWS], servers=2).state("place") for app in (by_text, by_function))
    assert first.sort_by("place").equals(second.sort_by("place"))


def test_a_checkpoint_made_with_texts_goes_on_with_functions(checkpoint):
    values = {f"v{i}": text for i, text in enumerate(VALUES)}
    with start(POSTS.aggregate("place", **values), checkpoint, servers=2) as query:
        query.feed(ROWS)
        query.restart(POSTS.aggregate("place", **{f"v{i}": VALUES[text] for i, text in enumerate(VALUES)}))
        query.feed(ROWS)
        total = {row["place"]: row["v2"] for row in query.state("place").to_pylist()}
    assert total == {p: 2 * sum(r["n"] for r in ROWS if r["place"] == p) for p in ("p0", "p1", "p2")}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agg.sum(3), "sum: expected a column's name"),
        (lambda: agg.sum(""), "sum: expected a column's name"),
        (lambda: agg.first("a, b", "t"), "without commas and parentheses, not 'a, b'"),
        (lambda: agg.top_k("word", 0), "expected a number from 1 to 10,000, not '0'"),
        (lambda: agg.approx_quantile("n", 1.5), "a rank from 0 to 1"),
        (
            lambda: parts_of(POSTS.aggregate("place", v=agg.sum("m"))).topology(1),
            r"sum\(m\) needs a column 'm'",
        ),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(TopologyError, match=says):
        make()
