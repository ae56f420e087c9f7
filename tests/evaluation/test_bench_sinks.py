"""Deliveries are measured, by servers and by the driver; in this process, without Spark."""

from __future__ import annotations

import os

import deltalake
from rich.console import Console

from weir.state.storage import Storage
from weir_evaluation.bench import sinks


def test_a_delivery_is_measured_both_ways(tmp_path):
    def each(count, task):
        return [task(number) for number in range(count)]

    with sinks.targets(tmp_path) as make:
        measure = sinks.Measurement(Storage(str(tmp_path / "rows")), 2, make, each, os.getpid())
        found = [measure(kind, way, 1000) for kind in ("delta", "iceberg") for way in ("servers", "driver")]
    for one in found:
        assert one["rows_per_second"] > 0
        assert 0 < one["driver_share"] < 1.5  # processes tell their time in hundredths
    for number in range(2):
        assert deltalake.DeltaTable(str(tmp_path / f"t{number}")).to_pyarrow_table().num_rows == 1200
    sinks.show({"row_bytes": sinks.ROW, "measured": found}, Console(quiet=True))


def test_rows_have_the_size_that_is_said():
    rows = sinks._rows(1000, 1)
    assert rows["k"].to_pylist()[1] == f"{65:014d}"
    assert abs(rows.nbytes / 1000 - sinks.ROW) < 15
