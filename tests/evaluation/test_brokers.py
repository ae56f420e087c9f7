"""Apache Kafka for tests: one broker for many processes, which ends with its run, and brokers that may be killed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from topics import own_kafka
from truth import eventually
from weir_evaluation import jars
from weir_evaluation.brokers.kafka import shared


def test_a_broker_is_shared_and_ends_with_the_process_that_it_is_for(kafka, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        one, two = (shared(tmp_path / "run", run.pid) for _ in range(2))
        assert one.servers == two.servers != kafka.servers
        topic = one.topic(2)
        one.send(topic, [{"n": 1}, {"n": 2}], partition=1)
        assert two.read(topic) == [{"n": 1}, {"n": 2}]
        run.kill()
        run.wait()
        assert eventually(lambda: not (tmp_path / "run").exists())
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": one.servers, "log_level": 0}).list_topics(timeout=1)


def test_a_killed_broker_comes_back_with_what_it_had():
    with own_kafka() as brokers:
        topic = brokers.topic(1)
        brokers.send(topic, [{"n": 1}])
        brokers.kill(1)
        brokers.start(1)
        assert brokers.read(topic) == [{"n": 1}]
    assert not brokers.folder.exists()


def test_where_there_is_no_maven_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(jars.NoJars, match="there is no mvn"):
        jars.fetch("kafka")
    with pytest.raises(jars.NoJars, match="jars of kafka are not here"):
        jars.folder("kafka")
