"""Values of :class:`~weir.Aggregate` and :meth:`weir.Stream.aggregate` as functions: an editor knows them.

``weir.agg.sum("n")`` is what the text ``"sum(n)"`` is, also to a checkpoint. Nulls don't count, as in SQL.

>>> import weir
>>> weir.Aggregate(posts=count(), total=sum("n"), best=top_k("word", 10, by="n")).describe()
'Aggregate(posts=count, total=sum(n), best=top_k(word, 10, n))'
"""

from __future__ import annotations

from weir.operators.aggregate.aggregate_functions import AggregateFunction, named

__all__ = [
    "approx_distinct",
    "approx_quantile",
    "avg",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "stddev",
    "sum",
    "top_k",
    "variance",
]


def count(column: str | None = None) -> AggregateFunction:
    """Count rows, or those with a value in a column."""
    return named("count") if column is None else named("count", column)


def sum(column: str) -> AggregateFunction:
    """Add up numbers; integers in 64 bits, beyond which there is an error."""
    return named("sum", column)


def min(column: str) -> AggregateFunction:
    """Keep the least value."""
    return named("min", column)


def max(column: str) -> AggregateFunction:
    """Keep the greatest value."""
    return named("max", column)


def mean(column: str) -> AggregateFunction:
    """Average numbers."""
    return named("mean", column)


def avg(column: str) -> AggregateFunction:
    """Average numbers, by SQL's name."""
    return named("avg", column)


def variance(column: str) -> AggregateFunction:
    """Compute the variance of a sample; null for fewer than two values."""
    return named("variance", column)


def stddev(column: str) -> AggregateFunction:
    """Compute the standard deviation of a sample; null for fewer than two values."""
    return named("stddev", column)


def first(column: str, order: str) -> AggregateFunction:
    """Keep the value in the row with the least ``order``; of equals the least value."""
    return named("first", column, order)


def last(column: str, order: str) -> AggregateFunction:
    """Keep the value in the row with the greatest ``order``; of equals the greatest value."""
    return named("last", column, order)


def top_k(column: str, k: int, by: str | None = None) -> AggregateFunction:
    """List the ``k`` greatest values, greatest first; or the values in the ``k`` rows with the greatest ``by``."""
    return named("top_k", column, str(k), *([] if by is None else [by]))


def approx_distinct(column: str) -> AggregateFunction:
    """Estimate how many different values there are: HyperLogLog, 3.2 % standard error."""
    return named("approx_distinct", column)


def approx_quantile(column: str, rank: float, *ranks: float) -> AggregateFunction:
    """Estimate the value at a rank from 0 to 1, or a list for several: KLL, within 1.33 % in rank."""
    return named("approx_quantile", column, *map(str, (rank, *ranks)))
