"""The examples of docs/event-time.md, run one after the other as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "event-time.md"


def test_every_example_of_the_page_runs(monkeypatch):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 7
    module = ModuleType("event_time_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for example in examples:
        exec(compile(example, str(PAGE), "exec", dont_inherit=True), vars(module))
