"""A model in the stream: what is unusual about a card's payments, scored for all cards of a batch in one call.

    pip install scikit-learn
    python examples/scored.py

Three columns are kept of a card: how many payments, their mean, and the spread around it (Welford's sums). From these
and the new payments come features, and an isolation forest, trained before the stream begins, scores them. Calling a
model costs much per call and little per row, so it is called once per batch, not once per card.
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

STATE = {"payments": "long", "mean": "double", "spread": "double"}
KNOWN = 5  # payments before a card is judged


def features(payments, mean, spread, amount):
    """What the model sees of a payment: how far from usual it is, and how much it is."""
    deviation = np.sqrt(spread / np.maximum(payments - 1, 1)) + 1.0
    return np.column_stack([(amount - mean) / deviation, np.log1p(amount)])


def train(seed: int = 1):
    """A forest that has seen ordinary payments."""
    from sklearn.ensemble import IsolationForest

    rng = np.random.default_rng(seed)
    mean = rng.uniform(10, 100, 4_000)
    amount = mean + rng.normal(0, 0.2 * mean)
    spread = (0.2 * mean) ** 2 * 19
    return IsolationForest(n_estimators=100, random_state=seed, contamination=0.005).fit(
        features(20, mean, spread, amount)
    )


def scoring(model):
    """Return the function for the stream; the model travels with it."""

    def score(batch):
        first, numbers, amount = batch.offsets[:-1], batch.numbers, batch.values("amount")
        payments, mean, spread = (batch.state(name, 0) for name in STATE)
        known = payments[numbers] >= KNOWN
        scores = np.zeros(len(amount))
        if known.any():
            seen = features(payments[numbers], mean[numbers], spread[numbers], amount)
            scores[known] = model.decision_function(seen[known])
        odd = np.flatnonzero(scores < 0)
        rows = {"payment": batch.rows.column("payment").take(pa.array(odd)), "score": scores[odd]}
        # Chan's formula: what was known and what is new, put together
        more = np.diff(batch.offsets)
        sums = np.add.reduceat(amount, first)
        new_mean = sums / more
        new_spread = np.add.reduceat((amount - new_mean[numbers]) ** 2, first)
        total = payments + more
        apart = new_mean - mean
        states = {
            "payments": total,
            "mean": mean + apart * more / total,
            "spread": spread + new_spread + apart**2 * payments * more / total,
        }
        return states, rows, numbers[odd]

    return score


def application(payments, model) -> weir.Stream:
    """Payments that are unusual for their card."""
    output = {"card": "string", "payment": "long", "score": "double"}
    return weir.source(payments).process_batch(
        "card", scoring(model), state=STATE, output=output, name="cards"
    )


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rows", type=int, default=10_000, help="payments per batch")
    parser.add_argument("--cards", type=int, default=2_000)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, help="folder for data and checkpoint; a temporary one by default"
    )
    args = parser.parse_args(argv)
    work, rng = args.keep or Path(tempfile.mkdtemp(prefix="scored-")), np.random.default_rng(2)
    (work / "payments").mkdir(parents=True, exist_ok=True)
    usual = rng.uniform(10, 100, args.cards)
    stolen: set[int] = set()
    for batch in range(args.batches):
        card = rng.integers(0, args.cards, args.rows)
        amount = usual[card] + rng.normal(0, 0.2 * usual[card])
        number = batch * args.rows + np.arange(args.rows)
        if batch == args.batches - 1:  # some cards are stolen
            theft = rng.choice(args.rows, 20, replace=False)
            amount[theft] = 12 * usual[card[theft]]
            stolen = set(number[theft].tolist())
        names = pa.array([f"card {c}" for c in card])
        table = pa.table({"card": names, "payment": number, "amount": np.maximum(amount, 0.5)})
        pq.write_table(table, work / "payments" / f"{batch:05d}.parquet")

    spark = weir.testing.local_spark()
    schema = "card string, payment long, amount double"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(work / "payments"))
    found: dict[int, float] = {}
    query = application(stream, train()).start(
        str(work / "checkpoint"),
        servers=args.servers,
        trigger={"availableNow": True},
        sink=lambda frame, batch: found.update({r["payment"]: r["score"] for r in frame.collect()}),
    )
    query.await_termination()
    payments = query.state("cards").agg({"payments": "sum"}).first()[0]
    caught = len(stolen & found.keys())
    print(f"{payments:,} payments of {args.cards:,} cards; {len(found)} look unusual")
    print(f"{caught} of {len(stolen)} stolen payments are among them")
    return {"payments": payments, "caught": caught, "stolen": len(stolen), "unusual": len(found)}


if __name__ == "__main__":
    main()
