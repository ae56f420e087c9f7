"""Every example of the pages below docs/ that say so runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent / "docs"


def examples(page):
    """Return the examples of a page, by the heading above each."""
    heading = ""
    for part in re.finditer(
        r"^#+ (.*?)$|^```python\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE
    ):
        if part[1] is not None:
            heading = part[1]
        else:
            yield pytest.param(part[2], id=heading)


@pytest.mark.parametrize("code", [*examples("operators.md"), *examples("watch.md"), *examples("tutorial.md")])
def test_examples_run(code):
    exec(compile(code, "docs", "exec", dont_inherit=True), {"__name__": "example"})
