"""Replays: the manager beats the paper's way on a drifting stream, and nobody looks into the future."""

from __future__ import annotations

import argparse
import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from weir.errors import UnknownColumn, WeirError
from weir.hashing import mix
from weir.locality import Locality
from weir.locality.counts import count_pairs
from weir_evaluation.bench import locality as bench
from weir_evaluation.bench import partition as bench_partition
from weir_evaluation.locality.changing import KINDS, changing
from weir_evaluation.locality.replay import RecordedStream, replay_tables, replay_weir

pytestmark = pytest.mark.usefixtures("few_starts")


def drifting(periods=6, rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    state, tag, when = [], [], []
    for p in range(periods):
        s = rng.integers(48, size=rows)
        fresh = rng.integers(100, size=rows) * 12 + s % 12 + 600 * p
        state.append(s)
        tag.append(np.where(rng.random(rows) < 0.2, rng.integers(600 * p + 1200, size=rows), fresh))
        when.append(np.sort(rng.integers(p * 1000, (p + 1) * 1000, size=rows)))
    keys = [mix(np.concatenate(k).astype(np.uint64), np.uint64(i)) for i, k in enumerate((state, tag))]
    return keys, np.concatenate(when)


def test_ways_rank_as_they_should():
    keys, when = drifting()
    stream = RecordedStream.cut(keys, when, 1000, 10)
    assert len(stream) == 6
    assert sum(len(b) - 1 for b in stream.batches) == 60
    got = {m: replay_tables(stream, 4, m).summary(["s", "t"]) for m in ("hash", "static", "paper", "bound")}
    ways = {
        "weir": {},
        "weir_first_seen": {"new_keys": "first_seen"},
        "weir_look_ahead": {"look_ahead": True},
    }
    for name, way in ways.items():
        got[name] = replay_weir(stream, 4, Locality(period=10, **way))[0].summary(["s", "t"])
    assert got["weir"]["locality"] < got["weir_look_ahead"]["locality"] < got["bound"]["locality"]
    order = ["hash", "static", "paper", "weir", "weir_first_seen", "bound"]
    assert [got[m]["locality"] for m in order] == sorted(got[m]["locality"] for m in order)
    assert got["hash"]["locality"] == pytest.approx(0.25, abs=0.06)
    assert got["weir"]["imbalance"]["t"] <= got["hash"]["imbalance"]["t"]


def test_the_future_is_not_known():
    keys, when = drifting()
    half = len(when) // 2
    whole = RecordedStream.cut(keys, when, 1000, 10)
    early = RecordedStream.cut([k[:half] for k in keys], when[:half], 1000, 10)
    for run in (
        lambda s: replay_weir(s, 4, Locality(period=10))[0],
        lambda s: replay_tables(s, 4, "paper"),
    ):
        assert run(whole).locality[: len(early)] == run(early).locality


def test_command_prints_what_it_promises(tmp_path):
    keys, when = drifting(periods=3)
    table = pa.table(
        {
            "state": [str(k) for k in keys[0].tolist()],
            "tag": [str(k) for k in keys[1].tolist()],
            "time": pa.array(when * 1_000_000, pa.timestamp("us")),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    parser = argparse.ArgumentParser()
    bench.arguments(parser)
    words = [
        "--data",
        str(tmp_path / "rows.parquet"),
        "--servers",
        "3",
        "--period",
        "1000s",
        "--batches",
        "4",
    ]
    console = Console(file=io.StringIO())
    result = bench.run(parser.parse_args([*words, "--keys", "state,tag"]), console)
    assert list(result) == list(bench.METHODS)
    for row in result.values():
        assert set(row) == {"locality", "imbalance", "imbalance_worst", "moved", "table", "plan_seconds"}
        assert set(row["imbalance"]) == {"state", "tag"}
    bench.show(result, console)
    with pytest.raises(UnknownColumn, match="did you mean 'state'"):
        bench.run(parser.parse_args([*words, "--keys", "stat,tag"]), console)
    with pytest.raises(WeirError, match="period"):
        bench.seconds("soon")
    for wrong in ([], ["--data", "a.parquet", "--made-up", "teams"], ["--data", "a.parquet"]):
        with pytest.raises(WeirError, match="--keys a,b"):
            bench.run(parser.parse_args(wrong), console)


def test_made_up_streams_change_as_they_say():
    rows = {kind: changing(kind, periods=2, rows=400) for kind in KINDS}
    places = {}
    for kind, stream in rows.items():
        # the place that a guest was seen at most, in the first and in the second period
        tables = [count_pairs(*stream.rows(a, b)) for a, b in pairwise(stream.periods)]
        best = []
        for table in tables:
            order = np.argsort(table.count, kind="stable")
            best.append(dict(zip(table.right[order].tolist(), table.left[order].tolist(), strict=True)))
        both = best[0].keys() & best[1].keys()
        places[kind] = np.mean([best[0][g] == best[1][g] for g in both])
    assert places["stable"] > places["campaigns"] > places["teams"]


def test_partition_bench_rows():
    parser = argparse.ArgumentParser()
    bench_partition.arguments(parser)
    words = ["--quick", "--servers", "2", "--graphs", "50x2k planted", "--methods", "metis,multilevel"]
    console = Console(file=io.StringIO())
    result = bench_partition.run(parser.parse_args(words), console)
    assert [r.get("method") for r in result] == ["metis", "multilevel", None]
    assert {"graph", "servers", "method", "locality", "overload", "cpu_seconds", "peak_mb"} <= set(result[0])
    assert set(result[2]["after_drift"]) == {"unchanged", "fresh", "warm"}
    bench_partition.show(result, console)
