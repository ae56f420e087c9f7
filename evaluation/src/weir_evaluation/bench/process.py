"""What a user's own operator costs per row, by the kind of its state, beside a plain Python loop in the same process.

The loop groups the same rows by key, keeps its states in a dict, and calls the same function. Both take turns, batch by
batch, and their results are compared. Times are CPU seconds of the process: neither waits for anything, and what else
runs on the machine does not count. On Spark, the same functions stand beside ``transformWithStateInPandas`` and
``transformWithState`` by wall time, as in Bytewax, where these can be had.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

import weir
import weir.testing
from weir.hashing import hash_columns
from weir.operators.timers import EPOCH, Timers, to_micros
from weir.values import to_python
from weir_evaluation.bench.peers.environment import Unavailable
from weir_evaluation.bench.peers.systems import all_systems

HELP = "a user's own operator by the kind of its state, beside plain Python, Spark's operators and Bytewax"
SCHEMA = "user string, page string, n long, at timestamp"
MINUTE = 60_000_000
IDLE = WINDOW = timedelta(minutes=2)
MARKS = (1, 10, 100, 1000, 10_000)  # batches whose cost is told
COMPARED = 12  # batches of which every row is compared; of most others, their number and sum
KINDS = ("value", "dict", "list", "map", "timers", "window", "vector")
GROWING = ("growing-list", "growing-map")  # of which nothing is ever taken away
WAYS = (
    "ordered",
    "every-column",
    "merged",
    "map-rows",
    "filter-rows",
    "flat-map-rows",
)  # to call a function, state apart
EVERY = ["user", "page", "n", "at"]
COLUMNS = {
    "ordered": ["n", "at"],
    "every-column": EVERY,
    "map-rows": ["user", "n"],
    "filter-rows": EVERY,
    "flat-map-rows": ["user", "page", "n"],
    "value": ["n"],
    "dict": ["page", "n"],
    "list": ["n"],
    "map": ["page", "n"],
    "timers": ["n", "at"],
    "window": ["n", "at"],
    "growing-list": ["n"],
    "growing-map": ["n"],
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        action="append",
        choices=[*KINDS, *GROWING, *WAYS],
        help="what is kept, or how the function is called (default: all kinds of state but growing ones)",
    )
    parser.add_argument("--keys", type=int, default=20_000, help="keys of a batch")
    parser.add_argument("--rows-per-key", type=int, default=2)
    parser.add_argument(
        "--of", type=int, help="keys that there are; a batch has some of them (default: its own)"
    )
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--spark", action="store_true", help="also on Spark, beside Spark's own operators")
    parser.add_argument("--spark-keys", type=int, default=10_000, help="keys of a batch on Spark")
    parser.add_argument("--spark-batches", type=int, default=5, help="batches on Spark that are counted")
    parser.add_argument("--bytewax", action="store_true", help="also in Bytewax, set up first if need be")
    parser.add_argument("--quick", action="store_true", help="few batches of few rows, to see that it works")


# ---------------------------------------------------------------------- what is kept, and the functions


@dataclass
class Number:
    n: int = 0


@dataclass
class Pages:
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class LastFive:
    last: Any = field(default_factory=deque)


@dataclass
class StoredLastFive:
    last: weir.ListState[int] = field(default_factory=weir.ListState)


@dataclass
class StoredPages:
    counts: weir.MapState[str, int] = field(default_factory=weir.MapState)


@dataclass
class Numbers:
    n: int = 0
    counts: dict[int, int] = field(default_factory=dict)


@dataclass
class StoredNumbers:
    n: int = 0
    counts: weir.MapState[int, int] = field(default_factory=weir.MapState)


@dataclass
class Visit:
    n: int = 0
    leaves: datetime | None = None


def add(key: Any, rows: Any, state: Any) -> Any:
    """Add up numbers; tell the sum."""
    for row in rows:
        state.n += row.n
    return [(key, state.n)]


def count_pages(key: Any, rows: Any, state: Any) -> Any:
    """Add up numbers by page; tell the sum of all."""
    counts = state.counts
    for row in rows:
        counts[row.page] = counts.get(row.page, 0) + row.n
    return [(key, sum(counts.values()))]


def keep_five(key: Any, rows: Any, state: Any) -> Any:
    """Keep the last five numbers; tell their sum."""
    last = state.last
    for row in rows:
        last.append(row.n)
        if len(last) > 5:
            last.popleft()
    return [(key, sum(last))]


def keep_all(key: Any, rows: Any, state: Any) -> Any:
    """Keep all numbers; tell how many there are."""
    for row in rows:
        state.last.append(row.n)
    return [(key, len(state.last))]


def number_all(key: Any, rows: Any, state: Any) -> Any:
    """Number all numbers; tell the one in the middle."""
    for row in rows:
        state.counts[state.n] = row.n
        state.n += 1
    return [(key, state.counts[state.n // 2])]


def visit(key: Any, rows: Any, state: Any, timers: Any) -> None:
    """Add up numbers until nothing has come for two minutes."""
    if state.leaves is not None:
        timers.delete(state.leaves)
    for row in rows:
        state.n += row.n
        if state.leaves is None or row.at + IDLE > state.leaves:
            state.leaves = row.at + IDLE
    timers.set(state.leaves)


def leave(key: Any, timer: Any, state: Any, timers: Any) -> Any:
    """Tell the sum of a visit that is over."""
    n, state.n, state.leaves = state.n, 0, None
    return [(key, n)]


def add_in_window(key: Any, rows: Any, state: Any) -> None:
    """Add up numbers."""
    for row in rows:
        state.n += row.n


def tell_window(key: Any, window: Any, state: Any) -> Any:
    """Tell the sum of a window."""
    return [(key, state.n)]


def add_in_order(key: Any, rows: Any, state: Any) -> Any:
    """Keep a number that depends on the order of rows; tell it."""
    for row in rows:
        state.n = (31 * state.n + row.at.microsecond) % 1_000_003
    return [(key, state.n)]


def merged(one: Any, other: Any) -> Any:
    """Return the sum of two partial ones."""
    one.n += other.n
    return one


def doubled(row: Any) -> Any:
    """Return a row with twice its number."""
    return row.user, 2 * row.n


def is_even(row: Any) -> Any:
    """Return whether a row's number is even."""
    return row.n % 2 == 0


def both_names(row: Any) -> Any:
    """Return a row for the user and one for the page."""
    return [(row.user, row.n), (row.page, row.n)]


def add_columns(batch: Any) -> Any:
    """Add up the numbers of all keys at once; tell the sums."""
    n = batch.state("n", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1])
    return {"n": n}, {"n": n}


FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, Any]] = {  # function, state, state of the plain loop
    "value": (add, Number, Number),
    "dict": (count_pages, Pages, Pages),
    "list": (keep_five, StoredLastFive, LastFive),
    "map": (count_pages, StoredPages, Pages),
    "timers": (visit, Visit, Visit),
    "window": (add_in_window, Number, Number),
    "vector": (add_columns, None, Number),
    "growing-list": (keep_all, StoredLastFive, LastFive),
    "growing-map": (number_all, StoredNumbers, Numbers),
    "ordered": (add_in_order, Number, Number),
    "every-column": (add, Number, Number),
    "merged": (add, Number, Number),
    "map-rows": (doubled, None, None),
    "filter-rows": (is_even, None, None),
    "flat-map-rows": (both_names, None, None),
}


def application(state: str, source: Any) -> Any:
    """Return the application that keeps a kind of state."""
    output = {"user": "string", "n": "long"}
    function, kind, _ = FUNCTIONS[state]
    if state in ("map-rows", "flat-map-rows"):
        method = source.map if state == "map-rows" else source.flat_map
        return method(function, output, columns=COLUMNS[state], name="p")
    if state == "filter-rows":
        return source.filter(function, name="p")
    if state == "vector":
        kept = {"n": "long"}
        return source.process_batch("user", function, state=kept, output=output, columns=["n"], name="p")
    if state == "window":
        window = weir.tumbling("at", "2 minutes")
        terms: Any = {"closed": tell_window, "window": window, "columns": COLUMNS[state]}
    elif state == "timers":
        source = source.event_time("at")
        terms = {"timers": "event", "on_timer": leave, "columns": COLUMNS[state]}
    elif state == "merged":
        terms = {"columns": ["n"], "merge": merged, "routing": weir.Shuffle()}
    elif state == "ordered":
        terms = {"columns": COLUMNS[state], "order_by": "at"}
    else:
        terms = {} if state == "every-column" else {"columns": COLUMNS[state]}
    return source.process("user", function, state=kind, output=output, name="p", **terms)


# ---------------------------------------------------------------------- the plain loop


class Plain:
    """The same functions, rows and states in a loop of plain Python."""

    def __init__(self, state: str) -> None:
        self.function, _, self.make = FUNCTIONS["value" if state == "vector" else state]
        columns = COLUMNS.get(state, ["n"])
        self.columns = columns if "user" in columns else ["user", *columns]
        self.row = namedtuple("Row", self.columns)  # type: ignore[misc]
        self.states: dict[Any, Any] = {}

    def feed(self, table: pa.Table) -> list[Any]:
        """Take the rows of a batch; return what the functions emit."""
        out: list[Any] = []
        for key, rows in self.grouped(table).items():
            state = self.states.get(key)
            if state is None:
                state = self.states[key] = self.make()
            out.extend(self.function(key, rows, state))
        return out

    def grouped(self, table: pa.Table) -> dict[Any, list[Any]]:
        groups: dict[Any, list[Any]] = {}
        for row in self.rows(table):
            group = groups.get(row.user)
            if group is None:
                groups[row.user] = [row]
            else:
                group.append(row)
        return groups

    def rows(self, table: pa.Table) -> Iterator[Any]:
        columns = (to_python(table[name].combine_chunks()) for name in self.columns)
        return map(self.row._make, zip(*columns, strict=True))  # type: ignore[attr-defined]


class PlainOrdered(Plain):
    """With the rows of each key in the order of their times."""

    def grouped(self, table: pa.Table) -> dict[Any, list[Any]]:
        groups = super().grouped(table)
        for rows in groups.values():
            rows.sort(key=attrgetter("at"))
        return groups


class PlainMerged(Plain):
    """With a partial state per key and batch, which is merged into that of the batches before."""

    def feed(self, table: pa.Table) -> list[Any]:
        out: list[Any] = []
        for key, rows in self.grouped(table).items():
            state = self.make()
            out.extend(self.function(key, rows, state))
            before = self.states.get(key)
            self.states[key] = state if before is None else merged(before, state)
        return out


class PlainRows(Plain):
    """Without keys and states: a function of one row, called for each."""

    def feed(self, table: pa.Table) -> list[Any]:
        if self.function is is_even:
            return [(row.user, row.n) for row in self.rows(table) if self.function(row)]
        if self.function is doubled:
            return [self.function(row) for row in self.rows(table)]
        return [one for row in self.rows(table) for one in self.function(row)]


class PlainTimed(Plain):
    """With timers in a heap; time goes on to the newest row of the batches before."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.due: list[tuple[int, Any]] = []
        self.now = self.mark = EPOCH
        self.timers = Timers(["event"], None, 0)

    def feed(self, table: pa.Table) -> list[Any]:
        groups = self.grouped(table)
        out: list[Any] = []
        self.mark, self.now = self.now, max(self.now, max(rows[-1].at for rows in groups.values()))
        mark = to_micros(self.mark)
        while self.due and self.due[0][0] <= mark:
            at, key = heapq.heappop(self.due)
            state = self.states[key]
            if state.leaves is not None and to_micros(state.leaves) == at:  # not put off since
                out.extend(leave(key, None, state, self.timers))
        for key, rows in groups.items():
            state = self.states.get(key)
            if state is None:
                state = self.states[key] = self.make()
            timers = self.timers.again()
            self.function(key, rows, state, timers)
            for (_, at), wanted in timers.changes.items():
                if wanted:
                    heapq.heappush(self.due, (at, key))
        return out


class PlainWindows(PlainTimed):
    """With a state per key and window; those that are over are told."""

    def feed(self, table: pa.Table) -> list[Any]:
        windows: dict[Any, list[Any]] = {}
        newest = self.now
        for row in self.rows(table):
            at = row.at
            newest = max(newest, at)
            start = at.replace(minute=at.minute - at.minute % 2, second=0, microsecond=0)
            windows.setdefault((row.user, start), []).append(row)
        self.mark, self.now = self.now, newest
        for key, rows in windows.items():
            state = self.states.get(key)
            if state is None:
                state = self.states[key] = self.make()
            self.function(key[0], rows, state)
        over = [key for key in self.states if key[1] + WINDOW <= self.mark]
        return [row for key in over for row in tell_window(key[0], None, self.states.pop(key))]


def plain(state: str) -> Plain:
    apart = {"timers": PlainTimed, "window": PlainWindows, "ordered": PlainOrdered, "merged": PlainMerged}
    return (PlainRows if FUNCTIONS[state][1:] == (None, None) else apart.get(state, Plain))(state)


def bare(table: pa.Table, folder: str) -> list[Any]:
    """Return the sums of a batch alone, in NumPy and Arrow without any engine; write them as state and as output.

    That is the least that anything can cost which groups rows by key and keeps what it finds: hash, sort, gather, add,
    write. Nothing is looked up, checked, routed or flushed.
    """
    keys, n = table["user"].combine_chunks(), table["n"].to_numpy()
    hashes = hash_columns([keys])
    order = np.argsort(hashes)
    ranked = hashes[order]
    first = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    sums = pa.array(np.add.reduceat(n[order], first))
    users = keys.take(pa.array(order[first]))
    state = {"hash": pa.array(ranked[first]), "user": users, "n": sums}
    for name, made in (("state", pa.table(state)), ("output", pa.table({"user": users, "n": sums}))):
        with pa.ipc.new_file(f"{folder}/{name}", made.schema) as file:
            file.write_table(made)
    return []


# ---------------------------------------------------------------------- rows


class Stream:
    """Batches of rows, a minute each, made from their number."""

    def __init__(self, keys: int, rows_per_key: int, of: int | None = None, spread: bool = False) -> None:
        self.keys, self.rows_per_key, self.of = keys, rows_per_key, of or keys
        self.spread = spread  # whether the rows of a key differ in their times
        self.names = np.array([f"user-{number}" for number in range(self.of)], object)
        self.pages = np.array([f"page-{number}" for number in range(6)], object)

    def table(self, batch: int) -> pa.Table:
        rng = np.random.default_rng(batch)
        chosen = rng.choice(self.of, self.keys, replace=False) if self.of > self.keys else np.arange(self.of)
        key = np.repeat(chosen, self.rows_per_key)
        # rows of a key differ in nothing that the order of calls could show
        at = batch * MINUTE + np.repeat(rng.integers(0, 60_000, len(chosen)) * 1000, self.rows_per_key)
        if self.spread:
            at += np.tile(np.arange(self.rows_per_key), len(chosen))
        order = rng.permutation(len(key))
        columns = {
            "user": pa.array(self.names[key[order]], pa.string()),
            "page": pa.array(self.pages[((key + batch) % 6)[order]], pa.string()),
            "n": pa.array(((key * 7 + batch * 13) % 101)[order]),
            "at": pa.array(at[order]).cast(pa.timestamp("us", "UTC")),
        }
        return pa.table(columns)


# ---------------------------------------------------------------------- measuring


def run(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    if args.quick:
        args.keys, args.batches, args.spark_keys, args.spark_batches = 2_000, min(args.batches, 20), 300, 2
    out = []
    for state in args.state or KINDS:
        out.append(measure(state, args, console))
    for row in out:
        row.update(spark=None, bytewax=None)
    if args.spark:
        from weir_evaluation.bench.process_spark import beside_spark

        for row, found in zip(out, beside_spark([r["state"] for r in out], args, console), strict=True):
            row["spark"] = found
    for row in out:
        if args.bytewax:
            row["bytewax"], row["no_bytewax"] = in_bytewax(row["state"], args, console)
        else:
            row["no_bytewax"] = "not asked for: --bytewax"
        if not args.spark:
            row["no_spark"] = "not asked for: --spark"
    return out


def in_bytewax(state: str, args: argparse.Namespace, console: Console) -> tuple[float | None, str | None]:
    """Return µs of CPU per row in Bytewax, or why there are none."""
    system = all_systems()["bytewax"]
    if state not in ("value", "dict", "list", "map"):
        return None, "it has no such state for a function of one's own"
    try:
        python = system.python(console)
    except Unavailable as error:
        return None, str(error)
    stream, loop = Stream(args.keys, args.rows_per_key, args.of), plain(state)
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{batch}.parquet" for batch in range(12)]
        emitted = []
        for batch, file in enumerate(files):
            pq.write_table(stream.table(batch), file)
            emitted += loop.feed(stream.table(batch))
        command = [str(python), str(system.runner.with_name("bytewax_process.py")), state, *files]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if (told["rows"], told["sum"]) != (len(emitted), sum(n for _, n in emitted)):
        raise AssertionError(f"{state}: Bytewax's results differ from those of plain Python")
    return round(told["micros"], 3), None


def measure(state: str, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run one kind of state beside the plain loop; the vectorised one beside Aggregate, too."""
    of = args.of or (2 * args.keys if state == "timers" else None)
    stream = Stream(args.keys, args.rows_per_key, of, spread=state == "ordered")
    source = weir.source(SCHEMA, "rows")
    apps = {"weir": application(state, source)}
    if state == "vector":
        totals = weir.Aggregate(n="sum(n)", emit="updates")
        apps["aggregate"] = source.keyed("user", totals, name="p")
    warm_up = weir.testing.start(application(state, source), servers=1)
    warm_up.feed(stream.table(0))
    warm_up.stop()
    loop = plain(state)
    queries = {name: weir.testing.start(app, servers=1) for name, app in apps.items()}
    folder = tempfile.TemporaryDirectory()
    spent: dict[str, list[float]] = {name: [] for name in ("plain", *queries)}
    if state == "vector":
        spent["bare"] = []
    told: dict[str, Counter[Any]] = {name: Counter() for name in spent}
    gc.collect()
    gc.freeze()  # what was imported is nobody's garbage
    try:
        for batch in range(args.batches):
            table = stream.table(batch)
            for name in sorted(spent, reverse=batch % 2 == 0):
                began = time.process_time()
                if name == "plain":
                    rows = loop.feed(table)
                elif name == "bare":
                    rows = bare(table, folder.name)
                else:
                    queries[name].feed(table)
                spent[name].append((time.process_time() - began) / len(table) * 1e6)
                if name in queries:
                    made = queries[name].output("p", batch)
                    rows = list(zip(made["user"].to_pylist(), made["n"].to_pylist(), strict=True))
                    queries[name]._outputs.clear()
                    queries[name].deliveries.clear()
                told[name].update(
                    rows if batch < COMPARED or batch % 50 == 0 else [(len(rows), sum(n for _, n in rows))]
                )
            if batch + 1 in MARKS:
                console.print(
                    f"{state:7} batch {batch + 1:5}: "
                    + ", ".join(f"{n} {s[-1]:.2f} µs" for n, s in spent.items())
                )
    finally:
        gc.unfreeze()
        for query in queries.values():
            query.stop()
        folder.cleanup()
    if any(told[name] != told["plain"] for name in queries):
        raise AssertionError(f"{state}: the results differ from those of plain Python")
    marks = [mark for mark in MARKS if mark <= args.batches]
    loop_cost = statistics.median(spent["plain"][1:])
    typical = statistics.median(spent["weir"][1:])
    result = {
        "state": state,
        "keys": args.keys,
        "rows_per_key": args.rows_per_key,
        "marks": marks,
        "batch": [round(_around(spent["weir"], mark), 3) for mark in marks],
        "plain_batch": [round(_around(spent["plain"], mark), 3) for mark in marks],
        "plain_python": round(loop_cost, 3),
        "typical": round(typical, 3),
        "times_plain": round(typical / loop_cost, 2),
        "slow_batch": round(float(np.quantile(spent["weir"][1:], 0.99)) / typical, 2),
        "slowest_batch": round(max(spent["weir"][1:]) / typical, 2),
    }
    if state == "vector":
        for name in ("aggregate", "bare"):
            result[name] = round(statistics.median(spent[name][1:]), 3)
    return result


def _around(spent: list[float], mark: int) -> float:
    """Return the cost of a batch: of eight up to it, since one in eight merges segments."""
    return spent[0] if mark == 1 else statistics.mean(spent[max(1, mark - 8) : mark])


def show(result: list[dict[str, Any]], console: Console) -> None:
    table = RichTable(title="µs of CPU per row")
    for title in (
        "state",
        *(f"batch {mark}" for mark in result[0]["marks"]),
        "plain Python",
        "×",
        "one in 100",
        "slowest batch",
    ):
        table.add_column(title, justify="right")
    for row in result:
        cells = [f"{value:.2f}" for value in (*row["batch"], row["plain_python"], row["times_plain"])]
        slow = (f"{row[which]:.1f} ×" for which in ("slow_batch", "slowest_batch"))
        table.add_row(row["state"], *cells, *slow)
    console.print(table)
    for row in result:
        for system in ("spark", "bytewax"):
            if row[system] is not None:
                console.print(f"{row['state']}: {system} {row[system]}")
