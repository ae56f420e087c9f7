"""Topics as Weir sees them: partitions, the offsets that they have, and the messages of a range of offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weir.errors import SourceError, SourceUnavailable
from weir.extras import require

CHUNK = 20_000  # messages that are taken at a time
WAIT = 0.1  # seconds for which the last few of them are waited for
BROKER_TIMEOUT = 60.0  # seconds without a message after which a broker counts as gone
CALL = 10.0  # seconds for one question to a broker


class Range(NamedTuple):
    """Some messages of a partition: offsets from ``start``, before ``end``. ``partition`` is ``"topic/3"``."""

    partition: str
    start: int
    end: int

    @property
    def place(self) -> tuple[str, int]:
        return place(self.partition)


def place(partition: str) -> tuple[str, int]:
    """Return topic and number of a partition.

    >>> place("posts/3")
    ('posts', 3)
    """
    topic, _, number = partition.rpartition("/")
    return topic, int(number)


@dataclass(frozen=True)
class Topics:
    """Topics of one cluster, and how to reach them.

    ``settings`` are librdkafka's, e.g. ``{"security.protocol": "ssl"}``. With ``committed``, messages of transactions
    that are open or were aborted don't count.
    """

    servers: str
    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    committed: bool = True

    def client(self) -> dict[str, Any]:
        """Return the settings of any client."""
        # what is wrong comes back as an error, and need not be logged by librdkafka, too
        return {"bootstrap.servers": self.servers, "log_level": 2, **self.settings}

    def consumer(self, reset: str) -> dict[str, Any]:
        """Return the settings of a consumer; ``reset`` is what it does where an offset has expired."""
        return {
            "group.id": "weir",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if self.committed else "read_uncommitted",
            "auto.offset.reset": reset,
            # what is asked for is there: a broker that waited for more would only hold up the next range
            "fetch.wait.max.ms": 5,
            "fetch.queue.backoff.ms": 5,
            **self.client(),
        }

    def partitions(self) -> list[str]:
        """Return the partitions that there are, as ``"topic/0"``."""
        out = []
        for name in self.names:
            topic = _asked(self._client().list_topics, name, CALL).topics[name]
            if topic.error is not None:
                raise _refused(f"topic {name!r} at {self.servers}", topic.error)
            out += [f"{name}/{number}" for number in sorted(topic.partitions)]
        return out

    def offsets(self, partitions: Iterable[str], timestamp: int | None = None) -> dict[str, tuple[int, int]]:
        """Return the first offset of each partition, and the one behind its last message.

        With a ``timestamp`` (ms), the first one is that of the first message not before it.
        """
        from confluent_kafka import OFFSET_END, TopicPartition

        client, out = self._client(), {}
        for partition in partitions:
            where = TopicPartition(*place(partition))
            low, high = _asked(client.get_watermark_offsets, where, CALL, False)
            if timestamp is not None:
                asked = TopicPartition(*place(partition), timestamp)
                at = _asked(client.offsets_for_times, [asked], CALL)[0].offset
                low = high if at in (OFFSET_END, -1) else at
            out[partition] = (low, high)
        return out

    def read(self, ranges: Iterable[Range], expired: str = "fail") -> Iterator[list[Any]]:
        """Return the messages of some ranges, some thousands at a time, those of a partition in order.

        Offsets without a message (compacted, aborted, marks of transactions) are passed over: a range ends with the
        first message behind it, or with the end of its partition. Where a broker no longer has what a range begins
        with, that is an error; with ``expired="skip"`` the range begins later.
        """
        from confluent_kafka import KafkaError, TopicPartition

        wanted = {r.place: r for r in ranges if r.start < r.end}
        if not wanted:
            return
        consumer = self._client("earliest" if expired == "skip" else "error")
        consumer.assign([TopicPartition(*where, r.start) for where, r in wanted.items()])
        moved, paused = time.monotonic(), list[Any]()
        left = {where: r.end - r.start for where, r in wanted.items()}
        try:
            while wanted:
                kept, done = [], []
                # as many as there can be, for it waits until it has them all
                for message in consumer.consume(min(CHUNK, sum(left.values())), WAIT):
                    moved = time.monotonic()
                    where = message.topic(), message.partition()
                    range_ = wanted.get(where)
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        if range_ is None and error.retriable():
                            continue
                        raise _unreadable(range_, error, self.servers)
                    if range_ is None:
                        continue  # behind the end of its range
                    offset = message.offset()
                    if error is None and offset < range_.end:
                        kept.append(message)
                        left[where] = range_.end - offset - 1
                    if offset >= range_.end - (error is None):
                        del wanted[where], left[where]
                        done.append(TopicPartition(*where))
                if done and wanted:
                    consumer.pause(done)
                    paused += done
                if kept:
                    yield kept
                if time.monotonic() - moved > BROKER_TIMEOUT:
                    raise SourceError(
                        f"no message for {BROKER_TIMEOUT:g} s from {self.servers}, although "
                        f"{next(iter(wanted.values()))} is due. Nothing of this batch has been committed; start the "
                        "query again when they are back."
                    )
        finally:
            consumer.resume(paused)  # or they would stay so for the next range
            consumer.unassign()

    def _client(self, reset: str = "error") -> Any:
        """Return a consumer of this thread; it is kept, since connecting takes longer than most reads."""
        config = self.consumer(reset)
        key = repr(sorted(config.items()))
        clients = _clients.__dict__
        if key not in clients:
            clients[key] = require("confluent_kafka", "kafka").Consumer(config)
        return clients[key]


_clients = threading.local()  # two threads must not assign partitions to one consumer


def _asked(question: Any, *about: Any) -> Any:
    """Ask a broker."""
    from confluent_kafka import KafkaException

    try:
        return question(*about)
    except KafkaException as error:
        raise _refused("Kafka", error.args[0]) from error


def _refused(what: str, error: Any) -> SourceError:
    """Return an error that is waited for, unless waiting cannot help."""
    hopeless = ("AUTHORIZATION", "AUTHENTICATION", "SASL", "UNKNOWN_TOPIC", "INVALID", "UNSUPPORTED")
    kind = SourceError if any(word in error.name() for word in hopeless) else SourceUnavailable
    return kind(f"{what}: {error.str()}")


def _unreadable(range_: Range | None, error: Any, servers: str) -> SourceError:
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return expired_error(range_)
    return SourceError(
        f"{range_ or servers}: cannot be read: {error.str()}. Nothing of this batch is committed."
    )


def expired_error(range_: Any) -> SourceError:
    """Return what to say of messages that the brokers have deleted before they were read."""
    return SourceError(
        f"{range_}: the brokers no longer have its first messages; they have expired, or the topic was made anew. "
        "Nothing of this batch has been committed. To go on with what is left, start the query with "
        'on_expired="skip" in weir.kafka(…).'
    )
