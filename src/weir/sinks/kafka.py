"""A topic of Kafka: transactions of a batch, or of its parts, also carry a mark that these were delivered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable, SourceError, SourceUnavailable, TopologyError
from weir.extras import require
from weir.faults import reach
from weir.messages.payloads import Payload
from weir.messages.registry import Registry
from weir.messages.topics import Range, Topics
from weir.sinks.base import BY_SERVERS, Delivery, Part, Sink, check_deleted, check_servers_from

MARKS = "weir-deliveries"
PARTS = "parts"  # a mark that servers write a batch
CALL_TIMEOUT = 30.0  # seconds for one call of a transaction
FLUSH_TIMEOUT = 120.0  # seconds for the messages of a part that are still to be sent
# no amount of waiting helps against these
_HOPELESS = (
    "MSG_SIZE_TOO_LARGE",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "INVALID_REQUIRED_ACKS",
    "_FENCED",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
)


class Kafka(Sink):
    """Writes rows to a topic, in transactions. Needs ``pip install 'weir-streams[kafka]'``.

    A small batch is one transaction of the driver. Of a large one, each server writes its part in a transaction of its
    own, and a last one of the driver says that all are there. A transaction also writes a message to ``marks``, a
    compacted topic: query, operator, topic and part as its key, the batch as its value. A delivery that may have been
    made before first ends what an earlier driver left open (``init_transactions``), then looks for its marks among the
    committed messages. Rows and mark are of one transaction, so the mark tells what became of the rows.

    Parameters
    ----------
    servers
        ``"broker:9092,…"``.
    topic
        The topic, which must be there.
    key
        The column that becomes the messages' key, as text; it decides the partition. None: no key.
    deleted
        A boolean column, which messages do not get: where it is true, the message has no value, so that compaction
        deletes its key.
    format, avro, proto
        ``"json"``, ``"avro"`` with the file of its schema, or ``"arrow"``: streams of many rows per message;
        with a registry ``"confluent-avro"``, ``"confluent-json"``, and ``"confluent-protobuf"`` with the file of its
        schema, whose first message a row becomes.
    registry
        The URL of a schema registry, or settings of confluent-kafka's client, as for :func:`weir.kafka`. The schema is
        registered as ``TOPIC-value``.
    settings
        More settings of librdkafka, e.g. ``{"security.protocol": "ssl", "compression.type": "zstd"}``.
    marks
        The topic for marks; created, if the brokers allow it, with one partition that is compacted.

    servers_from
        Rows of a batch from which servers write it. None: never.

    Guarantee: each row once for readers with ``isolation.level=read_committed`` (in Java that is not the default).
    They see a small batch whole or not at all, and so each part of a large one; parts appear one after the other.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        deleted: str | None = None,
        format: str = "json",
        avro: str | Path | None = None,
        proto: str | Path | None = None,
        registry: str | Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        marks: str = MARKS,
        servers_from: int | None = BY_SERVERS,
    ) -> None:
        require("confluent_kafka", "kafka")
        self.topic, self.key, self.marks, self.deleted = topic, key, marks, deleted
        self._servers_from = check_servers_from(servers_from)
        self._format, self._avro = format, "" if avro is None else Path(avro).read_text()
        self._proto = "" if proto is None else Path(proto).read_text()
        self._topics = Topics(servers, (topic,), dict(settings or {}))
        self._producers: dict[str, Any] = {}
        self._registry = Registry.of(registry)
        self._payload(pa.schema([])).check(writes=True)
        if deleted is not None and format == "arrow":
            raise TopologyError('deleted= and format="arrow": a message of many rows deletes none')

    def __repr__(self) -> str:
        return f"Kafka({self.topic!r})"

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        check_columns([self.key] if self.key else [], schema, f"{self!r} of operator {operator!r}")
        check_deleted(
            self.deleted, [self.key] if self.key else [], schema, f"{self!r} of operator {operator!r}"
        )
        self._payload(pa.schema([field for field in schema if field.name != self.deleted])).check(writes=True)
        self._make_marks()
        if not self._exists(self.topic):
            raise SinkError(f"{self!r}: there is no such topic at {self._topics.servers}; create it first")

    def deliver(self, delivery: Delivery) -> None:
        producers, writer = self._producers, self._writer(delivery)
        with writer.translated(lambda: producers.pop(delivery.owner, None)):
            if delivery.owner not in producers:
                # before a mark is looked for: what an earlier driver left open ends here
                producers[delivery.owner] = writer.producer()
            producer, batch = producers[delivery.owner], delivery.batch
            sent: list[int] = []
            begun = False  # whether servers have begun to write this batch
            if delivery.again:
                # open transactions of parts would hide all marks behind theirs
                if self._marks(committed=False).get(writer.mark(PARTS)) == batch:
                    for part in range(delivery.parts):
                        writer.producer(part)
                marks = self._marks()
                if marks.get(writer.mark(), -1) >= batch:
                    return
                begun = marks.get(writer.mark(PARTS)) == batch
                sent = [part for part in range(delivery.parts) if marks.get(writer.mark(part)) == batch]
            by_servers = begun or delivery.rows >= self._servers_from
            if by_servers:
                if not begun:
                    writer.note(producer, batch, PARTS)
                since = self._topics_of_marks(False).offsets([f"{self.marks}/0"])[f"{self.marks}/0"][1]
                delivery.staged(partial(_send_part, writer, sent, since))
            producer.begin_transaction()
            if not by_servers:
                writer.send(producer, delivery.batches())
            writer.put_mark(producer, batch)
            reach("sink-staged", batch)
            producer.commit_transaction(CALL_TIMEOUT)

    def close(self) -> None:
        self._producers.clear()

    def _writer(self, delivery: Delivery) -> _Writer:
        schema = pa.schema([field for field in delivery.schema if field.name != self.deleted])
        return _Writer(
            repr(self),
            self._topics,
            self.topic,
            self.marks,
            delivery.owner,
            self._payload(schema),
            self.key,
            self.deleted,
        )

    def _payload(self, schema: pa.Schema) -> Payload:
        return Payload(self._format, schema, self._avro, self._registry, f"{self.topic}-value", self._proto)

    def _topics_of_marks(self, committed: bool = True) -> Topics:
        return Topics(self._topics.servers, (self.marks,), self._topics.settings, committed)

    def _marks(self, committed: bool = True) -> dict[bytes, int]:
        """Return the last batch of each mark."""
        return read_marks(self._topics_of_marks(False), self._topics_of_marks(committed), 0)

    def _make_marks(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        if self._exists(self.marks):
            return
        admin = AdminClient(self._topics.client())
        topic = NewTopic(self.marks, num_partitions=1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([topic], operation_timeout=CALL_TIMEOUT)[self.marks].result(CALL_TIMEOUT)
        except (KafkaException, TimeoutError) as error:
            if not self._exists(self.marks):  # another query may have been first
                raise SinkError(
                    f"{self!r}: the topic {self.marks!r} for marks cannot be created ({error!r}). Create it with one "
                    "partition and cleanup.policy=compact, or name another one in marks=."
                ) from error

    def _exists(self, name: str) -> bool:
        try:
            return self._topics.exists(name)
        except SourceError as error:
            kind = SinkUnavailable if isinstance(error, SourceUnavailable) else SinkError
            raise kind(f"{self!r}: {error}") from error


def read_marks(everything: Topics, wanted: Topics, since: int) -> dict[bytes, int]:
    """Return the last batch of each mark from an offset on.

    Reading goes on to the end of all marks, committed or not: an open transaction of somebody else may stand
    before ours, and until it ends committed messages behind it are not shown.
    """
    partition = f"{wanted.names[0]}/0"
    found: dict[bytes, int] = {}
    try:
        low, high = everything.offsets([partition])[partition]
        for messages in wanted.read([Range(partition, max(low, since), high)], expired="skip"):
            found.update((message.key(), int(message.value())) for message in messages)
    except SourceError as error:
        raise SinkUnavailable(f"the marks in {wanted.names[0]!r}: {error}") from error
    return found


@dataclass(frozen=True)
class _Writer:
    """How the rows of one operator become messages, on the driver and in tasks."""

    label: str
    topics: Topics
    topic: str
    marks: str
    owner: str
    payload: Payload
    key: str | None
    deleted: str | None

    def mark(self, what: int | str = "") -> bytes:
        """Return the key of a mark: of all of a batch, of one of its parts, or that servers write it."""
        return "/".join([self.owner, self.topic, *([str(what)] if what != "" else [])]).encode()

    def producer(self, part: int | None = None) -> Any:
        """Return a producer of transactions, of a whole batch or of a part.

        It has ended what an earlier one of its id has left open, and fenced it.
        """
        from confluent_kafka import Producer

        settings = {"linger.ms": 20, "transaction.timeout.ms": 300_000, **self.topics.client()}
        producer = Producer(
            {**settings, "transactional.id": f"weir/{self.mark('' if part is None else part).decode()}"}
        )
        producer.init_transactions(CALL_TIMEOUT)
        return producer

    def put_mark(self, producer: Any, batch: int, what: int | str = "") -> None:
        """Let the transaction of a producer carry a mark."""
        _put(producer, self.marks, self.mark(what), b"%d" % batch, 0)

    def note(self, producer: Any, batch: int, what: str) -> None:
        """Write a mark alone."""
        producer.begin_transaction()
        self.put_mark(producer, batch, what)
        producer.commit_transaction(CALL_TIMEOUT)

    def send(self, producer: Any, batches: Iterator[pa.RecordBatch]) -> None:
        """Hand rows to a producer."""
        for batch in batches:
            for key, value in self._messages(batch):
                _put(producer, self.topic, key, value)

    def _messages(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, bytes | None]]:
        keys: Sequence[Any] = []
        if self.key and self.payload.format != "arrow":
            keys = batch.column(self.key).to_pylist()
        gone = batch.column(self.deleted).to_pylist() if self.deleted else ()
        for number, value in enumerate(self.payload.encode(batch.select(self.payload.schema.names))):
            key = keys[number] if keys else None
            text = key if key is None or isinstance(key, bytes) else str(key).encode()
            yield text, None if gone and gone[number] else value

    @contextlib.contextmanager
    def translated(self, failed: Callable[[], Any], fenced: type[SinkError] = SinkError) -> Iterator[None]:
        """Turn errors of Kafka into ours; after one nobody knows what became of the transaction."""
        from confluent_kafka import KafkaException

        try:
            yield
        except SinkError:
            failed()
            raise
        except SourceError as error:  # the registry
            failed()
            kind = SinkUnavailable if isinstance(error, SourceUnavailable) else SinkError
            raise kind(f"{self.label}: {error}") from error
        except KafkaException as error:
            failed()
            why = error.args[0]
            kind = SinkError if why.name() in _HOPELESS else SinkUnavailable
            raise (fenced if "FENCED" in why.name() else kind)(f"{self.label}: {why.str()}") from error


def _send_part(writer: _Writer, sent: list[int], since: int, part: Part) -> None:
    """Send a part of a batch in a transaction of its own, with its mark, unless it is there."""
    if part.first in sent:
        return
    # whoever is fenced here may have a follower that is fenced by us: both must not give the batch up
    with writer.translated(lambda: None, fenced=SinkUnavailable):
        producer = writer.producer(part.first)
        everything = replace(writer.topics, names=(writer.marks,), committed=False)
        marks = read_marks(everything, replace(everything, committed=True), since)
        if marks.get(writer.mark(part.first)) == part.batch:
            return
        producer.begin_transaction()
        writer.send(producer, part.batches())
        if producer.flush(FLUSH_TIMEOUT):  # an open mark hides those behind it, so it comes last
            raise SinkUnavailable(f"{writer.label}: the brokers do not take messages")
        writer.put_mark(producer, part.batch, part.first)
        reach("part-staged", 100 * part.batch + part.first)
        producer.commit_transaction(CALL_TIMEOUT)


def _put(producer: Any, topic: str, key: bytes | None, value: bytes | None, partition: int = -1) -> None:
    """Hand a message to the producer, when it has room."""
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.1)
