"""The driver's work, measured alone: real code on reports that are made up, which it must find in order."""

from __future__ import annotations

import argparse

import pytest
from rich.console import Console

from weir_evaluation.bench import scale


def test_a_batch_of_the_driver_is_measured():
    point = scale._point(4, 1000, 2, batches=1, warm_up=1, proposals=False)
    assert point["driver_s"] > 0
    assert point["to_driver_bytes"] > 0 < point["per_task_bytes"]
    assert 0 < point["counted"] <= 1


@pytest.mark.long
def test_every_combination_is_measured_and_growth_told():
    parser = argparse.ArgumentParser()
    scale.arguments(parser)
    result = scale.run(parser.parse_args(["--quick", "--lines", "--proposals"]), Console(quiet=True))
    assert len(result["points"]) == 4
    for point in result["points"]:
        assert point["driver_s"] > 0
        assert point["to_driver_bytes"] > 0 < point["per_task_bytes"]
        assert 0 < point["counted"] <= 1
        assert point["proposal_cpu_s"] > 0
    assert set(result["growth"]["to_driver_bytes"]) == {"servers", "keys", "operators"}
    scale.show(result, Console(quiet=True))
