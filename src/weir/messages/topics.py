"""Topics as Weir sees them: partitions, the offsets that they have, and the messages of a range of offsets."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
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

    A name that begins with ``^`` is a pattern. ``settings`` are librdkafka's, e.g. ``{"security.protocol": "ssl"}``.
    With ``committed``, messages of transactions that are open or were aborted don't count.
    """

    servers: str
    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    committed: bool = True

    def client(self) -> dict[str, Any]:
        """Return the settings of any client."""
        # what is wrong comes back as an error, and need not be logged by librdkafka, too
        return {"bootstrap.servers": self.servers, "log_level": 2, **self.settings}

    def consumer(self, reset: str, group: str = "weir") -> dict[str, Any]:
        """Return the settings of a consumer; ``reset`` is what it does where an offset has expired."""
        return {
            "group.id": group,
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
        found: dict[str, Any] = {}
        for name in self.names:
            if name.startswith("^"):
                found |= self._matching(name)
                continue
            found[name] = topic = self._metadata(name).topics[name]
            if topic.error is not None:
                raise _refused(f"topic {name!r} at {self.servers}", topic.error)
        return [f"{name}/{number}" for name in sorted(found) for number in sorted(found[name].partitions)]

    def _matching(self, pattern: str) -> dict[str, Any]:
        """Return the topics that a pattern matches; those of Kafka's own (``__…``) only if it says so."""
        return {
            name: topic
            for name, topic in self._metadata().topics.items()
            if topic.error is None
            and re.fullmatch(pattern, name)
            and (pattern.startswith("^__") or not name.startswith("__"))
        }

    def exists(self, name: str) -> bool:
        """Return whether there is a topic."""
        from confluent_kafka import KafkaError

        error = self._metadata(name).topics[name].error
        if error is not None and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise _refused(f"topic {name!r} at {self.servers}", error)
        return error is None

    def ids(self, names: Collection[str]) -> dict[str, int]:
        """Return a number for each topic that no topic made anew under its name has; only of brokers that know it."""
        from confluent_kafka import TopicCollection

        metadata = self._metadata(next(iter(names), None))
        if not names or metadata.controller_id not in metadata.brokers:
            return {}
        answers = self._admin().describe_topics(TopicCollection(sorted(names)), request_timeout=CALL)
        ids = {name: _asked(answer.result).topic_id for name, answer in answers.items()}
        numbers = {n: i.get_most_significant_bits() ^ i.get_least_significant_bits() for n, i in ids.items()}
        return {name: number & (1 << 63) - 1 for name, number in numbers.items() if number}

    def offsets(self, partitions: Iterable[str], timestamp: int | None = None) -> dict[str, tuple[int, int]]:
        """Return the first offset of each partition, and the one behind its last message.

        With a ``timestamp`` (ms), the first one is that of the first message not before it.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        level = IsolationLevel.READ_COMMITTED if self.committed else IsolationLevel.READ_UNCOMMITTED
        first = OffsetSpec.earliest() if timestamp is None else OffsetSpec.for_timestamp(timestamp)
        places = {partition: TopicPartition(*place(partition)) for partition in partitions}
        if not places:
            return {}
        answers = [
            self._admin().list_offsets(
                dict.fromkeys(places.values(), spec), isolation_level=level, request_timeout=CALL
            )
            for spec in (first, OffsetSpec.latest())
        ]
        lows, highs = ({where: _asked(at.result).offset for where, at in one.items()} for one in answers)
        for partition, where in places.items():
            if highs[where] < 0 or lows[where] < -1:
                raise SourceUnavailable(f"{partition} at {self.servers}: has no leader")
            if lows[where] == -1:  # no message is that young
                lows[where] = highs[where]
        return {partition: (lows[where], highs[where]) for partition, where in places.items()}

    def commit(self, group: str, position: Mapping[str, int]) -> None:
        """Tell the brokers how far a group has read, for those who watch its lag; nobody waits for the answer."""
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(*place(partition), at) for partition, at in position.items()]
        if offsets:
            self._client(group=group).commit(offsets=offsets, asynchronous=True)

    def read(self, ranges: Iterable[Range], expired: str = "fail") -> Iterator[list[Any]]:
        """Return the messages of some ranges, some thousands at a time, those of a partition in order.

        Offsets without a message (compacted, aborted, marks of transactions) are passed over: a range ends with the
        first message behind it, or with the end of its partition. Where a broker no longer has what a range begins
        with, that is an error; with ``expired="skip"`` the range begins later, or is empty if the topic is gone.
        """
        from confluent_kafka import KafkaError, TopicPartition

        gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
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
                        if range_ is not None and expired == "skip" and error.code() in gone:
                            del wanted[where], left[where]
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

    def _client(self, reset: str = "error", group: str = "weir") -> Any:
        """Return a consumer of this thread."""
        return _kept("consumer", require("confluent_kafka", "kafka").Consumer, self.consumer(reset, group))

    def _admin(self) -> Any:
        """Return a client of this thread that asks about topics; ``refusals`` are errors of its connections."""
        from confluent_kafka.admin import AdminClient

        def made(config: dict[str, Any]) -> Any:
            refusals: list[Any] = []
            admin = AdminClient({**config, "error_cb": refusals.append})
            admin.refusals = refusals
            return admin

        return _kept("admin", made, self.client())

    def _metadata(self, name: str | None = None) -> Any:
        """Ask about a topic, or all; the client knows then who leads its partitions."""
        from confluent_kafka import KafkaError, KafkaException

        admin = self._admin()
        try:
            return admin.list_topics(name, CALL)
        except KafkaException as error:
            admin.poll(0)
            refused = [one for one in admin.refusals if one.code() == KafkaError._AUTHENTICATION]
            admin.refusals.clear()
            raise _refused(f"Kafka at {self.servers}", (refused or error.args)[0]) from error


_clients = threading.local()  # two threads must not assign partitions to one consumer


def _kept(kind: str, make: Any, config: dict[str, Any]) -> Any:
    """Return a client of this thread; it is kept, since connecting takes longer than most reads."""
    key = f"{kind} {sorted(config.items())}"
    clients = _clients.__dict__
    if key not in clients:
        clients[key] = make(config)
    return clients[key]


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
