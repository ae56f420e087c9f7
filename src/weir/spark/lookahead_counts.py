"""Count the keys of a batch on Spark before it is planned, for ``weir.Locality(look_ahead=True)``."""

from __future__ import annotations

from functools import reduce

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.engine.steering.lookahead import ENTRIES, Ahead
from weir.engine.task.batch_context import SOURCE_NUMBER, column_name
from weir.graph.model import Topology
from weir.locality.stats import BatchStats


def count_ahead(rows: DataFrame, topology: Topology, ahead: Ahead) -> BatchStats:
    """Return how often keys, and pairs of keys, occur in the rows of a batch; only key columns are read.

    Rows become key hashes in the JVM, are grouped there, and the most frequent combinations reach the driver.
    """
    parts = []
    for number, source in enumerate(topology.sources):
        keys = ahead.keys.get(source, {})
        if not keys:
            continue
        part = rows.where(F.col(SOURCE_NUMBER) == number) if len(topology.sources) > 1 else rows
        needed = [F.col(f"`{column_name(number, c)}`") for c in ahead.columns(source)]
        part = part.where(reduce(lambda a, b: a & b, [c.isNotNull() for c in needed]))
        hashed = [
            F.xxhash64(*[F.col(f"`{column_name(number, c)}`") for c in key]).alias(f"h{o}")
            for o, key in keys.items()
        ]
        counted = part.select(*hashed).groupBy(*[f"h{o}" for o in keys]).count()
        table = counted.orderBy(F.desc("count")).limit(ENTRIES // len(keys)).toArrow()
        count = table["count"].to_numpy().astype(np.float64)
        parts.append(ahead.stats({o: table[f"h{o}"].to_numpy().view(np.uint64) for o in keys}, count))
    return BatchStats.merge(parts)
