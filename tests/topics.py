"""Topics for tests: brokers to talk to, messages to put there, and a cluster in memory that knows transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException

from weir.errors import SourceError
from weir.messages.topics import Range, Topics
from weir_evaluation.brokers import Brokers as MockBrokers


class Brokers(MockBrokers):
    """Mock brokers that rows can be written to and read from."""

    def send(self, topic: str, rows: Iterable[Any], partition: int = 0, key: bytes | None = None) -> None:
        """Write rows as JSON, or bytes as they are."""
        plain = (r if r is None or isinstance(r, bytes) else msgspec.json.encode(r) for r in rows)
        super().send(topic, plain, partition, key)

    def read(self, topic: str) -> list[Any]:
        """Return the rows of a topic."""
        topics = Topics(self.servers, (topic,))
        ranges = [Range(p, *ends) for p, ends in topics.offsets(topics.partitions()).items()]
        return [msgspec.json.decode(m.value()) for chunk in topics.read(ranges) for m in chunk]


class Message:
    """A message of :class:`Cluster`."""

    def __init__(self, topic: str, value: bytes | None, key: bytes | None, partition: int) -> None:
        self._about, self._value, self._key = (topic, max(partition, 0)), value, key
        self.state = "open"  # then "committed" or "aborted"

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class Cluster:
    """Topics in memory with Kafka's rules for transactions, which librdkafka's mock brokers don't keep.

    A transaction's messages count when it is committed; a producer that calls ``init_transactions`` aborts what an
    earlier one of its id left open, and fences it. A reader of committed messages sees nothing behind an open one.
    """

    def __init__(self) -> None:
        self.log: dict[str, list[Message]] = {}  # partition → messages
        self.owners: dict[str, FakeProducer] = {}
        self.lost_answers = 0  # so many commits happen without their producer hearing of it

    def install(self, monkeypatch: Any) -> None:
        """Let this cluster take the place of all brokers."""
        monkeypatch.setattr("confluent_kafka.Producer", lambda config: FakeProducer(self, config))
        monkeypatch.setattr(Topics, "partitions", lambda topics: [f"{n}/0" for n in topics.names])
        monkeypatch.setattr(
            Topics, "offsets", lambda topics, partitions: {p: self.reach(p) for p in partitions}
        )
        monkeypatch.setattr(Topics, "read", lambda topics, ranges, expired: self.read(topics, ranges))

    def reach(self, partition: str) -> tuple[int, int]:
        return 0, len(self.log.get(partition, []))

    def read(self, topics: Topics, ranges: Iterable[Range]) -> Iterable[list[Message]]:
        for partition, start, end in ranges:
            messages = self.log.get(partition, [])[start:end]
            if topics.committed and any(m.state == "open" for m in messages):
                raise SourceError("an open transaction stands before the end")
            yield [m for m in messages if m.state == "committed" or not topics.committed]

    def rows(self, topic: str) -> list[Any]:
        """Return the rows that a reader of committed messages sees."""
        messages = self.log.get(f"{topic}/0", [])
        return [msgspec.json.decode(m.value() or b"") for m in messages if m.state == "committed"]


class FakeProducer:
    def __init__(self, cluster: Cluster, config: dict[str, Any]) -> None:
        self.cluster, self.id = cluster, config["transactional.id"]
        self.open: list[Message] = []

    def init_transactions(self, timeout: float) -> None:
        before = self.cluster.owners.get(self.id)
        if before is not None:
            before._end("aborted")
        self.cluster.owners[self.id] = self

    def begin_transaction(self) -> None:
        self._check()

    def produce(self, topic: str, value: bytes, key: bytes | None = None, partition: int = -1) -> None:
        self._check()
        message = Message(topic, value, key, partition)
        self.open.append(message)
        self.cluster.log.setdefault(f"{topic}/{max(partition, 0)}", []).append(message)

    def commit_transaction(self, timeout: float) -> None:
        self._check()
        self._end("committed")
        if self.cluster.lost_answers:
            self.cluster.lost_answers -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _end(self, how: str) -> None:
        for message in self.open:
            message.state = how
        self.open = []

    def _check(self) -> None:
        if self.cluster.owners.get(self.id) is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED))
