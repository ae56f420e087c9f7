"""The benchmark's records have the promised shape, and its targets are judged by them."""

from __future__ import annotations

import argparse
import io

from rich.console import Console

from weir_evaluation.bench import squirrel


def test_records_and_table() -> None:
    parser = argparse.ArgumentParser()
    squirrel.arguments(parser)
    args = parser.parse_args(
        ["--rows", "20000", "--keys", "500", "--zipf", "0", "1.5", "--heterogeneity", "8"]
    )
    page = io.StringIO()
    console = Console(file=page, width=200)
    result = squirrel.run(args, console)
    assert [row["method"] for row in result[:4]] == ["plain", "WG", "WG+DWC", "WG+BW"]
    wanted = {"workload", "skew", "heterogeneity", "method", "rows_per_s", "latency_ms"}
    assert all(set(row) == wanted for row in result)
    assert {row["workload"] for row in result} == {"wordcount", squirrel.FLAT, "advertising"}
    squirrel.show(result, console)
    assert "Zipf 1.5" in page.getvalue()


def test_targets() -> None:
    def case(skew, rows_per_s, latency_ms):
        same = {"workload": "w", "skew": skew, "heterogeneity": 1.0}
        plain = same | {"method": "plain", "rows_per_s": 100, "latency_ms": 10.0}
        return [plain, same | {"method": "WG+BW", "rows_per_s": rows_per_s, "latency_ms": latency_ms}]

    verdicts = [
        squirrel.judge(case(*numbers))[0]["met"]
        for numbers in ((1.0, 170, 5.0), (1.0, 160, 5.0), (1.0, 170, 5.4), (0.0, 98, 10.2), (0.0, 96, 10.4))
    ]
    assert verdicts == [True, False, False, True, False]
