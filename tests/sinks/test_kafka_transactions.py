"""Transactions at Apache Kafka: drivers and brokers that are really killed, and transactions that take too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest
import sink_app
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

import weir
import weir.testing
from topics import own_kafka
from weir.errors import SinkError
from weir.faults import watching
from weir.messages.topics import Range, Topics
from weir.sinks import Delivery, Kafka

SCRIPT = """
import sys, sink_app
from weir.sinks import Kafka
sink_app.resume(sys.argv[1], [Kafka(sys.argv[2], sys.argv[3], key="place", servers_from=eval(sys.argv[4]))])
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("weir.engine.batch.delivery.FIRST_PAUSE", 0.01)


def delivered(brokers, topic):
    return sorted((row["place"], row["rows"], row["total"]) for row in brokers.read(topic))


def at(point, batch, action):
    """Do something once, when a batch comes to a point."""
    met = []

    def reached(where, number):
        if (where, number) == (point, batch) and not met:
            met.append(number)
            action()

    return watching(reached)


@pytest.mark.parametrize(
    ("servers_from", "faults"),
    [
        (None, ("delivery-started:0", "sink-staged:1", "sink-committed:2", "sink-delivered:2")),
        pytest.param(
            0,
            ("part-staged:1", "part-written:100", "parts-written:2", "sink-staged:3"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_driver_that_is_really_killed_in_its_transactions(kafka, tmp_path, servers_from, faults):
    topic = kafka.topic(3)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "checkpoint"), kafka.servers, topic]
    command.append(repr(servers_from))
    for fault in faults:
        died = subprocess.run(command, env={**os.environ, "WEIR_FAULT": fault}, timeout=120)
        assert died.returncode == -signal.SIGKILL, fault
    subprocess.run(command, check=True, timeout=120)
    assert delivered(kafka, topic) == sink_app.truth()[0]


def end(kafka, topic, isolation):
    """Return the offset behind a partition's last message that such readers may see."""
    where = {TopicPartition(topic, 0): OffsetSpec.latest()}
    [found] = kafka.admin.list_offsets(where, isolation_level=isolation).values()
    return found.result(10).offset


def settled(kafka, topic, beyond=0):
    """Wait until a topic has more messages than so many, all of transactions that have ended; return where it ends."""
    seen = committed = beyond
    while seen == beyond or committed < seen:
        time.sleep(0.05)
        seen = end(kafka, topic, IsolationLevel.READ_UNCOMMITTED)
        committed = end(kafka, topic, IsolationLevel.READ_COMMITTED)
    return seen


def test_a_transaction_that_takes_too_long_is_aborted_and_delivered_anew(kafka, tmp_path):
    topic, checkpoint = kafka.topic(1), str(tmp_path / "checkpoint")
    sink = Kafka(kafka.servers, topic, settings={"transaction.timeout.ms": 1000})
    query = weir.testing.start(sink_app.app(), checkpoint, servers=2, sink=sink)
    query.feed(sink_app.BATCHES[0])
    before = settled(kafka, topic)
    aborted = at("sink-staged", 1, lambda: settled(kafka, topic, beyond=before))
    with aborted, pytest.raises(SinkError, match="[Ff]enced|epoch"):
        query.feed(sink_app.BATCHES[1])
    again = weir.testing.start(sink_app.app(), checkpoint, servers=2, sink=Kafka(kafka.servers, topic))
    for number in range(1, 4):
        again.feed(sink_app.BATCHES[number], number=number)
    assert delivered(kafka, topic) == sink_app.truth()[0]


@pytest.mark.long
@pytest.mark.parametrize("point", ["delivery-started", "sink-staged", "sink-committed"])
def test_the_only_broker_is_killed_in_the_middle_of_a_transaction(point):
    with own_kafka() as brokers:
        topic = brokers.topic(2)

        def bounce():
            brokers.kill(1)
            brokers.start(1)

        with at(point, 1, bounce):
            sink = Kafka(brokers.servers, topic)
            weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink)
        assert delivered(brokers, topic) == sink_app.truth()[0]


@pytest.mark.long
def test_one_of_three_brokers_is_killed_in_the_middle_of_every_transaction():
    with own_kafka(3) as brokers:
        topic = brokers.topic(6)
        sink = Kafka(brokers.servers, topic, key="place")
        query = weir.testing.start(sink_app.app(), servers=2, sink=sink)
        for number, batch in enumerate(sink_app.BATCHES):
            broker = number % 3 + 1
            with at("sink-staged", number, lambda broker=broker: brokers.kill(broker)):
                query.feed(batch)
            brokers.start(broker)
        assert delivered(brokers, topic) == sink_app.truth()[0]


def test_a_part_that_is_there_is_not_sent_again(kafka):
    topic = kafka.topic(1)
    sink = Kafka(kafka.servers, topic, servers_from=0)
    faults = ["part-staged:1", "part-written:101", "parts-written:2", "part-started:301"]
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink, faults=faults)
    assert delivered(kafka, topic) == sink_app.truth()[0]
    everything = Topics(kafka.servers, (topic,), committed=False)
    ranges = [Range(p, *ends) for p, ends in everything.offsets(everything.partitions()).items()]
    written = sum(map(len, everything.read(ranges)))
    aborted = written - len(sink_app.truth()[0])
    assert 0 < aborted < 9  # of the part that died before its commit, and of no other


def test_a_part_of_a_driver_that_was_thought_dead_is_not_sent_beside_ours(kafka):
    """Two drivers deliver one batch: whatever part one has sent, the other leaves out."""
    topic = kafka.topic(2)
    tables = [pa.table({"n": [number]}) for number in range(3)]
    schema = tables[0].schema

    def deliver(sink, again):
        def each(count, task):
            return [task(number) for number in range(count)]

        sink.deliver(Delivery("q", topic, 3, again, schema, 3, 3, tables.__getitem__, each))

    old, new = (Kafka(kafka.servers, topic, servers_from=0) for _ in range(2))
    old.open("q", topic, schema, True)
    with (
        at("part-staged", 301, lambda: deliver(new, True)),
        pytest.raises(SinkError, match="[Ff]enced|epoch"),
    ):
        deliver(old, False)
    assert sorted(row["n"] for row in kafka.read(topic)) == [0, 1, 2]
    deliver(old, True)
    assert sorted(row["n"] for row in kafka.read(topic)) == [0, 1, 2]
