"""Topics for tests: brokers of their own, and a cluster in memory that knows transactions."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from weir.messages.topics import Range, Topics
from weir_evaluation.brokers import Kafka
from weir_evaluation.jars import NoJars
from weir_evaluation.transactions import MemoryCluster


def own_kafka(*about: Any, **more: Any) -> Kafka:
    """Return brokers of Apache Kafka that a test may kill; without the jars it is skipped."""
    try:
        return Kafka(*about, **more)
    except NoJars as error:
        pytest.skip(str(error))


class InKafka:
    """Topics for results at Apache Kafka."""

    def __init__(self, brokers: Any, monkeypatch: Any) -> None:
        self._brokers, self.servers = brokers, brokers.servers
        self.lost_answers = 0  # so many commits happen without their producer hearing of it
        monkeypatch.setattr("confluent_kafka.Producer", self._producer)

    def _producer(self, config: dict[str, Any]) -> Any:
        outer = self

        class Deaf(Producer):
            def commit_transaction(self, timeout: float) -> None:
                super().commit_transaction(timeout)
                if outer.lost_answers:
                    outer.lost_answers -= 1
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        return Deaf(config)

    def topic(self) -> str:
        return str(self._brokers.topic(1))

    def rows(self, topic: str) -> list[Any]:
        """Return the rows that a reader of committed messages sees."""
        return list(self._brokers.read(topic))

    def written(self, topic: str) -> int:
        """Return how many messages were written, whatever became of them."""
        topics = Topics(self.servers, (topic,), committed=False)
        ranges = [Range(p, *ends) for p, ends in topics.offsets(topics.partitions()).items()]
        return sum(map(len, topics.read(ranges)))


class InMemory(MemoryCluster):
    """Topics for results in memory, which take the place of all brokers in a test."""

    _names = itertools.count()

    def __init__(self, monkeypatch: Any) -> None:
        super().__init__()
        self.servers = "nowhere:1"
        for owner, name, value in self.replacements():
            monkeypatch.setattr(owner, name, value)

    def topic(self) -> str:
        return f"out-{next(self._names)}"

    def rows(self, topic: str) -> list[Any]:
        """Return the rows that a reader of committed messages sees."""
        return [msgspec.json.decode(value or b"") for value in self.values(topic)]

    def written(self, topic: str) -> int:
        """Return how many messages were written, whatever became of them."""
        return len(self.log[f"{topic}/0"])
