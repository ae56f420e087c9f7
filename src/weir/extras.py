"""Modules that only some applications need, and how to install them."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

from weir.errors import TopologyError

DISTRIBUTION = "weir-streams"  # on PyPI, where "weir" is another project
SPARK = (4, 1)  # the oldest Spark that batches run on


def install(extra: str) -> str:
    """Return the command that installs an extra.

    >>> install("kafka")
    "pip install 'weir-streams[kafka]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def require(module: str, extra: str) -> ModuleType:
    """Return an optional module, or say how to install it.

    >>> require("nonsense", "x")
    Traceback (most recent call last):
    weir.errors.TopologyError: nonsense is not installed here: pip install 'weir-streams[x]', on driver and executors
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TopologyError(
            f"{module} is not installed here: {install(extra)}, on driver and executors"
        ) from None


def require_spark() -> None:
    """Make sure that there is a Spark new enough to run batches on."""
    try:
        version = importlib.import_module("pyspark").__version__
    except ImportError:
        raise TopologyError(
            f"pyspark is not installed here: {install('spark')}; on Databricks, EMR or Dataproc use the Python that "
            "has the vendor's pyspark. Without Spark, weir.testing runs applications in this process"
        ) from None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < SPARK:
        raise TopologyError(
            f"this is Spark {version}; Weir needs {'.'.join(map(str, SPARK))} or newer: upgrade the cluster's runtime, "
            f"or {install('spark')} for a Spark of your own"
        )
