"""Spark's daemon of Python workers for benchmarks with many servers: workers are forked with everything loaded.

Set ``spark.python.daemon.module`` to the name of this module. Without it each of some dozen workers imports all of it
anew.
"""

from __future__ import annotations

import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import weir.engine.live.server
import weir.engine.server  # noqa: F401

if __name__ == "__main__":
    manager()
