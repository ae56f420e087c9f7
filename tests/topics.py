"""Topics for tests: brokers to talk to, messages to put there, and a cluster in memory that knows transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from weir.messages.topics import Range, Topics
from weir_evaluation.brokers import Brokers as MockBrokers
from weir_evaluation.transactions import MemoryCluster


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


class Cluster(MemoryCluster):
    """Topics in memory that take the place of all brokers in a test."""

    def install(self, monkeypatch: Any) -> None:
        """Let this cluster take the place of all brokers."""
        for owner, name, value in self.replacements():
            monkeypatch.setattr(owner, name, value)

    def rows(self, topic: str) -> list[Any]:
        """Return the rows that a reader of committed messages sees."""
        return [msgspec.json.decode(value or b"") for value in self.values(topic)]
