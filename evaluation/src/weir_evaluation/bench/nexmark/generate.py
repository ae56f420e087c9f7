"""The stream of an auction house: persons, auctions and bids, seeded and generated in whole columns.

After the Nexmark suite (P. Tucker, K. Tufte, V. Papadimos, D. Maier, "NEXMark – a benchmark for queries over data
streams", 2002) in the proportions that its implementations have agreed on: of 50 events one is a person, three are
auctions and 46 are bids; half of the bids go to a hot auction, three quarters of the sellers and bidders are hot.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

FIRST = 1_000  # the first person and the first auction
BASE = 1_700_000_000_000_000  # µs: when the first event happens
OF, AUCTIONS = 50, 3  # events of which one is a person and so many are auctions
HOT = 100  # every so many persons or auctions one is hot
RECENT_PERSONS, RECENT_AUCTIONS = 1_000, 100
STATES = np.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
CITIES = np.array(["Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne", "Bend", "Kent"])
NAMES = np.array(
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
)
CHANNELS = np.array(["Google", "Facebook", "Baidu", "Apple"])

SCHEMAS = {
    "persons": "id long, name string, city string, state string, time timestamp",
    "auctions": "id long, seller long, category long, initial long, time timestamp, expires timestamp",
    "bids": "auction long, bidder long, price long, channel string, time timestamp",
}
TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Shape:
    """How long a stream is and how fast: events in all, events per micro-batch, events per second of event time."""

    events: int
    batch: int
    rate: int = 10_000
    seed: int = 0


def events(shape: Shape, first: int, last: int) -> dict[str, pa.Table]:
    """Return the persons, auctions and bids among some events, in order of time.

    >>> made = events(Shape(1_000, 500), 0, 500)
    >>> {name: table.num_rows for name, table in made.items()}
    {'persons': 10, 'auctions': 30, 'bids': 460}
    """
    rng = np.random.default_rng([shape.seed, first])
    number = np.arange(first, last)
    kind = number % OF
    time = BASE + number * (1_000_000 // shape.rate)
    of = {"persons": kind == 0, "auctions": (kind > 0) & (kind <= AUCTIONS), "bids": kind > AUCTIONS}
    return {
        "persons": _persons(rng, number[of["persons"]], time[of["persons"]]),
        "auctions": _auctions(rng, number[of["auctions"]], time[of["auctions"]]),
        "bids": _bids(rng, number[of["bids"]], time[of["bids"]]),
    }


def write(folder: Path, shape: Shape) -> dict[str, list[int]]:
    """Write one file per stream and micro-batch; return how many rows each has.

    Two more micro-batches of a few events follow, each an hour later: they let every window before them close.
    """
    rows: dict[str, list[int]] = {name: [] for name in SCHEMAS}
    hour = 3_600 * shape.rate // OF * OF
    spans = [(n, min(shape.events, n + shape.batch)) for n in range(0, shape.events, shape.batch)]
    spans += [(shape.events // OF * OF + n * hour, shape.events // OF * OF + n * hour + OF) for n in (1, 2)]
    for batch, (first, last) in enumerate(spans):
        for name, table in events(shape, first, last).items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(table, folder / name / f"{batch:05d}.parquet")
            rows[name].append(table.num_rows)
    return rows


def ends(shape: Shape) -> datetime:
    """Return when the last event happens that is no closing one."""
    return datetime.fromtimestamp((BASE + shape.events * 1_000_000 // shape.rate) / 1e6, UTC)


def _times(micros: NDArray[np.int64]) -> pa.Array:
    return pa.array(micros).cast(TIME)


def _someone(rng: np.random.Generator, number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a person for each event: a hot one three times in four, else one of the recent ones."""
    newest = number // OF
    hot = newest // HOT * HOT
    recent = newest - rng.integers(0, np.minimum(newest + 1, RECENT_PERSONS))
    return FIRST + np.where(rng.random(len(number)) < 0.75, hot, recent)


def _persons(rng: np.random.Generator, number: NDArray[np.int64], time: NDArray[np.int64]) -> pa.Table:
    n = len(number)
    names = np.char.add(np.char.add(rng.choice(NAMES, n), " "), rng.choice(NAMES, n))
    return pa.table(
        {
            "id": pa.array(FIRST + number // OF),
            "name": pa.array(names),
            "city": pa.array(rng.choice(CITIES, n)),
            "state": pa.array(rng.choice(STATES, n)),
            "time": _times(time),
        }
    )


def _auctions(rng: np.random.Generator, number: NDArray[np.int64], time: NDArray[np.int64]) -> pa.Table:
    n = len(number)
    return pa.table(
        {
            "id": pa.array(FIRST + number // OF * AUCTIONS + number % OF - 1),
            "seller": pa.array(_someone(rng, number)),
            "category": pa.array(10 + rng.integers(0, 5, n)),
            "initial": pa.array(rng.integers(100, 10_000, n)),
            "time": _times(time),
            "expires": _times(time + rng.integers(1_000_000, 20_000_000, n)),
        }
    )


def _bids(rng: np.random.Generator, number: NDArray[np.int64], time: NDArray[np.int64]) -> pa.Table:
    n = len(number)
    newest = number // OF * AUCTIONS + AUCTIONS - 1
    recent = newest - rng.integers(0, np.minimum(newest + 1, RECENT_AUCTIONS))
    auction = np.where(rng.random(n) < 0.5, newest // HOT * HOT, recent)
    rare = pa.array(np.char.add("channel-", rng.integers(0, 1_000, n).astype(str)))
    well_known = pa.array(rng.choice(CHANNELS, n))
    return pa.table(
        {
            "auction": pa.array(FIRST + auction),
            "bidder": pa.array(_someone(rng, number)),
            "price": pa.array(np.rint(10 ** (6 * rng.random(n)) * 100).astype(np.int64)),
            "channel": pa.compute.if_else(pa.array(rng.random(n) < 0.5), well_known, rare),
            "time": _times(time),
        }
    )
