"""Sessions, and what a DataFrame must be for the engine to run it."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from weir.errors import EngineError, TopologyError
from weir.spark.types import to_arrow


def embedded(master: str = "local[2]", name: str = "weir", **settings: str) -> SparkSession:
    """A quiet Spark session on this machine, for the demo, benchmarks and tests.

    Where the environment variable ``WEIR_MASTER`` names another master (``weir lab run`` sets it), that one takes the
    place of ``local[…]``.
    """
    if re.fullmatch(r"local(\[.*\])?", master):
        master = os.environ.get("WEIR_MASTER") or master
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local-cluster"):
        import pyspark

        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        # between the JVM and its Python workers: no delayed acknowledgements, as TCP has them
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    if master.startswith("local"):
        settings = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def check_frame(frame: Any, name: str) -> None:
    """Refuse what is not a classic DataFrame, with the reason."""
    module = type(frame).__module__
    if module.startswith("pyspark.sql.connect"):
        raise EngineError(
            f"source {name!r} comes from a Spark Connect session. Weir keeps state on executors and plans batches "
            "on the driver, which Connect cannot do; create the session with SparkSession.builder.master(…) "
            "(without .remote(…)) and run the application there."
        )
    if not isinstance(frame, DataFrame):
        raise TopologyError(f"source {name!r} must be a Spark DataFrame, not {type(frame).__name__}")


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """A DataFrame's columns as Arrow types, spelt one way."""
    fields: list[pa.Field] = []
    for field in frame.schema.fields:
        if any(f.name == field.name for f in fields):
            raise TopologyError(f"a source has two columns named {field.name!r}; rename one of them")
        fields.append(pa.field(field.name, to_arrow(field.dataType, field.name)))
    return pa.schema(fields)


def own_session(session: SparkSession) -> SparkSession:
    """A session with the same settings that may be changed without the user's noticing."""
    fresh = session.newSession()
    for row in session.sql("SET").collect():
        if row["key"].startswith("spark.sql.") and not row["key"].startswith("spark.sql.warehouse"):
            try:
                fresh.conf.set(row["key"], row["value"])
            except Exception:
                continue
    return fresh
