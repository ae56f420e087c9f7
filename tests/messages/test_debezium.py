"""Changes of a table, as Debezium writes them: lookups follow them, and sinks mirror the table."""

from __future__ import annotations

import datetime as dt

import deltalake
import msgspec
import psycopg
import pyarrow as pa
import pytest

import weir
import weir.testing
from weir.errors import SourceError, TopologyError, UnknownColumn
from weir.messages.payloads import Payload
from weir.sinks import Delta, Kafka, Postgres

COLUMNS = "id long, name string, debezium_deleted boolean"


def change(op, before=None, after=None, wrapped=False):
    """Return an envelope, as JSON converters write it with and without schemas."""
    source = {"connector": "postgresql", "table": "people", "lsn": 1}
    envelope = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_767_323_045_000}
    return {"schema": {"type": "struct", "fields": []}, "payload": envelope} if wrapped else envelope


def person(number, name):
    return {"id": number, "name": name, "other": [1]}


# a snapshot, changes, a deletion with its tombstone, one that has only the key, and a row that comes back
BATCHES = [
    [change("r", None, person(1, "Ada")), change("r", None, person(2, "Bob"), wrapped=True)],
    [change("c", None, person(3, "Cy"), wrapped=True), change("u", person(2, "Bob"), person(2, "Bobby"))],
    [change("d", person(1, "Ada")), None, change("d", {"id": 3}, wrapped=True), None],
    [
        change("c", None, person(4, "Di")),
        change("d", person(4, "Di")),
        None,
        change("c", None, person(3, "Cyd")),
    ],
]
TABLES = [
    [(1, "Ada"), (2, "Bob")],
    [(1, "Ada"), (2, "Bobby"), (3, "Cy")],
    [(2, "Bobby")],
    [(2, "Bobby"), (3, "Cyd")],
]


def mirrored(brokers, sink, read, faults=()):
    """Deliver changes batch by batch, and compare with the table that they are of."""
    topic = brokers.topic(1)
    source = weir.kafka(brokers.servers, topic, COLUMNS, format="debezium")
    app = source.map(lambda row: row, name="people")
    with weir.testing.start(app, servers=2, sink=sink, faults=list(faults)) as query:
        for batch, table in zip(BATCHES, TABLES, strict=True):
            brokers.send(topic, batch, key=b"k")
            query.feed()
            assert sorted(read()) == table
        assert query.pending_faults == []


FAULTS = ("sink-staged:1", "sink-committed:2", "delivery-started:3")


def test_a_table_of_postgres_mirrors_the_one_that_changes(brokers, postgres):
    def read():
        with psycopg.connect(postgres) as database:
            assert database.execute("SELECT * FROM mirrored").description[-1].name == "name"
            return database.execute("SELECT id, name FROM mirrored").fetchall()

    mirrored(brokers, Postgres(postgres, "mirrored", keys=["id"], deleted="debezium_deleted"), read, FAULTS)


def test_a_delta_table_mirrors_the_one_that_changes(brokers, tmp_path):
    def read():
        table = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
        assert table.column_names == ["id", "name"]
        return [tuple(row.values()) for row in table.to_pylist()]

    sink = Delta(str(tmp_path / "delta"), keys=["id"], deleted="debezium_deleted")
    mirrored(brokers, sink, read, FAULTS)


def test_a_topic_gets_messages_without_a_value_for_deletions(brokers, kafka):
    out = kafka.topic(1)
    topic = brokers.topic(1)
    source = weir.kafka(brokers.servers, topic, COLUMNS, format="debezium")
    sink = Kafka(kafka.servers, out, key="id", deleted="debezium_deleted")
    with weir.testing.start(source.map(lambda row: row, name="people"), servers=1, sink=sink) as query:
        for batch in BATCHES:
            brokers.send(topic, batch)
        query.feed()
    assert kafka.values(out).count(None) == 3
    written = weir.kafka(kafka.servers, out, "kafka_key string, name string").map(
        lambda row: row, name="same"
    )
    with weir.testing.start(written, servers=1) as query:
        query.feed()
        last = {row["kafka_key"]: row["name"] for row in query.output("same").to_pylist()}
    assert last == {"1": None, "2": "Bobby", "3": "Cyd", "4": None}


def test_a_lookup_follows_the_table(brokers):
    topic = brokers.topic(1)
    people = weir.kafka(brokers.servers, topic, COLUMNS, format="debezium")
    posts = weir.source("id long, text string", name="posts")
    app = posts.lookup(people, on="id", deleted="debezium_deleted", how="left", name="named")
    with weir.testing.start(app, servers=2) as query:
        for batch, table in zip(BATCHES, TABLES, strict=True):
            brokers.send(topic, batch)
            query.feed({"posts": [{"id": n, "text": "x"} for n in (1, 2, 3, 4)]})
            found = {row["id"]: row["name"] for row in query.output("named").to_pylist()[-4:]}
            assert found == {n: dict(table).get(n) for n in (1, 2, 3, 4)}


def test_what_happened_is_in_columns(brokers):
    topic = brokers.topic(1)
    for batch in BATCHES:
        brokers.send(topic, batch)
    source = weir.kafka(
        brokers.servers, topic, "debezium_op string, debezium_time timestamp", format="debezium"
    )
    kinds = source.keyed("debezium_op", weir.Aggregate(rows="count", last="max(debezium_time)"), name="kinds")
    with weir.testing.start(kinds, servers=2) as query:
        query.feed()
        rows = {row["debezium_op"]: row for row in query.state("kinds").to_pylist()}
    assert {op: row["rows"] for op, row in rows.items()} == {"r": 2, "c": 3, "u": 1, "d": 3}
    assert rows["u"]["last"] == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def test_tombstones_are_no_changes_even_if_nobody_reads_their_columns(brokers):
    topic = brokers.topic(1)
    brokers.send(topic, BATCHES[2])
    source = weir.kafka(brokers.servers, topic, "id long, kafka_topic string", format="debezium")
    with weir.testing.start(source.keyed("kafka_topic", weir.Count(), name="n"), servers=1) as query:
        query.feed()
        assert query.state("n").to_pylist() == [{"kafka_topic": topic, "count": 2}]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (change("t"), "op 't' is no change of a row"),
        (change("d"), "REPLICA IDENTITY"),
        ({"id": 1, "name": "no envelope"}, "op None"),
        (change("c", None, {"id": "x"}), "no debezium of the columns"),
    ],
)
def test_what_is_no_change_is_named_or_diverted(brokers, message, why):
    topic = brokers.topic(1)
    brokers.send(topic, [BATCHES[0][0], None, message])
    source = weir.kafka(brokers.servers, topic, COLUMNS, format="debezium")
    with (
        weir.testing.start(source.keyed("id", weir.Count()), servers=1) as query,
        pytest.raises(SourceError, match=why) as raised,
    ):
        query.feed()
    assert f"{topic}/0, offset 2" in str(raised.value)


def test_mistakes_are_told_before_any_batch_runs(brokers, postgres, tmp_path):
    with pytest.raises(TopologyError, match="comes from the change and is bool"):
        weir.kafka("nowhere", "t", "id long, debezium_deleted string", format="debezium")
    with pytest.raises(TopologyError, match="can only be read"):
        Kafka("nowhere", "t", format="debezium")
    app = weir.source("id long, gone boolean, name string").map(lambda row: row, name="same")
    wrong = [
        (Postgres(postgres, "wrong", keys=["id"], deleted="gonne"), UnknownColumn, "did you mean 'gone'"),
        (Postgres(postgres, "wrong", deleted="gone"), TopologyError, "needs keys"),
        (Delta(str(tmp_path / "d"), keys=["id"], deleted="name"), TopologyError, "is not a boolean column"),
        (Kafka(brokers.servers, brokers.topic(), deleted="gone"), TopologyError, "needs keys"),
    ]
    for sink, error, why in wrong:
        with pytest.raises(error, match=why):
            weir.testing.run(app, [[{"id": 1, "gone": False, "name": "a"}]], servers=1, sink=sink)


def test_rows_of_an_envelope_are_parsed_together():
    schema = pa.schema([("id", pa.int64()), ("debezium_deleted", pa.bool_())])
    values = [None if c is None else msgspec.json.encode(c) for batch in BATCHES for c in batch]
    decoded = Payload("debezium", schema).decode(values)
    assert decoded.failures == []
    assert [values[n] is None for n in decoded.message] == [False] * 9
    assert decoded.rows.column("id").to_pylist() == [1, 2, 3, 2, 1, 3, 4, 4, 3]
