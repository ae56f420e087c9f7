"""Payloads whose schemas are in a registry: read with the schema that wrote them, registered when written."""

from __future__ import annotations

import io
import json
import struct

import fastavro
import pytest

import weir
import weir.testing
from support import rows_of
from weir.errors import SinkError, SourceError, TopologyError
from weir.messages import registry as registries
from weir.sinks import Kafka

pytest.importorskip(
    "authlib", reason="confluent-kafka's registry client is not installed: weir-streams[registry]"
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

POST = {"type": "record", "name": "Post", "fields": [{"name": "place", "type": "string"}]}
NEWER = {**POST, "fields": [{"name": "n", "type": "long", "default": 7}, *POST["fields"]]}


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """Let each test ask anew."""
    monkeypatch.setattr(registries, "_answers", {})


def register(url, topic, schema):
    client = SchemaRegistryClient({"url": url})
    return client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))


def framed(number, schema, *rows):
    for row in rows:
        out = io.BytesIO(b"\0" + struct.pack(">I", number))
        out.seek(5)
        fastavro.schemaless_writer(out, schema, row)
        yield out.getvalue()


def totals(brokers, topic, **more):
    source = weir.kafka(brokers.servers, topic, "place string, n long", format="confluent-avro", **more)
    return source.keyed("place", weir.Aggregate(rows="count", total="sum(n)"), name="places")


def test_each_message_is_read_with_the_schema_that_wrote_it(brokers, registry, tmp_path):
    topic = brokers.topic(1)
    old, new = (register(registry, topic, schema) for schema in (POST, NEWER))
    assert old != new
    messages = [
        *framed(old, POST, {"place": "a"}),
        *framed(new, NEWER, {"place": "a", "n": 1}, {"place": "b", "n": 2}),
        *framed(old, POST, {"place": "b"}),
    ]
    brokers.send(topic, messages)
    with weir.testing.start(totals(brokers, topic, registry=registry), servers=2) as query:
        query.feed()
        assert rows_of(query.state("places")) == [("a", 2, 1), ("b", 2, 2)]
    reader = (
        tmp_path / "post.avsc"
    )  # resolved to the reader's schema, its default fills what old messages lack
    reader.write_text(json.dumps(NEWER))
    app = totals(brokers, topic, registry={"url": registry}, avro=reader)
    with weir.testing.start(app, servers=2) as query:
        query.feed()
        assert rows_of(query.state("places")) == [("a", 2, 8), ("b", 2, 9)]


def test_a_number_that_the_registry_does_not_know_is_diverted(brokers, registry):
    topic = brokers.topic(1)
    known = register(registry, topic, NEWER)
    brokers.send(
        topic,
        [
            *framed(known, NEWER, {"place": "a", "n": 1}),
            *framed(987654, NEWER, {"place": "b", "n": 1}),
            b"{}",
        ],
    )
    app = totals(brokers, topic, registry=registry, on_error="divert")
    with weir.testing.start(app, servers=1, dead_letters=lambda rows, batch: None) as query:
        query.feed()
        assert rows_of(query.state("places")) == [("a", 1, 1)]
        assert query.progress.operators["kafka"].diverted == 2


@pytest.mark.parametrize("format", ["confluent-avro", "confluent-json"])
def test_what_is_written_can_be_read_with_the_registered_schema(brokers, registry, tmp_path, format):
    topic, file = brokers.topic(1), tmp_path / "post.avsc"
    file.write_text(json.dumps(NEWER))
    more = {"format": format, "registry": registry, "avro": file if format == "confluent-avro" else None}
    app = weir.source("place string, n long").map(lambda row: row, name="same")
    rows = [{"place": "a", "n": 1}, {"place": "b", "n": 2}]
    weir.testing.run(app, [rows], servers=1, sink=Kafka(brokers.servers, topic, **more))
    client = SchemaRegistryClient({"url": registry})
    registered = client.get_latest_version(f"{topic}-value")
    values = brokers.values(topic)
    assert {struct.unpack(">bI", value[:5]) for value in values} == {(0, registered.schema_id)}
    if format == "confluent-json":
        assert [json.loads(value[5:]) for value in values] == rows
        assert registered.schema.schema_type == "JSON"
        assert set(json.loads(registered.schema.schema_str)["properties"]) == {"place", "n"}
    source = weir.kafka(brokers.servers, topic, "place string, n long", **more)
    with weir.testing.start(source.map(lambda row: row, name="same"), servers=1) as query:
        query.feed()
        assert query.output("same").to_pylist() == rows


def test_a_registry_that_is_away_is_waited_for(brokers, registry, monkeypatch):
    topic = brokers.topic(1)
    number = register(registry, topic, NEWER)
    brokers.send(topic, framed(number, NEWER, {"place": "a", "n": 1}))
    monkeypatch.setattr(registries, "PAUSE", 0.01)
    real, tries = SchemaRegistryClient.get_schema, []

    def away(self, *about, **more):
        tries.append(about)
        if len(tries) < 4:
            raise ConnectionError("nobody listens")
        return real(self, *about, **more)

    monkeypatch.setattr(SchemaRegistryClient, "get_schema", away)
    with weir.testing.start(totals(brokers, topic, registry=registry), servers=1) as query:
        query.feed()
        assert rows_of(query.state("places")) == [("a", 1, 1)]
    assert len(tries) == 4
    monkeypatch.setattr(registries, "RETRY_SECONDS", 0.05)
    gone = totals(brokers, topic, registry="http://127.0.0.1:9")
    with (
        weir.testing.start(gone, servers=1) as query,
        pytest.raises(SourceError, match="registry http://127.0.0.1:9"),
    ):
        query.feed()


def test_a_sink_waits_for_its_registry_too(brokers, results, registry, monkeypatch):
    monkeypatch.setattr("weir.engine.batch.delivery.FIRST_PAUSE", 0.01)
    topic, tries, real = results.topic(), [], SchemaRegistryClient.register_schema

    def away(self, *about, **more):
        tries.append(about)
        if len(tries) < 3:
            raise ConnectionError("nobody listens")
        return real(self, *about, **more)

    monkeypatch.setattr(SchemaRegistryClient, "register_schema", away)
    app = weir.source("place string, n long").map(lambda row: row, name="same")
    sink = Kafka(results.servers, topic, format="confluent-json", registry=registry)
    weir.testing.run(app, [[{"place": "a", "n": 1}]] * 2, servers=1, sink=sink)
    assert len(tries) == 3  # and the second batch knows the number
    assert results.written(topic) == 2


def test_a_schema_that_does_not_fit_the_subject_stops_the_query(brokers, registry, tmp_path):
    topic, file = brokers.topic(1), tmp_path / "post.avsc"
    register(registry, topic, POST)
    SchemaRegistryClient({"url": registry}).set_compatibility(f"{topic}-value", "BACKWARD")
    other = {**POST, "fields": [{"name": "n", "type": "long"}]}
    file.write_text(json.dumps(other))
    sink = Kafka(brokers.servers, topic, format="confluent-avro", avro=file, registry=registry)
    app = weir.source("n long").map(lambda row: row, name="same")
    with pytest.raises(SinkError, match="registry"):
        weir.testing.run(app, [[{"n": 1}]], servers=1, sink=sink)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"format": "json", "registry": "http://r"}, "has no use for registry="),
        ({"format": "confluent-avro"}, "needs avro="),
        ({"format": "confluent-avro", "registry": {"uri": "http://r"}}, "expected its URL"),
    ],
)
def test_mistakes_are_told_when_a_source_is_declared(wrong, why):
    with pytest.raises(TopologyError, match=why):
        weir.kafka("nowhere", "t", "n long", **wrong)


def test_a_sink_without_a_registry_does_not_make_numbers_up(tmp_path):
    file = tmp_path / "post.avsc"
    file.write_text(json.dumps(POST))
    for more in ({"format": "confluent-json"}, {"format": "confluent-avro", "avro": file}):
        with pytest.raises(TopologyError, match="needs registry="):
            Kafka("nowhere", "t", **more)
