"""What is optional says how to get it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import weir
from weir.errors import TopologyError
from weir.extras import require_spark


@pytest.mark.parametrize(
    ("version", "refused"), [("4.0.5", True), ("3.5.9", True), ("4.1.0", False), ("5.0.0.dev1", False)]
)
def test_an_old_spark_is_refused_with_the_remedy(monkeypatch, version, refused):
    spark = ModuleType("pyspark")
    spark.__version__ = version
    monkeypatch.setitem(sys.modules, "pyspark", spark)
    if refused:
        with pytest.raises(
            TopologyError, match=rf"this is Spark {version}; Weir needs 4.1 or newer: upgrade"
        ):
            require_spark()
    else:
        require_spark()


def test_start_without_spark_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    app = weir.source("k string").keyed("k", weir.Count())
    monkeypatch.setattr("weir.flow.Application._check_frames", lambda self: None)
    for action in (app.start, app.run):
        with pytest.raises(TopologyError, match=r"pip install 'weir-streams\[spark\]'"):
            action(str(tmp_path / "checkpoint"), servers=1)
