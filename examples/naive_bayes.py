"""A naive Bayes classifier that learns from a stream: how often each word stands in spam, and how often it does not.

    python examples/naive_bayes.py
    python examples/naive_bayes.py --hash      # every word on one server, to compare

Few words make up most of all text, so a server per word leaves most servers idle. Counts of a word may be kept on
several servers and added up: with `weir.Consistent` all get as many rows as they can work on. The counts are the whole
model; at the end they judge messages that were not learnt from.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import weir
import weir.testing

WORDS, LENGTH = 5_000, 25  # words there are, words of a message
COMMON = 50  # words that say nothing about a message, and are half of all text


def messages(rng: np.random.Generator, rows: int) -> pa.Table:
    """Return messages, a third of them spam: both kinds have words that they use more often."""
    spam = rng.random(rows) < 1 / 3
    word = COMMON + rng.zipf(1.2, (rows, LENGTH)) % (WORDS - COMMON)
    lean = rng.random((rows, LENGTH)) < 0.6  # words of even numbers are rather spam's
    word = np.where(lean, word - word % 2 + ~spam[:, None], word)
    word = np.where(rng.random((rows, LENGTH)) < 0.5, rng.zipf(1.5, (rows, LENGTH)) % COMMON, word)
    return pa.table({"text": [" ".join(f"w{w}" for w in words) for words in word], "spam": spam})


def split(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a row for each word of each message."""
    words = pc.split_pattern(batch.column("text"), " ")
    spam = batch.column("spam").take(pc.list_parent_indices(words))
    return pa.record_batch({"word": pc.list_flatten(words), "spam": spam.cast(pa.int64())})


def application(labelled, routing: weir.routing.Grouping) -> weir.Stream:
    """Count the words of each kind of message."""
    words = weir.source(labelled).map_batches(split, "word string, spam long", name="split")
    return words.aggregate("word", all="count", spam="sum(spam)", routing=routing, name="words")


def judge(model: pa.Table, spam_share: float, table: pa.Table) -> np.ndarray:
    """Return which messages are spam by Bayes' rule, with words independent of each other (add-one smoothing)."""
    known = {word: number for number, word in enumerate(model["word"].to_pylist())}
    spam = model["spam"].to_numpy()
    ham = model["all"].to_numpy() - spam
    ratio = np.log((spam + 1) / (spam.sum() + WORDS)) - np.log((ham + 1) / (ham.sum() + WORDS))
    ratio = np.append(ratio, 0.0)  # a word that was never seen says nothing
    score = [sum(ratio[known.get(w, -1)] for w in text.split(" ")) for text in table["text"].to_pylist()]
    return np.array(score) + np.log(spam_share / (1 - spam_share)) > 0


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=5_000, help="messages per batch")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--hash", action="store_true", help="keep each word on one server")
    parser.add_argument(
        "--keep", type=Path, help="folder for data and checkpoint; a temporary one by default"
    )
    args = parser.parse_args(argv)
    work, rng = args.keep or Path(tempfile.mkdtemp(prefix="naive-bayes-")), np.random.default_rng(1)
    (work / "messages").mkdir(parents=True, exist_ok=True)
    tables = [messages(rng, args.rows) for _ in range(args.batches)]
    for number, table in enumerate(tables):
        pq.write_table(table, work / "messages" / f"{number:05d}.parquet")

    spark = weir.testing.local_spark()
    stream = spark.readStream.schema("text string, spam boolean").option("maxFilesPerTrigger", 1)
    routing = weir.Hash() if args.hash else weir.Consistent()
    query = application(stream.parquet(str(work / "messages")), routing).start(
        str(work / "checkpoint"), servers=args.servers, trigger={"availableNow": True}
    )
    query.await_termination()
    model = query.state("words").toArrow()
    learnt = pa.concat_tables(tables)
    share = pc.mean(learnt["spam"]).as_py()
    by_server = query.progress.operators["words"].rows_by_server

    unseen = messages(rng, 2_000)
    right = float((judge(model, share, unseen) == unseen["spam"].to_numpy()).mean())
    busiest = max(by_server) / (sum(by_server) / len(by_server))
    counted = pc.sum(model["all"]).as_py()
    print(f"{counted:,} words counted of {LENGTH * learnt.num_rows:,}, {model.num_rows:,} different ones")
    print(f"{right:.0%} of {unseen.num_rows:,} new messages judged right; a third of them are spam")
    print(f"busiest server: {busiest:.2f} × the average's rows ({routing.name})")
    return {"counted": counted, "right": right, "busiest": busiest, "model": model, "learnt": learnt}


if __name__ == "__main__":
    main()
