"""Spark's daemon of Python workers, with what servers need loaded already, so that a worker begins at once.

Spark forks a worker for every slot, and again for every task that failed. Each would import Arrow, pandas and Weir
by itself, a second or more of CPU; forked from this daemon it has them, and the compiled code that looks keys up in a
routing table, which servers would otherwise load in the very batch that reconfigures. Sessions of
:func:`weir.testing.local_spark` use it; for others, set ``spark.python.daemon.module`` to ``weir.spark.workers``.
"""

from __future__ import annotations

import numpy as np
import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import weir.engine.live.resident  # noqa: F401
from weir.routing.lookup import Lookup


def load_lookups() -> None:
    """Load or compile what looks keys up; arrays that come straight from a file are read-only."""
    keys, values = np.arange(2, dtype=np.uint64), np.zeros(2, np.int32)
    for read_only in (False, True):
        table = keys.copy(), values.copy()
        for array in table:
            array.flags.writeable = not read_only
        Lookup(*table).find(keys)


if __name__ == "__main__":
    load_lookups()
    manager()
