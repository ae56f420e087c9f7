"""Topics in memory with Kafka's rules for transactions, which librdkafka's mock brokers don't keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from weir.errors import SourceError
from weir.messages.topics import Range, Topics


class Message:
    """A message of :class:`MemoryCluster`."""

    def __init__(self, value: bytes | None, key: bytes | None) -> None:
        self._value, self._key = value, key
        self.state = "open"  # then "committed" or "aborted"

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class MemoryCluster:
    """Brokers in memory, where ``servers`` is said to be; None: everywhere.

    A transaction's messages count when it is committed; a producer that calls ``init_transactions`` aborts what an
    earlier one of its id left open, and fences it. A reader of committed messages sees nothing behind an open one.
    """

    def __init__(self, servers: str | None = None) -> None:
        self.servers = servers
        self.log: dict[str, list[Message]] = {}  # partition → messages
        self.owners: dict[str, Producer] = {}
        self.lost_answers = 0  # so many commits happen without their producer hearing of it

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield what must be replaced for clients to come here: an object, its attribute, and the new value."""

        def instead(owner: Any, name: str, servers_of: Any, ours: Any) -> tuple[Any, str, Any]:
            real = getattr(owner, name)

            def chosen(first: Any, *others: Any, **more: Any) -> Any:
                here = self.servers is None or servers_of(first) == self.servers
                return (ours if here else real)(first, *others, **more)

            return owner, name, chosen

        def at(topics: Topics) -> str:
            return topics.servers

        made = instead(
            confluent_kafka, "Producer", lambda c: c["bootstrap.servers"], lambda c: Producer(self, c)
        )
        yield made
        yield instead(Topics, "exists", at, lambda topics, name: True)
        yield instead(
            Topics, "offsets", at, lambda topics, partitions: {p: self.reach(p) for p in partitions}
        )
        yield instead(Topics, "read", at, lambda topics, ranges, expired="fail": self.read(topics, ranges))

    def reach(self, partition: str) -> tuple[int, int]:
        """Return the first offset of a partition, and the one behind its last message."""
        return 0, len(self.log.get(partition, []))

    def read(self, topics: Topics, ranges: Iterable[Range]) -> Iterator[list[Message]]:
        """Yield the messages of some ranges."""
        for partition, start, end in ranges:
            messages = self.log.get(partition, [])[start:end]
            if topics.committed and any(m.state == "open" for m in messages):
                raise SourceError("an open transaction stands before the end")
            yield [m for m in messages if m.state == "committed" or not topics.committed]

    def values(self, topic: str) -> list[bytes | None]:
        """Return the messages that a reader of committed ones sees."""
        return [m.value() for m in self.log.get(f"{topic}/0", []) if m.state == "committed"]


class Producer:
    """A producer of :class:`MemoryCluster`, as far as transactions need it."""

    def __init__(self, cluster: MemoryCluster, config: dict[str, Any]) -> None:
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
        message = Message(value, key)
        self.open.append(message)
        self.cluster.log.setdefault(f"{topic}/{max(partition, 0)}", []).append(message)

    def flush(self, timeout: float) -> int:
        return 0

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
