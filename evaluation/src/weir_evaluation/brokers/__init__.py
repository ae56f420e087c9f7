"""Kafka for tests and benchmarks: Apache Kafka itself where its jars are, else brokers that librdkafka mocks."""

from __future__ import annotations

from weir_evaluation.brokers.cluster import Cluster
from weir_evaluation.brokers.kafka import Kafka
from weir_evaluation.brokers.mock import Mock
from weir_evaluation.jars import NoJars

__all__ = ["Cluster", "Kafka", "Mock", "start"]


def start(brokers: int = 1) -> Kafka | Mock:
    """Return brokers for a ``with`` block: real ones wherever they can be had."""
    try:
        return Kafka(brokers)
    except NoJars:
        return Mock(brokers)
