"""Spark's daemon of Python workers, with what they need loaded already, so that a worker begins at once.

Workers are forked from it, and a task that fails takes its worker along.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import weir.engine.server  # noqa: F401

if __name__ == "__main__":
    manager()
