"""Messages of Protocol Buffers, with their schemas in a registry."""

from __future__ import annotations

import datetime as dt
import struct

import pyarrow as pa
import pytest

import weir
import weir.testing
from weir.errors import SinkError, TopologyError
from weir.messages import registry as registries
from weir.messages.payloads import Payload
from weir.messages.protobuf import Schema, message_path
from weir.messages.registry import Registry
from weir.sinks import Kafka

pytest.importorskip("authlib", reason="the registry client is not installed: weir-streams[protobuf]")
pytest.importorskip("grpc_tools", reason="no compiler of .proto files: weir-streams[protobuf]")
from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient

POST = 'syntax = "proto3"; package shop; message Post { string place = 1; }'
NEWER = 'syntax = "proto3"; package shop; message Post { string place = 1; optional int64 n = 2; }'
RICH = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other {}
message Outer {
  enum Size { SMALL = 0; LARGE = 1; }
  message Place { string name = 1; repeated int32 codes = 2; }
  message Post {
    int64 n = 1;
    optional int64 m = 2;
    Place place = 3;
    repeated Place places = 4;
    map<string, double> weights = 5;
    Size size = 6;
    google.protobuf.Timestamp at = 7;
    google.protobuf.StringValue text = 8;
    bytes raw = 9;
  }
}
"""
COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("m", pa.int64()),
        ("place", pa.struct([("name", pa.string()), ("codes", pa.list_(pa.int32()))])),
        ("places", pa.list_(pa.struct([("name", pa.string())]))),
        ("weights", pa.map_(pa.string(), pa.float64())),
        ("size", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("unknown", pa.string()),
    ]
)
NOTHING = dict.fromkeys(COLUMNS.names) | {"n": 0, "places": [], "weights": [], "size": "SMALL", "raw": b""}


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """Let each test ask anew."""
    monkeypatch.setattr(registries, "_answers", {})


def register(url, subject, text, *references):
    return SchemaRegistryClient({"url": url}).register_schema(
        subject, Registered(text, "PROTOBUF", list(references))
    )


def framed(number, text, *rows):
    return [b"\0" + struct.pack(">I", number) + b"\0" + Schema.of(text).encode(row) for row in rows]


class Known(Registry):
    """A registry that knows a few schemas by heart."""

    def __init__(self, *texts):
        super().__init__({"url": "http://nowhere"})
        object.__setattr__(self, "texts", texts)

    def schema(self, number):
        return self.texts[number], {}


def test_values_become_those_of_columns():
    kind = Schema.of(RICH).kind((1, 1))
    full = {
        "n": 1,
        "m": 2,
        "place": {"name": "FR", "codes": [1, 2]},
        "places": [{"name": "a"}, {"name": "b"}],
        "weights": [("x", 0.5)],
        "size": "LARGE",
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
        "text": "hello",
        "raw": b"\0\1",
        "unknown": None,
    }
    given = {name: dict(value) if name == "weights" else value for name, value in full.items() if value}
    given["text"] = {"value": "hello"}
    # the second message in the second: numbers in zigzag, and how many there are before them
    head = b"\0\0\0\0\0" + bytes([4, 2, 2])
    values = [head + kind(**given).SerializeToString(), None, head]
    decoded = Payload("confluent-protobuf", COLUMNS, registry=Known(RICH)).decode(values)
    assert decoded.rows.to_pylist() == [full, dict.fromkeys(COLUMNS.names), NOTHING]
    assert decoded.failures == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{}", "does not begin with the number"),
        (b"\0\0\0\0\0", "ends within the numbers"),
        (b"\0\0\0\0\0\xff", "ends within the numbers"),
        (b"\0\0\0\0\0\x03", "names -2 places"),
        (b"\0\0\0\0\0\x02\x20", "the schema has no message at (16,)"),
        (b"\0\0\0\0\0\x00\x0a\xff", "Error parsing"),
    ],
)
def test_a_message_that_is_none_is_told_from_those_that_are(value, why):
    good = framed(0, NEWER, {"place": "a", "n": 1})[0]
    schema = pa.schema([("place", pa.string()), ("n", pa.int64())])
    decoded = Payload("confluent-protobuf", schema, registry=Known(NEWER)).decode([good, value, good])
    assert decoded.rows.to_pylist() == [{"place": "a", "n": 1}] * 2
    ((number, said),) = decoded.failures
    assert number == 1
    assert why in said


def test_places_of_types_are_numbers_in_zigzag():
    assert message_path(memoryview(b"\x00rest")) == ((0,), 1)
    assert message_path(memoryview(b"\x02\x00rest")) == ((0,), 2)
    assert message_path(memoryview(b"\x06\x02\x04\xac\x02rest")) == ((1, 2, 150), 5)


def test_each_message_is_read_with_the_schema_that_wrote_it(brokers, registry):
    topic = brokers.topic(1)
    old, new = (register(registry, f"{topic}-value", text) for text in (POST, NEWER))
    assert old != new
    brokers.send(
        topic,
        [
            *framed(old, POST, {"place": "a"}),
            *framed(new, NEWER, {"place": "a", "n": 1}, {"place": "b", "n": 2}),
            *framed(987654, NEWER, {"place": "c", "n": 3}),
        ],
    )
    source = weir.kafka(
        brokers.servers,
        topic,
        "place string, n long",
        format="confluent-protobuf",
        registry=registry,
        on_error="divert",
    )
    app = source.map(lambda row: row, name="same")
    with weir.testing.start(app, servers=1, dead_letters=lambda rows, batch: None) as query:
        query.feed()
        assert query.output("same").to_pylist() == [
            {"place": "a", "n": None},
            {"place": "a", "n": 1},
            {"place": "b", "n": 2},
        ]
        assert query.progress.operators["kafka"].diverted == 1


def test_schemas_that_a_schema_imports(brokers, registry):
    topic = brokers.topic(1)
    register(
        registry, f"{topic}-common", 'syntax = "proto3"; package common; message Place { string name = 1; }'
    )
    text = 'syntax = "proto3"; import "common/place.proto"; message Post { common.Place place = 1; int64 n = 2; }'
    number = register(
        registry, f"{topic}-value", text, SchemaReference("common/place.proto", f"{topic}-common", 1)
    )
    imports = {"common/place.proto": 'syntax = "proto3"; package common; message Place { string name = 1; }'}
    value = Schema.of(text, imports).encode({"place": {"name": "FR"}, "n": 3})
    brokers.send(topic, [b"\0" + struct.pack(">I", number) + b"\0" + value])
    columns = {"place": "struct<name: string>", "n": "long"}
    source = weir.kafka(brokers.servers, topic, columns, format="confluent-protobuf", registry=registry)
    with weir.testing.start(source.map(lambda row: row, name="same"), servers=1) as query:
        query.feed()
        assert query.output("same").to_pylist() == [{"place": {"name": "FR"}, "n": 3}]


def test_what_is_written_can_be_read_with_the_registered_schema(brokers, results, registry, tmp_path):
    topic, file = results.topic(), tmp_path / "post.proto"
    file.write_text(NEWER)
    app = weir.source("place string, n long").map(lambda row: row, name="same")
    rows = [{"place": "a", "n": 1}, {"place": "b", "n": None}]
    sink = Kafka(results.servers, topic, format="confluent-protobuf", registry=registry, proto=file)
    weir.testing.run(app, [rows], servers=1, sink=sink)
    registered = SchemaRegistryClient({"url": registry}).get_latest_version(f"{topic}-value")
    assert registered.schema.schema_type == "PROTOBUF"
    values = brokers.values(topic)
    assert values == framed(registered.schema_id, NEWER, *rows)
    source = weir.kafka(
        brokers.servers, topic, "place string, n long", format="confluent-protobuf", registry=registry
    )
    with weir.testing.start(source.map(lambda row: row, name="same"), servers=1) as query:
        query.feed()
        assert query.output("same").to_pylist() == rows
    wrong = weir.source("other string").map(lambda row: row, name="same")
    with pytest.raises(TopologyError, match="no field 'other'"):
        weir.testing.run(wrong, [[{"other": "a"}]], servers=1, sink=sink)
    file.write_text('syntax = "proto3"; package shop; message Post { int64 place = 1; }')
    client = SchemaRegistryClient({"url": registry})
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    sink = Kafka(results.servers, topic, format="confluent-protobuf", registry=registry, proto=file)
    with pytest.raises(SinkError, match="registry"):
        weir.testing.run(
            weir.source("place long").map(lambda r: r, name="s"), [[{"place": 1}]], servers=1, sink=sink
        )


def test_mistakes_are_told_at_once(tmp_path):
    file = tmp_path / "post.proto"
    with pytest.raises(TopologyError, match="needs registry="):
        weir.kafka("nowhere", "t", "n long", format="confluent-protobuf")
    with pytest.raises(TopologyError, match="needs proto="):
        Kafka("nowhere", "t", format="confluent-protobuf", registry="http://r")
    file.write_text("message Post { string place = ; }")
    with pytest.raises(TopologyError, match="none that protoc compiles"):
        Kafka("nowhere", "t", format="confluent-protobuf", registry="http://r", proto=file)
    file.write_text('syntax = "proto3";')
    with pytest.raises(TopologyError, match="no message"):
        Kafka("nowhere", "t", format="confluent-protobuf", registry="http://r", proto=file)
    with pytest.raises(ValueError, match="no name of a file"):
        Schema.of(POST, {"../x.proto": POST})
