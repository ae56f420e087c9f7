"""An application with a sink of each kind, to be killed: run as a script by the tests.

python sink_app.py CHECKPOINT FOLDER POSTGRES
"""

from __future__ import annotations

import sys
from typing import Any

import weir
import weir.testing
from weir.sinks import Delta, Parquet, Postgres

BATCHES = [[{"place": f"p{(7 * i + b) % 9}", "n": i} for i in range(30)] for b in range(4)]


def app() -> weir.Stream:
    return weir.source("place string, n long").keyed(
        "place", weir.Aggregate(rows="count", total="sum(n)"), name="places"
    )


def truth() -> tuple[list[tuple[str, int, int]], dict[str, tuple[int, int]]]:
    """Return all updates that sinks should have, and the last one of each place, in plain Python."""
    so_far: dict[str, tuple[int, int]] = {}
    updates = []
    for batch in BATCHES:
        for row in batch:
            rows, total = so_far.get(row["place"], (0, 0))
            so_far[row["place"]] = rows + 1, total + row["n"]
        updates += [(place, *so_far[place]) for place in {row["place"] for row in batch}]
    return sorted(updates), so_far


def main(checkpoint: str, folder: str, postgres: str) -> None:
    sinks = [
        Parquet(f"{folder}/parquet"),
        Delta(f"{folder}/delta"),
        Postgres(postgres, "killed_rows"),
        Postgres(postgres, "killed_places", keys=["place"]),
    ]
    resume(checkpoint, sinks)


def resume(checkpoint: str, sinks: list[Any]) -> None:
    """Go on from a checkpoint to the last batch."""
    query = weir.testing.start(app(), checkpoint, servers=2, sink=sinks)
    last = query._driver.ledger.last
    if last is not None:  # as Spark does, hand the last batch over again: its delivery may be owed
        query.feed(BATCHES[last.batch], number=last.batch)
    for batch in BATCHES[0 if last is None else last.batch + 1 :]:
        query.feed(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
