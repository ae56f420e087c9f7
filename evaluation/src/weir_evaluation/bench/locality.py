"""``weir bench locality``: a recorded stream, routed again in nine ways."""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from weir.errors import UnknownColumn, WeirError, did_you_mean
from weir.hashing import hash_columns
from weir.locality.auto import Auto
from weir.locality.config import Locality
from weir_evaluation.locality.changing import KINDS, changing
from weir_evaluation.locality.replay import RecordedStream, ReplayResult, replay_tables, replay_weir

HELP = "replay a recorded stream: locality, balance and moves of hash, tables, the paper's way and ours"
METHODS = (
    "hash",
    "static",
    "paper",
    "paper_often",
    "weir",
    "weir_first_seen",
    "weir_look_ahead",
    "auto",
    "bound",
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--data", help="a Parquet file, rows in order of time")
    parser.add_argument("--keys", help="key columns in the order of the operators, e.g. a,b")
    parser.add_argument(
        "--made-up",
        choices=list(KINDS),
        help="instead of a file: a stream whose affinity changes in this way",
    )
    parser.add_argument("--time", default="time", help="the column with the time of a row")
    parser.add_argument("--servers", type=int, default=6)
    parser.add_argument("--period", default="7d", help="time between reconfigurations: 12h, 7d, 30d …")
    parser.add_argument("--batches", type=int, default=28, help="micro-batches per period")
    parser.add_argument("--alpha", type=float, default=1.03, help="allowed load over the average")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="pairs remembered")
    parser.add_argument("--methods", default=",".join(METHODS), help="which of: " + ", ".join(METHODS))
    parser.add_argument("--limit", type=int, default=None, help="only the first rows")
    parser.add_argument("--seed", type=int, default=0)


def seconds(text: str) -> int:
    """A length of time in seconds.

    >>> seconds("7d"), seconds("90m")
    (604800, 5400)
    """
    found = re.fullmatch(r"(\d+)\s*([smhdw])", text.strip())
    if not found:
        raise WeirError(
            f"period {text!r} is not a length of time: write a number and one of s, m, h, d, w, as in 7d"
        )
    return int(found[1]) * _UNITS[found[2]]


def load(
    path: str, keys: list[str], when: str, period: str, batches: int, limit: int | None = None
) -> tuple[RecordedStream, list[int]]:
    """A recorded stream from a Parquet file, and the time in seconds at which each period begins."""
    known = pq.read_schema(path).names
    for column in [*keys, when]:
        if column not in known:
            raise UnknownColumn(f"{path} has no column {column!r}: {did_you_mean(column, known)}")
    table = pq.read_table(path, columns=[*keys, when])
    if limit:
        table = table.slice(0, limit)
    micros = table.column(when).cast(pa.timestamp("us", table.schema.field(when).type.tz)).cast(pa.int64())
    clock = micros.to_numpy()
    if len(clock) and (np.diff(clock) < 0).any():
        order = np.argsort(clock, kind="stable")
        table, clock = table.take(order), clock[order]
    hashes = [hash_columns([table.column(k)]) for k in keys]
    stream = RecordedStream.cut(hashes, clock, seconds(period) * 1_000_000, batches)
    return stream, [int(clock[first] // 1_000_000) for first in stream.periods[:-1]]


def replay(
    stream: RecordedStream,
    method: str,
    servers: int,
    *,
    alpha: float,
    capacity: int,
    period: int,
    seed: int = 0,
) -> ReplayResult:
    """One method over a stream."""
    if method.startswith("weir") or method == "auto":
        config = (Auto if method == "auto" else Locality)(
            alpha=alpha,
            capacity=capacity,
            period=period,
            seed=seed,
            new_keys="first_seen" if method == "weir_first_seen" else "affinity",
            look_ahead="auto" if method == "auto" else method == "weir_look_ahead",
        )
        return replay_weir(stream, servers, config)[0]
    return replay_tables(stream, servers, method, alpha=alpha, capacity=capacity, seed=seed)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures: per method, means over all periods but the first, from which everybody learns."""
    if (args.data is None) == (args.made_up is None):
        raise WeirError(
            "say what to replay: --data FILE --keys a,b, or --made-up with one of " + ", ".join(KINDS)
        )
    if args.made_up:
        keys, stream = ["place", "guest"], changing(args.made_up, batches=args.batches, seed=args.seed)
    elif not args.keys:
        raise WeirError(f"name the key columns of {args.data} in the order of the operators: --keys a,b")
    else:
        keys = args.keys.split(",")
        stream, _ = load(args.data, keys, args.time, args.period, args.batches, args.limit)
    if len(stream) < 2:
        raise WeirError(
            f"{args.data} spans less than two periods of {args.period}: choose a shorter --period"
        )
    out: dict[str, Any] = {}
    for method in args.methods.split(","):
        if method not in METHODS:
            raise WeirError(f"no method {method!r}: {did_you_mean(method, METHODS)}")
        console.print(f"{method}: {len(stream)} periods of {args.period} …")
        outcome = replay(
            stream,
            method,
            args.servers,
            alpha=args.alpha,
            capacity=args.capacity,
            period=args.batches,
            seed=args.seed,
        )
        out[method] = outcome.summary(keys)
    return out


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the result as a table."""
    names = list(next(iter(result.values()))["imbalance"])
    table = Table(title="locality and balance, mean over periods")
    for column in (
        "method",
        "locality",
        *(f"imbalance {n}" for n in names),
        "moved",
        "table",
        "plan s/period",
    ):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, row in result.items():
        balance = (f"{row['imbalance'][n]:.2f} (worst {row['imbalance_worst'][n]:.2f})" for n in names)
        table.add_row(
            method,
            f"{row['locality']:.1%}",
            *balance,
            f"{row['moved']:.1%}",
            f"{row['table']:,}",
            f"{row['plan_seconds']:.2f}",
        )
    console.print(table)
