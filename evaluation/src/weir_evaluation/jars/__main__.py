"""Fetch the jars that `make test` uses; say in one line which can't be had. Others are fetched when they are used."""

from __future__ import annotations

import sys

from weir_evaluation.jars import NoJars, fetch

for project in ("hadoop", "kafka", "registry"):
    try:
        fetch(project)
    except NoJars as error:
        print(f"weir: {error}", file=sys.stderr)
