"""A producer at a steady rate, and a reader of committed results, each in a process of its own; and what they tell.

``python -m weir_evaluation.bench.kafka_feed ORDER`` where ``ORDER`` is JSON: see :func:`produce` and :func:`consume`.
Both write down when each message was sent, and when it came, in µs since 1970.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from numpy.typing import NDArray

TICK = 0.005  # seconds between two handfuls of messages


def produce(order: dict[str, Any]) -> None:
    """Send ``rows`` messages of random keys to ``topic``, ``rate`` of them a second (0: as fast as possible)."""
    rng = np.random.default_rng(order["seed"])
    keys = rng.integers(0, order["keys"], order["rows"])
    sent = np.zeros(order["rows"], np.int64)
    producer = Producer(
        {"bootstrap.servers": order["servers"], "linger.ms": 1, "queue.buffering.max.messages": 2_000_000}
    )
    began, done, rate = time.perf_counter(), 0, order["rate"]
    texts = keys.tolist()
    while done < order["rows"]:
        due = order["rows"] if not rate else min(order["rows"], int((time.perf_counter() - began) * rate) + 1)
        now = time.time_ns() // 1000
        for number in range(done, due):
            value = b'{"k":"%d","n":1,"sent":%d}' % (texts[number], now)
            producer.produce(order["topic"], value, partition=number % order["partitions"])
            if not number % 10_000:
                producer.poll(0)
        sent[done:due] = now
        done = due
        producer.poll(0)
        if rate:
            time.sleep(TICK)
    if producer.flush(60):
        raise RuntimeError("the brokers do not take messages")
    np.savez(order["out"], key=keys, sent=sent)


def consume(order: dict[str, Any]) -> None:
    """Read the committed messages of ``topic`` until standard input ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": order["servers"],
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(order["topic"], n, 0) for n in range(order["partitions"])])
    values: list[bytes] = []
    came: list[NDArray[np.int64]] = []
    stop = Path(order["stop"])
    while not stop.exists():
        new = [m.value() for m in consumer.consume(5000, 0.01) if m.error() is None]
        if new:
            values += new
            came.append(np.full(len(new), time.time_ns() // 1000))
    consumer.close()
    rows = [json.loads(value) for value in values]
    np.savez(
        order["out"],
        key=np.array([int(row["k"]) for row in rows], np.int64),
        total=np.array([row["total"] for row in rows], np.int64),
        sent=np.array([row["sent"] for row in rows], np.int64),
        came=np.concatenate(came) if came else np.zeros(0, np.int64),
    )


class Feed:
    """Sends rows to one topic and reads the results in another, for one query."""

    def __init__(
        self, servers: str, source: str, target: str, partitions: int, keys: int, work: Path
    ) -> None:
        self._common = {"servers": servers, "partitions": partitions, "keys": keys}
        self.source, self.target, self._work = source, target, work
        self._sent: list[dict[str, NDArray[np.int64]]] = []
        self._stop, self._came = work / "stop", work / "came.npz"
        self._reader = self._start(
            "consume", {"topic": target, "stop": str(self._stop), "out": str(self._came)}
        )

    def send(self, rows: int, rate: int) -> tuple[int, int]:
        """Send rows at a rate; return from when until when."""
        number = len(self._sent)
        out = self._work / f"sent-{number}.npz"
        order = {"topic": self.source, "rows": rows, "rate": rate, "seed": number, "out": str(out)}
        if self._start("produce", order).wait():
            raise RuntimeError("the producer failed")
        self._sent.append(dict(np.load(out)))
        return int(self._sent[-1]["sent"][0]), int(self._sent[-1]["sent"][-1])

    def close(self) -> Told:
        """Stop reading, and return what was sent and what came of it."""
        self._stop.touch()
        if self._reader.wait(60):
            raise RuntimeError("the reader failed")
        sent = {name: np.concatenate([one[name] for one in self._sent]) for name in ("key", "sent")}
        return Told(sent, dict(np.load(self._came)))

    def _start(self, what: str, order: dict[str, Any]) -> subprocess.Popen[bytes]:
        order = {**self._common, **order, "what": what}
        return subprocess.Popen([sys.executable, "-m", __spec__.name, json.dumps(order)])


class Told:
    """What was sent and what came: totals per key, with the newest row that each includes."""

    def __init__(self, sent: dict[str, NDArray[np.int64]], came: dict[str, NDArray[np.int64]]) -> None:
        self._sent, self._came = sent, came

    def processed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return arrivals, and how many rows had been processed by then."""
        order = np.lexsort((np.arange(len(self._came["key"])), self._came["key"]))
        key, total = self._came["key"][order], self._came["total"][order]
        before = np.where(np.r_[True, key[1:] != key[:-1]], 0, np.r_[0, total[:-1]])
        new = np.empty_like(total)
        new[order] = np.maximum(total - before, 0)
        return self._came["came"], np.cumsum(new)

    def ages(self, since: int, until: int) -> NDArray[np.float64]:
        """Return for each row sent in some time how long it took until a result that includes it could be read.

        >>> sent = {"key": np.array([7, 8, 7]), "sent": np.array([10, 20, 30])}
        >>> came = {"key": np.array([8, 7, 7]), "sent": np.array([20, 10, 30]), "came": np.array([60, 70, 90])}
        >>> (1e6 * Told(sent, came).ages(0, 100)).tolist()
        [60.0, 40.0, 60.0]
        """
        long = int(max(self._sent["sent"].max(), self._came["sent"].max(initial=0))) + 1
        base = int(self._sent["sent"].min())
        span = long - base
        results = self._came["key"] * span + self._came["sent"] - base
        order = np.argsort(results, kind="stable")
        among = (self._sent["sent"] >= since) & (self._sent["sent"] <= until)
        key, sent = self._sent["key"][among], self._sent["sent"][among]
        place = np.searchsorted(results[order], key * span + sent - base)
        found = order[np.minimum(place, len(order) - 1)]
        if (place == len(order)).any() or (self._came["key"][found] != key).any():
            raise RuntimeError("rows were lost: no result includes them")
        return np.asarray((self._came["came"][found] - sent) / 1e6, np.float64)

    def wrong(self) -> int:
        """Return how many keys have another last total than what was sent."""
        keys = int(max(self._sent["key"].max(), self._came["key"].max(initial=0))) + 1
        truth, found = np.bincount(self._sent["key"], minlength=keys), np.zeros(keys, np.int64)
        found[self._came["key"]] = self._came["total"]  # the last one of each counts
        return int((truth != found).sum())


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    with contextlib.suppress(KeyboardInterrupt):
        {"produce": produce, "consume": consume}[asked.pop("what")](asked)
