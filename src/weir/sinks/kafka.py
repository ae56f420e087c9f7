"""A topic of Kafka: each batch is one transaction, which also carries a mark that it was delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from weir.sinks.base import Delivery, Sink, check_deleted

MARKS = "weir-deliveries"
CALL_TIMEOUT = 30.0  # seconds for one call of a transaction
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
    """Writes rows to a topic, each batch in one transaction. Needs ``pip install 'weir-streams[kafka]'``.

    The transaction also writes a message to ``marks``, a compacted topic: query, operator and topic as its key, the
    batch as its value. A delivery that may have been made before first ends what an earlier driver left open
    (``init_transactions``), then looks for its mark among the committed messages. Rows and mark are of one transaction,
    so the mark tells what became of the rows.

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
    format, avro
        ``"json"``, ``"avro"`` with the file of its schema, or ``"arrow"``: streams of many rows per message;
        ``"confluent-avro"`` and ``"confluent-json"`` with a registry.
    registry
        The URL of a schema registry, or settings of confluent-kafka's client, as for :func:`weir.kafka`. The schema is
        registered as ``TOPIC-value``.
    settings
        More settings of librdkafka, e.g. ``{"security.protocol": "ssl", "compression.type": "zstd"}``.
    marks
        The topic for marks; created, if the brokers allow it, with one partition that is compacted.

    Guarantee: each row once for readers with ``isolation.level=read_committed`` (in Java that is not the default).
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
        registry: str | Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        marks: str = MARKS,
    ) -> None:
        require("confluent_kafka", "kafka")
        self.topic, self.key, self.marks, self.deleted = topic, key, marks, deleted
        self._format, self._avro = format, "" if avro is None else Path(avro).read_text()
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
        self._make_marks()
        if not self._exists(self.topic):
            raise SinkError(f"{self!r}: there is no such topic at {self._topics.servers}; create it first")

    def deliver(self, delivery: Delivery) -> None:
        from confluent_kafka import KafkaException

        try:
            # before the mark is looked for: what an earlier driver left open ends here
            producer, mark = self._producer(delivery.owner), f"{delivery.owner}/{self.topic}".encode()
            if delivery.again and self._last_mark(mark) >= delivery.batch:
                return
            producer.begin_transaction()
            for key, value in self._messages(delivery):
                _put(producer, self.topic, key, value)
            _put(producer, self.marks, mark, b"%d" % delivery.batch, 0)
            reach("sink-staged", delivery.batch)
            producer.commit_transaction(CALL_TIMEOUT)
        except SourceError as error:  # the registry
            self._producers.pop(delivery.owner, None)
            kind = SinkUnavailable if isinstance(error, SourceUnavailable) else SinkError
            raise kind(f"{self!r}: {error}") from error
        except KafkaException as error:
            # nobody knows what became of the transaction: the next try begins with a new producer, and asks
            self._producers.pop(delivery.owner, None)
            why = error.args[0]
            kind = SinkError if why.name() in _HOPELESS or "FENCED" in why.name() else SinkUnavailable
            raise kind(f"{self!r}: {why.str()}") from error

    def close(self) -> None:
        self._producers.clear()

    def _producer(self, owner: str) -> Any:
        from confluent_kafka import Producer

        if owner not in self._producers:
            settings = {"linger.ms": 20, "transaction.timeout.ms": 300_000, **self._topics.client()}
            producer = Producer({**settings, "transactional.id": f"weir/{owner}/{self.topic}"})
            producer.init_transactions(CALL_TIMEOUT)
            self._producers[owner] = producer
        return self._producers[owner]

    def _payload(self, schema: pa.Schema) -> Payload:
        return Payload(self._format, schema, self._avro, self._registry, f"{self.topic}-value")

    def _messages(self, delivery: Delivery) -> Iterator[tuple[bytes | None, bytes | None]]:
        schema = pa.schema([field for field in delivery.schema if field.name != self.deleted])
        payload = self._payload(schema)
        for batch in delivery.batches():
            keys: Sequence[Any] = []
            if self.key and self._format != "arrow":
                keys = batch.column(self.key).to_pylist()
            gone = batch.column(self.deleted).to_pylist() if self.deleted else ()
            for number, value in enumerate(payload.encode(batch.select(schema.names))):
                key = keys[number] if keys else None
                text = key if key is None or isinstance(key, bytes) else str(key).encode()
                yield text, None if gone and gone[number] else value

    def _last_mark(self, mark: bytes) -> int:
        """Return the last batch whose mark is committed; −1 if there is none.

        Reading goes on to the end of all marks, committed or not: an open transaction of somebody else may stand
        before ours, and until it ends committed messages behind it are not shown.
        """
        partition = f"{self.marks}/0"
        try:
            everything = Topics(self._topics.servers, (self.marks,), self._topics.settings, committed=False)
            low, high = everything.offsets([partition])[partition]
            last = -1
            marks = Topics(self._topics.servers, (self.marks,), self._topics.settings)
            for messages in marks.read([Range(partition, low, high)], expired="skip"):
                for message in messages:
                    if message.key() == mark:
                        last = int(message.value())
            return last
        except SourceError as error:
            raise SinkUnavailable(f"{self!r}: {error}") from error

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


def _put(producer: Any, topic: str, key: bytes | None, value: bytes | None, partition: int = -1) -> None:
    """Hand a message to the producer, when it has room."""
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.1)
