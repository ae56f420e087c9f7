"""Every grouping on the same streams: speed, balance, memory."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from weir.routing.base import Grouping
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.partial_key import PartialKey
from weir.routing.shuffle import Shuffle
from weir_evaluation.routing import RandomChoices
from weir_evaluation.routing.bounded_ring import BoundedRing
from weir_evaluation.routing.d_choices import DChoices
from weir_evaluation.routing.dkg import HeavyKeys
from weir_evaluation.routing.two_choices import TwoChoices
from weir_evaluation.routing.w_choices import WChoices
from weir_evaluation.simulate.measures import imbalance, memory
from weir_evaluation.simulate.streams import SimulatedStream, words, zipf

HELP = "keys/s, imbalance and memory of every grouping on skewed streams"

CHUNK = 65_536  # keys per call, about what one Arrow batch of the engine holds
ZIPF = (0.1, 0.4, 0.8, 1.0, 1.2, 1.6, 2.0)

Measured = list[dict[str, Any]]

# HeavyKeys has to know the stream: it learns from the first tenth, all others start from nothing.
MAKERS: dict[str, Callable[[SimulatedStream, int], Grouping]] = {
    "KG": lambda stream, n: Hash(),
    "SG": lambda stream, n: Shuffle(),
    "PKG": lambda stream, n: PartialKey(),
    "PoTC": lambda stream, n: TwoChoices(),
    "CH": lambda stream, n: BoundedRing(),
    "PoRC": lambda stream, n: RandomChoices(),
    "D-C": lambda stream, n: DChoices(),
    "W-C": lambda stream, n: WChoices(),
    "DKG": lambda stream, n: HeavyKeys.learn(stream.head(len(stream) // 10).keys, n),
    "CG": lambda stream, n: Consistent(),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``weir bench groupings``."""
    parser.add_argument("--messages", type=int, default=10_000_000, help="messages per Zipf stream")
    parser.add_argument("--keys", type=int, default=100_000, help="different keys per Zipf stream")
    parser.add_argument("--zipf", type=float, nargs="*", default=list(ZIPF), help="Zipf exponents")
    parser.add_argument("--workers", type=int, nargs="+", default=[5, 10, 50, 100])
    parser.add_argument("--words", metavar="PATH", help="a Parquet file with a column 'word', for real keys")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, two exponents")


def run(args: argparse.Namespace, console: Console) -> Measured:
    """Measures; one record per grouping, stream and number of workers.

    ``keys_per_s`` is by CPU time of the one thread that routes, so that neighbours on the machine do not
    count. ``imbalance`` is the fullest worker over the average, minus 1. ``memory`` is the number of
    (worker, key) pairs.
    """
    _compile()
    measured: Measured = []
    for stream in _streams(args, console):
        keys = stream.keys
        for n in args.workers:
            console.print(f"{stream.name} on {n} workers", style="dim")
            measured += [measure(stream, keys, make(stream, n), n) for make in MAKERS.values()]
    return measured


def measure(stream: SimulatedStream, keys: np.ndarray, grouping: Grouping, n: int) -> dict[str, Any]:
    """Routes a whole stream through one grouping."""
    router = grouping.router(n, seed=1)
    to = np.empty(len(keys), dtype=np.int32)
    started = time.thread_time()
    for at in range(0, len(keys), CHUNK):
        to[at : at + CHUNK] = router.route(keys[at : at + CHUNK])
    spent = time.thread_time() - started
    return {
        "grouping": grouping.name,
        "stream": stream.name,
        "workers": n,
        "keys_per_s": round(len(keys) / max(spent, 1e-9)),
        "imbalance": round(imbalance(np.bincount(to, minlength=n)), 6),
        "memory": memory(stream.ids, to),
    }


def show(result: Measured, console: Console) -> None:
    """One table per stream."""
    for name in dict.fromkeys(row["stream"] for row in result):
        rows = [row for row in result if row["stream"] == name]
        counts = sorted({row["workers"] for row in rows})
        table = Table(title=name, title_justify="left")
        table.add_column("grouping")
        table.add_column("M keys/s", justify="right")
        for what in ("imbalance", "memory"):
            for n in counts:
                table.add_column(f"{what}\nn={n}", justify="right")
        for grouping in dict.fromkeys(row["grouping"] for row in rows):
            mine = {row["workers"]: row for row in rows if row["grouping"] == grouping}
            table.add_row(
                grouping,
                f"{min(row['keys_per_s'] for row in mine.values()) / 1e6:.0f}",
                *(f"{mine[n]['imbalance']:.4f}" for n in counts),
                *(f"{mine[n]['memory']:,}" for n in counts),
            )
        console.print(table)
    console.print("M keys/s: the slowest over the numbers of workers, one core", style="dim")


def _streams(args: argparse.Namespace, console: Console) -> Iterator[SimulatedStream]:
    messages = args.messages // 10 if args.quick else args.messages
    for z in [0.8, 2.0] if args.quick else args.zipf:
        yield zipf(messages, args.keys, z, seed=1)
    if args.words:
        yield words(args.words, limit=messages if args.quick else None)
    else:
        console.print("no --words PATH given: real words are left out", style="yellow")


def _compile() -> None:
    tiny = zipf(1000, 10, seed=0)
    for make in MAKERS.values():
        measure(tiny, tiny.keys, make(tiny, 2), 2)
