"""Fetch the jars of all programs; say in one line which can't be had."""

from __future__ import annotations

import sys

from weir_evaluation.jars import PROJECTS, NoJars, fetch

for project in sorted(PROJECTS.glob("*.xml")):
    try:
        fetch(project.stem)
    except NoJars as error:
        print(f"weir: {error}", file=sys.stderr)
