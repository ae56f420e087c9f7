"""Spark's daemon of Python workers, with what servers need loaded already, so that a worker begins at once.

Spark forks a worker for every slot, and again for every task that failed. Each would import Arrow, pandas and Weir
by itself, a second or more of CPU; forked from this daemon it has them, and the compiled code that every batch needs,
which servers would otherwise load in the midst of one. Sessions of
:func:`weir.testing.local_spark` use it; for others, set ``spark.python.daemon.module`` to ``weir.spark.workers``.
"""

from __future__ import annotations

import gc
from typing import Any

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark import daemon

import weir.spark.live_runner  # noqa: F401
from weir.compiled import declared

EVERY_BATCH = ("weir.hashing", "weir.state.index", "weir.operators.grouped", "weir.routing.lookup")


def quietly(sock: Any, authenticated: bool) -> int:
    """Run the tasks of a worker; one whose Spark has gone ends without a traceback: there is nobody to tell."""
    try:
        return int(_worker(sock, authenticated))
    except (ConnectionError, EOFError):
        return 1


_worker, daemon.worker = daemon.worker, quietly

if __name__ == "__main__":
    for function in declared(EVERY_BATCH):
        function.load()
    gc.collect()
    gc.freeze()  # what is here stays: no worker looks at it again, which would also copy its pages
    daemon.manager()
