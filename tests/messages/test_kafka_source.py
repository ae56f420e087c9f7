"""Topics as a source: every message once, from its own server, whatever dies, comes late or is broken."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
from zlib import crc32

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
import weir.testing
from support import counts, posts, rows_of
from weir.errors import SourceError, SourceUnavailable, TopologyError
from weir.messages.feed import TopicFeed
from weir.messages.payloads import Payload
from weir.messages.topics import Range, Topics
from weir_evaluation import brokers as kafka_brokers

SCHEMA = "place string, topic string, n long"
FAULTS = ("plan-written", "job-done", "commit-written", "sink-delivered")


def counted(stream: weir.Stream) -> weir.Stream:
    return stream.keyed("place", weir.Count(emit="rows"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )


def fill(brokers, topic, table, partitions=2):
    """Write posts, each place to a partition of its own."""
    rows = table.to_pylist()
    for partition in range(partitions):
        brokers.send(
            topic, [r for r in rows if crc32(r["place"].encode()) % partitions == partition], partition
        )


def check(query, tables):
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_every_message_is_counted_once_through_crashes_scaling_and_restarts(brokers, checkpoint, execution):
    topic, tables = brokers.topic(3), [posts(290, seed) for seed in range(3)]
    app = counted(weir.kafka(brokers.servers, topic, SCHEMA, max_rows_per_batch=150))
    faults = [f"{point}:{batch}" for batch, point in enumerate(FAULTS)] + [
        "step-started:401",
        "plan-written:5",
    ]
    settings = {"routing": weir.Locality(period=2), "execution": execution}
    query = weir.testing.start(app, checkpoint, servers=3, faults=faults, **settings)
    for number, table in enumerate(tables):
        fill(brokers, topic, table, 3)
        query.feed()
        if number == 0:
            query.scale_out(1)
        if number == 1:
            query.restart(servers=2)
    assert query.pending_faults == []
    check(query, tables)
    assert query.progress.batch + 1 == 6  # 290 messages are two batches of 150 or fewer
    assert max(p.rows for p in query.recent_progress) <= 150
    assert query.progress.sources["kafka"]["lag"] == 0
    query.feed()  # a round without messages is an empty batch
    check(query, tables)


def test_windows_over_a_topic_close_when_the_input_is_said_to_end(brokers):
    topic, window = brokers.topic(2), weir.tumbling("at", "1 minute")
    source = weir.kafka(brokers.servers, topic, "k string, at timestamp")
    query = weir.testing.start(source.keyed("k", weir.Count(), name="w", window=window), servers=2)
    brokers.send(topic, [{"k": "a", "at": "1970-01-01T00:00:01Z"}, {"k": "b", "at": "1970-01-01T00:00:02Z"}])
    query.feed()
    assert query.output("w").num_rows == 0
    query.finish()
    assert sorted(query.output("w")["k"].to_pylist()) == ["a", "b"]


def test_partitions_and_the_keys_they_hold_come_together(brokers):
    topic = brokers.topic(6)
    app = weir.kafka(brokers.servers, topic, SCHEMA).keyed("place", weir.Count(), name="places")
    query = weir.testing.start(app, servers=3, routing=weir.Locality(period=1, forecast=None))
    for seed in range(3):
        fill(brokers, topic, posts(600, seed), 6)
        query.feed()
        query.reconfigure(wait=True)
    hop = query.progress.edges["kafka → places"]
    assert hop.locality > 0.85  # by hash it would be a third
    assert len(query.routing_table("kafka")) == 6


def test_a_query_starts_where_it_is_told_and_goes_on_from_its_commit(brokers, checkpoint):
    topic = brokers.topic(1)
    brokers.send(topic, [{"place": "old"}])
    app = weir.kafka(brokers.servers, topic, "place string", start="latest").keyed("place", weir.Count())
    with weir.testing.start(app, checkpoint, servers=2) as query:
        query.feed()
        assert query.progress.rows == 0
    brokers.send(topic, [{"place": "new"}])  # while nobody reads
    with weir.testing.start(app, checkpoint, servers=2) as query:
        query.feed()
        assert query.state("place").to_pylist() == [{"place": "new", "count": 1}]


def test_messages_that_cannot_be_decoded_are_diverted_or_named(brokers):
    topic = brokers.topic(1)
    good = [{"place": f"p{i}", "n": i} for i in range(50)]
    bad = [b"", b"{", b'{"place": 3}', b'{"place":"a"} {"place":"b"}', b"[1]", b"null", b"\xff"]
    brokers.send(topic, [*good[:20], *bad, *good[20:]])
    source = {
        "bootstrap_servers": brokers.servers,
        "topic": topic,
        "schema": "place string, n long, kafka_offset long",
    }
    counts = weir.kafka(**source, on_error="divert").keyed("place", weir.Aggregate(at="max(kafka_offset)"))
    with weir.testing.start(counts, servers=2, dead_letters=lambda rows, batch: None) as query:
        query.feed()
        places = {row["place"]: row["at"] for row in query.state("place").to_pylist()}
        assert places == {f"p{i}": i if i < 20 else i + len(bad) for i in range(50)}
        assert query.progress.operators["kafka"].diverted == len(bad)
        letters = query.dead_letters.to_pylist()
    assert [json.loads(row["row"])["offset"] for row in letters] == list(range(20, 20 + len(bad)))
    assert letters[1]["key"] == f"{topic}/0, offset 21"
    with (
        weir.testing.start(weir.kafka(**source).keyed("place", weir.Count()), servers=2) as query,
        pytest.raises(SourceError, match=f"{topic}/0, offset 20: no json"),
    ):
        query.feed()


def test_keys_times_and_places_of_messages_can_be_columns(brokers):
    topic = brokers.topic(2)
    brokers.send(topic, [{"n": 1}, None], partition=1, key=b"k")
    columns = "n long, kafka_key string, kafka_timestamp timestamp, kafka_topic string, kafka_partition int"
    app = weir.kafka(brokers.servers, topic, columns).map(lambda row: row, name="same")
    query = weir.testing.start(app, servers=1)
    query.feed()
    rows = query.output("same").to_pylist()
    assert [row["n"] for row in rows] == [1, None]  # a message without a value is a row of nulls
    assert {(row["kafka_key"], row["kafka_topic"], row["kafka_partition"]) for row in rows} == {
        ("k", topic, 1)
    }
    assert abs(rows[0]["kafka_timestamp"] - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)


def test_avro_and_arrow_payloads(brokers, tmp_path):
    file = tmp_path / "post.avsc"
    fields = [{"name": "place", "type": "string"}, {"name": "n", "type": ["null", "long"]}]
    file.write_text(json.dumps({"type": "record", "name": "Post", "fields": fields}))
    rows = [{"place": "FR", "n": 1}, {"place": "US", "n": None}, {"place": "FR", "n": 4}]
    schema = pa.schema([("place", pa.string()), ("n", pa.int64())])
    for format, messages in (("avro", 3), ("confluent-avro", 3), ("arrow", 1)):
        payload = Payload(format.removeprefix("confluent-"), schema, file.read_text())
        sent = list(payload.encode(pa.RecordBatch.from_pylist(rows, schema)))
        assert len(sent) == messages
        if format == "confluent-avro":  # without a registry, all of the schema that is given
            sent = [bytes([0, 0, 0, 0, 9]) + datum for datum in sent]
        topic = brokers.topic(1)
        brokers.send(topic, sent)
        app = weir.kafka(brokers.servers, topic, schema, format=format, avro=file)
        query = weir.testing.start(app.keyed("place", weir.Aggregate(total="sum(n)")), servers=2)
        query.feed()
        assert rows_of(query.state("place")) == [("FR", 5), ("US", None)]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(file.read_text()), rows[0])
    assert next(
        iter(Payload("avro", schema, file.read_text()).encode(pa.RecordBatch.from_pylist(rows, schema)))
    ) == (out.getvalue())


def test_messages_that_the_brokers_have_deleted_stop_the_query_or_are_skipped(brokers, checkpoint):
    topic = brokers.topic(1)
    brokers.send(topic, [{"place": "first"}])
    source = {"bootstrap_servers": brokers.servers, "topic": topic, "schema": "place string"}
    with weir.testing.start(
        weir.kafka(**source).keyed("place", weir.Count()), checkpoint, servers=2
    ) as query:
        query.feed()
        brokers.send(topic, [{"place": "x" * 100_000}] * 80)  # mock brokers keep 5 MB
        if brokers.real:
            brokers.expire(topic, before=40)
        (low, high) = Topics(brokers.servers, (topic,)).offsets([f"{topic}/0"])[f"{topic}/0"]
        assert 1 < low < high == 81
        with pytest.raises(SourceError, match="have expired"):
            query.feed()
    skipping = weir.kafka(**source, on_expired="skip").keyed("place", weir.Count())
    with weir.testing.start(skipping, checkpoint, servers=2) as query:
        query.feed()
        assert query.progress.sources["kafka"]["skipped"] == low - 1
        assert rows_of(query.state("place")) == [("first", 1), ("x" * 100_000, 81 - low)]


def test_a_broker_that_is_away_is_waited_for(caplog, monkeypatch):
    monkeypatch.setattr("weir.engine.batch.delivery.FIRST_PAUSE", 0.05)
    monkeypatch.setattr("weir.messages.topics.CALL", 0.3)
    with kafka_brokers.start() as own:
        topic = own.topic(1)
        own.send(topic, [{"place": "FR"}])
        app = weir.kafka(own.servers, topic, "place string").keyed("place", weir.Count())
        with weir.testing.start(app, servers=1) as query:
            query.feed()
            own.kill(1)
            real = query._driver.retry._say

            def repair(message):
                real(message)
                if message:
                    assert "waiting for the sources" in query.status["message"]
                    own.start(1)

            monkeypatch.setattr(query._driver.retry, "_say", repair)
            query.feed()
            assert query.status["message"] == "waiting for data"
    assert "the sources is back" in caplog.text


def test_batches_are_as_large_as_their_time_allows(brokers, monkeypatch):
    topic = brokers.topic(2)
    for partition in range(2):
        brokers.send(topic, [{"place": f"p{i % 7}"} for i in range(9_000)], partition)
    app = weir.kafka(brokers.servers, topic, "place string", max_rows_per_batch=8_000).keyed(
        "place", weir.Count()
    )
    query = weir.testing.start(app, servers=2, target_batch="2 s")
    real = query._driver.source_batching.reached  # a machine that takes a second for two thousand rows
    taken = query._driver.source_batching._taken
    monkeypatch.setattr(
        query._driver.source_batching,
        "reached",
        lambda positions, _: real(positions, taken["kafka (paths)"] / 2000),
    )
    query.feed()
    rows = [p.rows for p in query.recent_progress]
    assert rows == [8_000, 4_000, 4_000, 2_000]  # the first one takes twice as long as it should
    assert [p.sources["kafka"]["lag"] for p in query.recent_progress] == [10_000, 6_000, 2_000, 0]


# ---------------------------------------------------------------------- what the mock brokers can't do


class Shelf:
    """Topics whose reach is set by hand."""

    def __init__(self, **reach):
        self.reach = reach

    def partitions(self):
        return list(self.reach)

    def ids(self, names):
        return {}

    def offsets(self, partitions, timestamp=None):
        if timestamp is not None:  # one message per ms
            return {p: (max(low, timestamp), high) for p, (low, high) in self.reach.items()}
        return self.reach


def test_new_partitions_are_read_from_their_first_message():
    shelf = Shelf(**{"t/0": (0, 10)})
    feed = TopicFeed(shelf, "latest")
    assert feed.begin(None, 0) == {"t/0": 10}
    shelf.reach = {"t/0": (0, 12), "t/1": (0, 3)}
    assert feed.begin({"t/0": 10}, 1) == {"t/0": 10, "t/1": 0}
    assert feed.cut({"t/0": 10, "t/1": 0}, None)[1] == {"t/0": 12, "t/1": 3}


def test_a_time_to_start_from_is_looked_up_by_partition():
    feed = TopicFeed(Shelf(**{"t/0": (0, 10), "t/1": (5, 6)}), 7)
    assert feed.begin(None, 0) == {"t/0": 7, "t/1": 6}


def test_messages_that_have_expired_are_an_error_or_skipped_and_counted():
    shelf = Shelf(**{"t/0": (40, 100)})
    with pytest.raises(SourceError, match="on_expired"):
        TopicFeed(shelf).begin({"t/0": 30}, 1)
    feed = TopicFeed(shelf, expired="skip")
    assert feed.begin({"t/0": 30}, 1) == {"t/0": 40}
    assert feed.about({"t/0": 40}) == {"lag": 60, "partitions": 1, "skipped": 10}


def test_a_topic_that_was_made_anew_is_refused():
    with pytest.raises(SourceError, match="made anew"):
        TopicFeed(Shelf(**{"t/0": (0, 5)})).begin({"t/0": 30}, 1)
    with pytest.raises(SourceError, match="is gone"):
        TopicFeed(Shelf(**{"t/0": (0, 5)})).begin({"t/0": 3, "t/1": 3}, 1)


@given(
    st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1),
    st.integers(1, 60),
)
def test_batches_cover_every_offset_once(partitions, most):
    reach = {f"t/{p}": (low, low + size) for p, (low, size) in partitions.items()}
    feed = TopicFeed(Shelf(**reach), most=most)
    position, seen = feed.begin(None, 0), {p: [] for p in reach}
    while feed.size(position):
        columns, position = feed.cut(position, most)
        taken = list(zip(*columns.values(), strict=True))
        assert 0 < sum(end - start for _, start, end in taken) <= most + len(reach)
        for partition, start, end in taken:
            seen[partition] += range(start, end)
    assert seen == {p: list(range(*ends)) for p, ends in reach.items()}


class Log:
    """A consumer of a partition with gaps, as compaction and transactions leave them."""

    def __init__(self, offsets, end):
        self.offsets, self.end = offsets, end

    def __call__(self, reset="error"):
        return self

    def assign(self, places):
        (self.at,) = [p.offset for p in places]
        self.ended = False

    def consume(self, count, timeout):
        due = [o for o in self.offsets if o >= self.at][:count]
        if due:
            self.at = due[-1] + 1
            return [Sent(o) for o in due]
        self.at = self.end
        return [Sent(self.end, eof=True)]

    def pause(self, places):
        pass

    def resume(self, places):
        pass

    def unassign(self):
        pass


class Sent:
    def __init__(self, offset, eof=False):
        self._offset, self._eof = offset, eof

    def topic(self):
        return "t"

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def error(self):
        from confluent_kafka import KafkaError

        return KafkaError(KafkaError._PARTITION_EOF) if self._eof else None


@settings(max_examples=60)
@given(st.sets(st.integers(0, 40)), st.integers(0, 40), st.integers(0, 45), st.integers(0, 5))
def test_a_range_ends_also_where_offsets_have_no_message(offsets, start, end, behind):
    topics = Topics("nowhere", ("t",))
    log = Log(sorted(offsets), max(end, *offsets, 0) + behind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Topics, "_client", lambda self, reset="error": log)
        read = [m.offset() for chunk in topics.read([Range("t/0", start, end)]) for m in chunk]
    assert read == [o for o in sorted(offsets) if start <= o < end]


def test_a_topic_that_is_not_there_is_an_error_and_not_waited_for(brokers):
    app = weir.kafka(brokers.servers, "nonsense", "n long").keyed("n", weir.Count())
    with weir.testing.start(app, servers=1) as query, pytest.raises(SourceError, match="'nonsense'"):
        query.feed()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"start": "yesterday"}, "earliest"),
        ({"format": "jsom"}, "did you mean 'json'"),
        ({"format": "avro"}, "needs avro="),
        ({"on_expired": "ignore"}, '"fail" or "skip"'),
        ({"max_rows_per_batch": 0}, "1 or more"),
        ({"schema": "kafka_offset string"}, "comes from the message"),
        ({"topic": []}, "a topic's name"),
        ({"topic": "^posts-("}, "no pattern"),
    ],
)
def test_mistakes_are_told_when_the_source_is_declared(wrong, why):
    with pytest.raises(TopologyError, match=why):
        weir.kafka(**{"bootstrap_servers": "nowhere", "topic": "t", "schema": "n long", **wrong})


def test_event_time_stands_still_while_brokers_are_away_or_have_more(brokers, monkeypatch):
    topic, began = brokers.topic(1), dt.datetime(2026, 1, 1)
    now = [int(began.replace(tzinfo=dt.UTC).timestamp() * 1e6)]
    rows = weir.kafka(brokers.servers, topic, "k string, t timestamp")
    app = rows.event_time("t", lateness="5 s", idle="60 s").keyed(
        "k", weir.Count(), name="w", window=weir.tumbling("t", "10 s")
    )

    def send(first, last):
        times = [began + dt.timedelta(seconds=i) for i in range(first, last)]
        brokers.send(topic, [{"k": "a", "t": t.isoformat()} for t in times])

    with weir.testing.start(app, servers=2, clock=lambda: now[0]) as query:
        send(0, 30)
        query.feed()
        query.feed()
        now[0] += 600_000_000

        def away(*_):
            raise SourceUnavailable("no broker answers")

        with monkeypatch.context() as patch:
            patch.setattr(Topics, "offsets", away)
            assert not query.tick()
        send(30, 60)
        assert not query.tick()
        query.feed()
        now[0] += 600_000_000
        assert query.tick()  # quiet indeed
        query.finish()
        assert query.late("w").num_rows == 0
        assert sum(row["count"] for row in query.output("w").to_pylist()) == 60


def test_the_process_that_asks_for_offsets_ends_quietly_when_spark_has_gone(monkeypatch):
    """PySpark stops the reader when its connection breaks, and then prints how writing to it fails, too."""
    from weir.spark.sources import OffsetsOnlyReader

    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    for error in (ConnectionResetError(), EOFError(), ValueError()):
        with contextlib.suppress(type(error)):
            try:
                raise error
            finally:
                OffsetsOnlyReader(None).stop()
    OffsetsOnlyReader(None).stop()
    assert ended == [0, 0]
