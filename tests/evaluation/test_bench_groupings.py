"""The benchmark's records have the promised shape."""

from __future__ import annotations

import argparse
import io

from rich.console import Console

from weir_evaluation.bench import groupings


def test_records_and_tables() -> None:
    parser = argparse.ArgumentParser()
    groupings.arguments(parser)
    args = parser.parse_args(["--messages", "20000", "--keys", "300", "--zipf", "1.0", "--workers", "5"])
    page = io.StringIO()
    console = Console(file=page, width=160)
    result = groupings.run(args, console)
    assert [row["grouping"] for row in result] == list(groupings.MAKERS)
    assert set(result[0]) == {"grouping", "stream", "workers", "keys_per_s", "imbalance", "memory"}
    assert {row["memory"] for row in result if row["grouping"] in ("KG", "DKG")} == {300}
    groupings.show(result, console)
    assert "PoRC" in page.getvalue()
    assert "left out" in page.getvalue()
