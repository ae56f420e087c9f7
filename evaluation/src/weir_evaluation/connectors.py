"""Spark with the connectors of Delta and Iceberg, for programs in processes of their own.

Connectors follow Spark by months. So programs run on the newest Spark that both have been published for, which pip
installs beside the one of this virtual environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from weir_evaluation import jars

SPARK = "4.1.4"  # jars/tables.xml has the connectors for it
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


def environment() -> dict[str, str]:
    """Return the environment of a Python whose pyspark has connectors; raise NoJars where they can't be had."""
    place = Path(sys.prefix) / f"spark-{SPARK}"
    jars.fetch("tables")
    if not place.is_dir():
        made = place.with_name(f"{place.name}-{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(made)]
        done = subprocess.run([*command, f"pyspark=={SPARK}"], capture_output=True, text=True)
        if done.returncode:
            raise jars.NoJars(f"no pyspark {SPARK}: {done.stderr.strip().splitlines()[-1]}")
        made.rename(place)
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(place), known]))}


def settings(folder: str) -> dict[str, str]:
    """Return the settings of a session whose own catalog is Delta's, beside a catalog ``weir`` of Iceberg's.

    The latter is in a file, ``FOLDER/catalog.db``, which pyiceberg reads as well: see :func:`catalog`.
    """
    iceberg = "spark.sql.catalog.weir"
    return {
        "spark.jars": ",".join(map(str, sorted(jars.folder("tables").glob("*.jar")))),
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.warehouse.dir": f"{folder}/delta",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        iceberg: "org.apache.iceberg.spark.SparkCatalog",
        f"{iceberg}.type": "jdbc",
        f"{iceberg}.uri": f"jdbc:sqlite:{folder}/catalog.db",
        f"{iceberg}.jdbc.schema-version": "V1",
        f"{iceberg}.warehouse": f"file://{folder}/iceberg",
        # what another session has written is seen at once
        f"{iceberg}.cache-enabled": "false",
    }


def catalog(folder: str) -> dict[str, str]:
    """Return the properties by which pyiceberg opens the same catalog, under the name ``weir``."""
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/iceberg"}
