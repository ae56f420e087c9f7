"""The walk of docs/walkthrough.md, with real processes: it works, and is what the page shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from weir_evaluation.jars import NoJars, folder
from weir_evaluation.walkthrough import NGINX, Walk

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"


def what_matters(page):
    """Return prose, what was typed, and the states that were shown, but for numbers of batches and of visits."""
    parts = re.split(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    told = []
    for prose, kind, block in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        typed = [line for line in block.splitlines() if line.startswith("$ ")]
        whole = kind or not typed or typed[0].startswith("$ weir state")
        told.append(re.sub(r"\d[\d,]+", "0", " ".join(prose.split())))
        told.append(re.sub(r"batch \d+", "batch", block) if whole else typed)
    return told


@pytest.mark.long
@pytest.mark.skipif(NGINX is None, reason="no nginx on this machine: apt-get install nginx-light")
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine: apt-get install curl")
def test_the_walk_works_and_is_what_the_page_shows(tmp_path):
    """It compares all results with the truth itself."""
    try:
        folder("kafka")
    except NoJars as error:
        pytest.skip(str(error))
    assert what_matters(Walk(tmp_path).take()) == what_matters(PAGE.read_text())
