"""Damage to every file of a checkpoint, byte by byte: each is refused by name, or does not matter; none is believed.

A checkpoint with every kind of file is made in this process. Then, for one byte of one file after the other, a copy is
damaged (the byte is changed, or the file is cut off there), inspected, opened, fed a batch and compared with Python.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import weir
from weir.engine.inspect.inspection import inspect
from weir.errors import WeirError
from weir.testing import Crash, LocalQuery, start
from weir_evaluation.bench.chaos.cases import SCHEMA, Tallies
from weir_evaluation.bench.chaos.draw import rows

HELP = "every byte of every checkpoint file changed or cut off: refused by name, or without effect"
BATCHES = 6
SECONDS = 120  # after which a run counts as hanging
OUTCOMES = ("refused", "right", "wrong", "raw", "hangs")
BAD = ("wrong", "raw", "hangs")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir bench fuzz``."""
    parser.add_argument("--bytes", type=int, default=40, help="places per file that are damaged, both ways")
    parser.add_argument("--all", action="store_true", help="damage every byte of every file: takes hours")
    parser.add_argument("--seed", type=int, default=0)


@dataclass
class Tried:
    """What came of the damage to one kind of file."""

    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)


def application() -> weir.Application:
    """Return an application that leaves every kind of file in its checkpoint."""
    source = weir.source(SCHEMA)
    first = source.keyed("place", weir.Count(emit="rows"), name="places")
    learnt = first.keyed("topic", Tallies(), name="topics")
    split = source.keyed("topic", weir.Aggregate(total="sum(n)"), name="sums", routing=weir.Consistent())
    return weir.Application(learnt, split)


def open_query(checkpoint: str, **more: Any) -> LocalQuery:
    routing = weir.Locality(period=None, forecast=None)
    return start(application(), checkpoint, servers=3, routing=routing, seed=1, **more)


def make(checkpoint: str) -> list[pa.Table]:
    """Write a checkpoint whose last batch is committed, but not delivered, and return what it was fed."""

    def dies(table: pa.Table, batch: int) -> None:
        if batch == BATCHES - 1:
            raise Crash

    query = open_query(checkpoint, sink={"topics": dies, "sums": lambda table, batch: None})
    tables = [rows(7, batch, 200) for batch in range(BATCHES)]
    for batch, table in enumerate(tables[:-1]):
        query.feed(table)
        if batch == 2:
            query.scale_out(1)
        elif batch in (1, 4):
            query.reconfigure(wait=True)
    with contextlib.suppress(Crash):
        query._driver.batch(query._rows(tables[-1]), BATCHES - 1)
    query.stop()
    return tables


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Damage files; return what came of it by kind of file."""
    rng = random.Random(args.seed)
    tried: dict[str, Tried] = {}
    with tempfile.TemporaryDirectory(prefix="weir-fuzz-") as folder:
        whole = Path(folder, "whole")
        tables = make(str(whole))
        names = sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())
        for name in names:
            size = (whole / name).stat().st_size
            places = range(size) if args.all else sorted(rng.sample(range(size), min(size, args.bytes)))
            kind = tried.setdefault(name.split("/")[0], Tried())
            for place in places:
                for way in ("changed", "cut"):
                    outcome, said = damage(whole, name, place, way, tables, rng.randrange(1, 256))
                    kind.outcomes[outcome] += 1
                    if outcome in BAD:
                        kind.bad.append(f"{name}, byte {place} {way}: {said}")
                        console.print(f"{outcome}: {kind.bad[-1]}", style="red", highlight=False)
            console.print(f"{name}: {dict(kind.outcomes)}", style="dim", highlight=False)
    counts = {name: {o: kind.outcomes[o] for o in OUTCOMES} for name, kind in sorted(tried.items())}
    return {
        "files": len(names),
        "damaged": sum(sum(c.values()) for c in counts.values()),
        "outcomes": {o: sum(c[o] for c in counts.values()) for o in OUTCOMES},
        "by_kind": counts,
        "bad": [said for kind in tried.values() for said in kind.bad],
    }


def damage(
    whole: Path, name: str, place: int, way: str, tables: list[pa.Table], flip: int
) -> tuple[str, str]:
    """Damage one byte of one file in a copy of a checkpoint, use the copy, and return what came of it."""
    copy = Path(tempfile.mkdtemp(prefix="copy-", dir=whole.parent))
    try:
        shutil.copytree(whole, copy, copy_function=os.link, dirs_exist_ok=True)
        data = bytearray((whole / name).read_bytes())
        data[place] ^= flip
        (copy / name).unlink()
        (copy / name).write_bytes(data if way == "changed" else data[:place])
        with _deadline(SECONDS):
            return _use(str(copy), tables)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _use(checkpoint: str, tables: list[pa.Table]) -> tuple[str, str]:
    delivered: dict[int, int] = {}
    try:
        with contextlib.suppress(WeirError):  # it says so in its own way, and must not fail otherwise
            inspect(checkpoint)
        note = lambda table, batch: delivered.update({batch: table.num_rows})  # noqa: E731
        query = open_query(checkpoint, sink={"topics": note, "sums": lambda table, batch: None})
        query.feed(tables[-1], number=BATCHES - 1)  # its delivery is owed
        more = rows(7, BATCHES, 200)
        query.feed(more)
        query.finish()
        wrong = _differs(query, [*tables, more])
        query.stop()
    except WeirError as error:
        return "refused", str(error)
    except _Hangs:
        return "hangs", f"not done within {SECONDS} s"
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"
    if not wrong and BATCHES - 1 not in delivered:
        wrong = "a batch whose delivery was owed was not delivered"
    return ("wrong", wrong) if wrong else ("right", "")


def _differs(query: LocalQuery, tables: list[pa.Table]) -> str:
    """Return in which operator the state is not what plain Python says, and nothing if it is."""
    places: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for row in (row for table in tables for row in table.to_pylist()):
        places[row["place"]] += 1
        topics[row["topic"]] += 1
        sums[row["topic"]] += row["n"]
    columns = {
        "places": ("place", "count", places),
        "topics": ("topic", "rows", topics),
        "sums": ("topic", "total", sums),
    }
    for name, (key, value, truth) in columns.items():
        state = query.state(name).to_pylist()
        if len(state) != len(truth) or {row[key]: row[value] for row in state} != truth:
            return f"the state of {name!r} is not the true one"
    return ""


class _Hangs(BaseException):
    pass


@contextlib.contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    """Raise where the program is after so many seconds."""

    def late(*about: Any) -> None:
        raise _Hangs

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if any damage was believed, made a run hang, or ended in an error that is not ours."""
    return int(bool(result["bad"]))


def show(result: dict[str, Any], console: Console) -> None:
    """Print what came of the damage, by kind of file."""
    table = Table(title=f"{result['damaged']} times damaged, {result['files']} files", title_justify="left")
    table.add_column("files")
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    for name, outcomes in result["by_kind"].items():
        table.add_row(name, *(str(outcomes[o]) for o in OUTCOMES))
    console.print(table)
    for said in result["bad"]:
        console.print(said, style="red", highlight=False)
