"""Features per user for a model: spending and visits that fade, half of them every six hours.

    python examples/decayed.py

A payment counts in full when it is made, half of it six hours later, a quarter after twelve. What is kept of a user is
the faded sum and the time that it is of, so a batch costs the same however long ago the first payment was. The function
works on whole columns, all users of a batch at once: no Python per user or per row.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
import weir.testing

HALF_LIFE = np.timedelta64(6, "h") / np.timedelta64(1, "us")
START = np.datetime64("2024-05-01T00:00:00", "us")


def faded(time, until):
    """Return what is left, at a time, of what was 1 at another."""
    return np.exp2((time - until) / np.timedelta64(1, "us") / HALF_LIFE)


def features(batch):
    """Take all users of a batch: rows sorted by user, and what is known of each user so far."""
    first = batch.offsets[:-1]  # where the rows of each user begin
    time, amount = batch.values("time"), batch.values("amount")
    before = batch.state("time", START)
    now = np.maximum(before, np.maximum.reduceat(time, first))
    weight = faded(time, now[batch.numbers])
    left = faded(before, now)
    spent = batch.state("spent", 0.0) * left + np.add.reduceat(amount * weight, first)
    visits = batch.state("visits", 0.0) * left + np.add.reduceat(weight, first)
    return {"time": now, "spent": spent, "visits": visits}, {"time": now, "spent": spent, "visits": visits}


def merge(one, other):
    """Put together what two servers know of the same users, so that heavy users may be split."""
    a, b = ({n: s.column(n).to_numpy() for n in ("time", "spent", "visits")} for s in (one, other))
    now = np.maximum(a["time"], b["time"])
    x, y = faded(a["time"], now), faded(b["time"], now)
    return {"time": now, **{n: a[n] * x + b[n] * y for n in ("spent", "visits")}}


def application(payments) -> weir.Stream:
    """Users, with features as of their last payment, whenever they pay."""
    columns = {"time": "timestamp", "spent": "double", "visits": "double"}
    output = {"user": "string", **columns}
    return weir.source(payments).process_batch(
        "user", features, state=columns, output=output, merge=merge, name="features"
    )


def payments(rng, batch: int, rows: int, users: int) -> pa.Table:
    """An hour of payments; few users make most of them."""
    user = rng.zipf(1.3, rows) % users
    time = START + np.timedelta64(batch, "h") + rng.integers(0, 3_600_000_000, rows).astype("timedelta64[us]")
    return pa.table(
        {
            "user": pa.array([f"user {u}" for u in user]),
            "amount": rng.gamma(2.0, 15.0, rows).round(2),
            "time": pa.array(time).cast(pa.timestamp("us", "UTC")),
        }
    )


def truth(tables: list[pa.Table]) -> dict[str, float]:
    """What each user has spent, faded, from all payments at once."""
    whole = pa.concat_tables(tables)
    time = whole["time"].to_numpy()
    newest: dict[str, np.datetime64] = {}
    users = whole["user"].to_pylist()
    for user, at in zip(users, time, strict=True):
        newest[user] = max(at, newest.get(user, at))
    spent: dict[str, float] = {}
    for user, at, amount in zip(users, time, whole["amount"].to_pylist(), strict=True):
        spent[user] = spent.get(user, 0.0) + amount * float(faded(at, newest[user]))
    return spent


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=int, default=6, help="batches")
    parser.add_argument("--rows", type=int, default=20_000, help="payments per hour")
    parser.add_argument("--users", type=int, default=5_000)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, help="folder for data and checkpoint; a temporary one by default"
    )
    args = parser.parse_args(argv)
    work, rng = args.keep or Path(tempfile.mkdtemp(prefix="decayed-")), np.random.default_rng(1)
    (work / "payments").mkdir(parents=True, exist_ok=True)
    tables = [payments(rng, hour, args.rows, args.users) for hour in range(args.hours)]
    for hour, table in enumerate(tables):
        pq.write_table(table, work / "payments" / f"{hour:05d}.parquet")

    spark = weir.testing.local_spark()
    schema = "user string, amount double, time timestamp"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(work / "payments"))
    query = application(stream).start(
        str(work / "checkpoint"),
        servers=args.servers,
        routing=weir.PartialKey(),
        trigger={"availableNow": True},
    )
    query.await_termination()
    found = {row["user"]: row["spent"] for row in query.state("features").collect()}
    expected = truth(tables)
    wrong = max(abs(found.get(user, 0.0) - spent) for user, spent in expected.items())
    top = sorted(found, key=found.get, reverse=True)[:3]
    spent = query.progress.operators["features"].spent
    print(f"{len(found):,} users; spent most lately: {', '.join(f'{u} ({found[u]:.0f})' for u in top)}")
    print(f"largest difference from a sum over all payments: {wrong:.1e}")
    print("µs per row: " + ", ".join(f"{what} {1e6 * seconds:.2f}" for what, seconds in spent.items()))
    return {"users": len(found), "expected": len(expected), "wrong": wrong}


if __name__ == "__main__":
    main()
