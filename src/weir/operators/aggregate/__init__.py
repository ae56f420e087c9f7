"""Count and Aggregate: running values per key, the functions that make them, and aggregates in windows."""

from weir.operators.aggregate.aggregate import Aggregate, Count

__all__ = ["Aggregate", "Count"]
