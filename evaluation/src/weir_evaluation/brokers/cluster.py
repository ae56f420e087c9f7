"""Brokers that can be reached: topics are made there, and messages written."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from weir.messages.topics import Range, Topics

LEADERS = 30.0  # seconds within which a topic must have leaders
_names = itertools.count()


class Cluster:
    """Brokers at ``servers``; topics have as many replicas as there are brokers."""

    real = True  # Apache Kafka itself, not a mock of it

    def __init__(self, servers: str, brokers: int = 1) -> None:
        self.servers, self.brokers = servers, brokers
        quiet = {"bootstrap.servers": servers, "log_level": 0}
        often = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100}
        self.admin = AdminClient(quiet | often)
        self._producer = Producer(quiet | {"queue.buffering.max.messages": 1_000_000, "linger.ms": 1})

    def topic(self, partitions: int = 2, **config: Any) -> str:
        """Make a topic of a name that no other has, and return the name."""
        name = f"topic-{os.getpid()}-{next(_names)}"
        self.create(name, partitions, **config)
        return name

    def create(self, name: str, partitions: int = 1, **config: Any) -> None:
        """Make a topic; ``config`` is Kafka's, with ``_`` for dots."""
        dotted = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, partitions, self.brokers, config=dotted)
        self.admin.create_topics([topic])[name].result(10)
        self._await(name, partitions)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([name])[name].result(10)
        with contextlib.suppress(KeyError):
            while self.admin.list_topics(name, 10).topics[name].error is None:
                time.sleep(0.05)

    def grow(self, name: str, partitions: int) -> None:
        """Let a topic have more partitions."""
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(10)
        self._await(name, partitions)
        self._producer.list_topics(name, 10)  # or it would not know them yet

    def expire(self, topic: str, before: int, partition: int = 0) -> None:
        """Let a partition forget the messages before an offset, as retention does."""
        where = TopicPartition(topic, partition, before)
        for done in self.admin.delete_records([where]).values():
            done.result(10)

    def send(
        self,
        topic: str,
        values: Iterable[Any],
        partition: int = 0,
        key: bytes | None = None,
        **more: Any,
    ) -> None:
        """Write bytes as they are and other values as JSON; wait until they are there.

        ``more`` is what the producer takes besides: ``timestamp``, ``headers``.
        """
        for value in values:
            message = value if value is None or isinstance(value, bytes) else msgspec.json.encode(value)
            self._producer.produce(topic, message, key, partition, **more)
        if self._producer.flush(60):
            raise RuntimeError("the brokers do not take messages")

    def read(self, topic: str) -> list[Any]:
        """Return the JSON of a topic's committed messages."""
        return [msgspec.json.decode(value or b"null") for value in self.values(topic)]

    def values(self, topic: str) -> list[bytes | None]:
        """Return a topic's committed messages, once no transaction is open."""
        topics = Topics(self.servers, (topic,))
        # a commit is answered before readers see it: the end is that of all messages
        everything = Topics(self.servers, (topic,), committed=False)
        ranges = [Range(p, *ends) for p, ends in everything.offsets(topics.partitions()).items()]
        return [message.value() for chunk in topics.read(ranges) for message in chunk]

    def _await(self, name: str, partitions: int) -> None:
        """Wait until every partition has a leader: before, its offsets can't be asked for."""
        ends = time.monotonic() + LEADERS
        while time.monotonic() < ends:
            found = self.admin.list_topics(name, 10).topics[name].partitions.values()
            if len(found) == partitions and all(p.leader > 0 for p in found):
                return
            time.sleep(0.02)
        raise RuntimeError(f"topic {name!r} has no leaders after {LEADERS:g} s")
