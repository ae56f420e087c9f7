"""Tumbling event-time windows: closed once, late rows dropped and counted."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import weir
from support import dicts, grouped, rows_of
from weir.testing import run, start

SCHEMA = "k string, time timestamp, n long"


def at(minute, second=0):
    return dt.datetime(2024, 1, 1, 12, minute, second, tzinfo=dt.UTC)


def batch(*rows):
    keys, times, numbers = zip(*rows, strict=True)
    return pa.table({"k": keys, "time": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(numbers)})


BATCHES = [
    batch(("a", at(1), 1), ("a", at(9), 2), ("b", at(4), 3)),
    batch(("a", at(12), 4), ("b", at(8), 5)),  # 12:08 is not late yet: the watermark is at 12:07
    batch(("a", at(25), 6), ("a", at(11), 7)),  # the watermark is at 12:10: 12:00-12:10 closes
    batch(("a", at(9, 59), 8), ("b", at(26), 9)),  # the watermark is at 12:23: late; 12:10-12:20 closes
]


@pytest.mark.parametrize(
    "faults", [[], ["job-done:2", "commit-written:2", "plan-written:3", "step-started:301"]]
)
@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_windows_close_once_in_order_and_late_rows_are_counted(faults, execution):
    app = weir.source(SCHEMA).keyed(
        "k",
        weir.Aggregate(rows="count", total="sum(n)"),
        name="w",
        window=weir.tumbling("time", "10 minutes", "2m"),
    )
    query = start(app, servers=2, faults=faults, execution=execution)
    for rows in BATCHES:
        query.feed(rows)
    closed = [
        (number, r["k"], r["window_start"].minute, r["window_end"].minute, r["rows"], r["total"])
        for number in range(4)
        for r in dicts(query.output("w", number))
    ]
    assert sorted(closed) == [(2, "a", 0, 10, 2, 3), (2, "b", 0, 10, 2, 8), (3, "a", 10, 20, 2, 11)]
    assert query.progress.operators["w"].late == 1
    assert sorted((r["k"], r["window_start"].minute, r["rows"]) for r in dicts(query.state("w"))) == [
        ("a", 20, 1),
        ("b", 20, 1),
    ]
    assert query.progress.state_keys["w"] == 2


def best_windows_in_python(tables):
    windows = {}
    for row in dicts(tables):
        window = (row["k"], row["time"].minute // 10)
        windows[window] = windows.get(window, 0) + row["n"]
    totals = pa.table({"k": [k for k, _ in windows], "total": list(windows.values())})
    return sorted(
        (k, len(rows), max(r["total"] for r in rows)) for (k,), rows in grouped(totals, "k").items()
    )


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_the_end_of_the_input_closes_every_window(execution):
    app = (
        weir.source(SCHEMA)
        .keyed("n", weir.Count(emit="rows"), name="numbers")
        .keyed("k", weir.Aggregate(total="sum(n)"), name="w", window=weir.tumbling("time", "10 minutes"))
        .keyed("k", weir.Aggregate(windows="count", best="max(total)"), name="per_key")
    )
    query = run(app, [pa.concat_tables(BATCHES)], servers=3, execution=execution)
    assert query.state("w").num_rows == 0
    assert rows_of(query.state("per_key")) == best_windows_in_python(BATCHES)
