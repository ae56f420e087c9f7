"""The advertising pipeline: receive, parse, filter, join with campaigns, count per window, store.

    python examples/advertising.py                  # on generated events, on this machine
    python examples/advertising.py --plain          # without weights, to compare

Events are lines of JSON, as a web server would log them. Those that someone has viewed are counted per campaign in
windows of ten seconds of event time; a window's counts are stored when it closes. Rows are spread over the parsing
servers by weight: near ones get more, busy ones less.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from rich.console import Console
from rich.table import Table

import weir
import weir.testing

KINDS = ["view", "click", "purchase"]
START = 1_700_000_000_000  # ms


def generate(folder: Path, batches: int, rows: int, campaigns: int, seed: int = 1) -> dict[str, str]:
    """Files of events, one per batch, ten events per millisecond; returns the campaign of each ad."""
    rng = np.random.default_rng(seed)
    owner = {f"ad-{a}": f"campaign-{a % campaigns}" for a in range(10 * campaigns)}
    popular = 1 / np.arange(1, len(owner) + 1)
    folder.mkdir(parents=True, exist_ok=True)
    for batch in range(batches):
        ads = rng.choice(len(owner), rows, p=popular / popular.sum())
        kinds, users = rng.integers(0, 3, rows), rng.integers(0, 100_000, rows)
        times = START + (batch * rows + np.arange(rows)) // 10 * 100
        lines = [
            json.dumps(
                {
                    "user": f"u{u}",
                    "ad": f"ad-{a}",
                    "kind": KINDS[k],
                    "time": int(t),
                    "ip": f"10.0.{u % 256}.1",
                }
            )
            for a, k, u, t in zip(ads, kinds, users, times, strict=True)
        ]
        path = folder / f"{batch:05d}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (START // 1000 + batch,) * 2)  # Spark reads files in order of age
    return owner


def pipeline(events, owner: dict[str, str], grouping: weir.routing.Grouping) -> weir.Stream:
    """The application, from a DataFrame with a column ``value``."""
    fields = [("user", pa.string()), ("ad", pa.string()), ("kind", pa.string()), ("time", pa.int64())]
    ads, campaigns = pa.array(list(owner)), pa.array(list(owner.values()))

    def parse(batch):
        lines = io.BytesIO("\n".join(batch.column("value").to_pylist()).encode())
        options = pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
        table = pj.read_json(lines, parse_options=options)
        if table.num_rows != batch.num_rows:
            raise ValueError(f"{batch.num_rows} lines hold {table.num_rows} events")
        return {
            "ad": table["ad"],
            "kind": table["kind"],
            "time": table["time"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        }

    def join(batch):
        found = pc.index_in(batch.column("ad"), value_set=ads)
        return {"campaign": campaigns.take(found), "time": batch.column("time")}

    parsed = {"ad": "string", "kind": "string", "time": "timestamp"}
    return (
        weir.source(events, "receive")
        .map_batches(parse, parsed, name="parse", routing=grouping, on_error="divert")
        .filter_batches(lambda batch: pc.equal(batch.column("kind"), "view"), name="views")
        .map_batches(join, {"campaign": "string", "time": "timestamp"}, name="join", columns=["ad", "time"])
        .count(
            "campaign",
            name="count",
            window=weir.tumbling("time", "10 seconds", lateness="1 second"),
        )
    )


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=50_000, help="events per batch (default 50,000)")
    parser.add_argument("--campaigns", type=int, default=100)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--plain", action="store_true", help="shuffle instead of weights")
    parser.add_argument("--master", default="local[6]", help="where Spark runs")
    parser.add_argument("--out", type=Path, help="folder for events, checkpoint and stored counts")
    args = parser.parse_args(argv)
    console = Console()
    work = args.out or Path(tempfile.mkdtemp(prefix="advertising-"))
    console.print(f"generating {args.batches * args.rows:,} events in {work}")
    owner = generate(work / "events", args.batches, args.rows, args.campaigns)
    spark = weir.testing.local_spark(args.master)
    events = spark.readStream.option("maxFilesPerTrigger", 1).text(str(work / "events"))
    app = pipeline(events, owner, weir.Shuffle() if args.plain else weir.Weighted())
    query = app.start(
        str(work / "checkpoint"),
        servers=args.servers,
        sink=str(work / "stored"),
        dead_letters=str(work / "dead"),
        trigger={"availableNow": True},
    )
    with console.status("batch 0"):
        while query.is_active:
            query.await_termination(1)
    query.await_termination()
    stored = spark.read.parquet(str(work / "stored"))
    result = {
        "batches": [
            {"rows": p.rows, "seconds": p.seconds.batch, "latency": p.sinks["count"]}
            for p in query.recent_progress
        ],
        "stored_windows": stored.count(),
        "stored_views": stored.agg({"count": "sum"}).first()[0] or 0,
        "open_views": query.state("count").agg({"count": "sum"}).first()[0] or 0,
        "folder": str(work),
    }
    show(query.progress, result, console)
    stored.groupBy("campaign").sum("count").orderBy("sum(count)", ascending=False).show(3, truncate=False)
    return result


def show(progress, result: dict, console: Console) -> None:
    """The last batch, operator by operator, and what came of all of them."""
    table = Table(title="last batch", title_justify="left")
    for column in ("operator", "rows in", "rows out", "busiest / average", "age p50 ms", "age p99 ms"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for name, op in progress.operators.items():
        age = op.latency or {"p50": float("nan"), "p99": float("nan")}
        busiest = "–" if op.imbalance is None else f"{op.imbalance:.2f}"
        ages = f"{1000 * age['p50']:,.0f}", f"{1000 * age['p99']:,.0f}"
        table.add_row(name, f"{op.rows_in:,}", f"{op.rows_out:,}", busiest, *ages)
    console.print(table)
    far = ", ".join(f"{c['rows']:,} {name}" for name, c in progress.distance.items() if c["rows"])
    console.print(f"rows by distance: {far}")
    for edge, weights in progress.weights.items():
        console.print(f"weights on {edge}: {next(iter(weights.values()))}")
    settled = result["batches"][1:] or result["batches"]
    rate = sum(b["rows"] for b in settled) / sum(b["seconds"] for b in settled)
    console.print(
        f"[bold]{rate:,.0f} events/s[/] after the first batch; {result['stored_views']:,} views stored in "
        f"{result['stored_windows']:,} windows, {result['open_views']:,} in windows still open"
    )


if __name__ == "__main__":
    main()
