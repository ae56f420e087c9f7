"""Whatever dies in a delivery, and whoever does not answer: each sink has each row once."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import sink_app
from pyiceberg.catalog import load_catalog
from pyspark import cloudpickle

import s3_server
import weir
import weir.testing
from weir.engine.local.in_process import InProcessRunner
from weir.errors import CheckpointMismatch, EngineError, SinkError, SinkUnavailable, UnknownColumn
from weir.faults import watching
from weir.options import Options
from weir.sinks import Delta, Iceberg, Kafka, Parquet, Postgres, Sink
from weir.sinks.postgres import _Loading

POINTS = ("delivery-started", "sink-staged", "sink-committed", "commit-written")
IN_PARTS = ("part-started", "part-staged", "part-written")
APP = Path(sink_app.__file__)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("weir.engine.batch.delivery.FIRST_PAUSE", 0.01)


class Target:
    """A sink, and how to read what it has."""

    def __init__(self, kind, tmp_path, request, monkeypatch):
        self.place = str(tmp_path / "out")
        self.kind, _, by_servers = kind.partition("-")
        self.options = {}
        if by_servers:
            self.options["servers_from"] = 0
            each = InProcessRunner.each

            def sent(runner, count, task):  # as to an executor
                return each(runner, count, cloudpickle.loads(cloudpickle.dumps(task)))

            monkeypatch.setattr(InProcessRunner, "each", sent)
            monkeypatch.setattr("weir.sinks.iceberg.TARGET_BYTES", 0)
            if kind.startswith("delta"):
                self.options["target_file_size"] = 300
            monkeypatch.setattr("weir.sinks.base.Delivery.batches", None)  # nothing passes through the driver
        kind = self.kind
        if kind == "kafka":
            self.results = request.getfixturevalue("results")
            self.topic = self.results.topic()
        if kind == "postgres":
            self.place = request.getfixturevalue("postgres")
            self.table = f"rows_{os.getpid()}_{abs(hash(tmp_path))}"

    @property
    def _catalog(self):
        return {"uri": f"sqlite:///{self.place}.db", "warehouse": f"file://{self.place}"}

    def sink(self, keys=()):
        match self.kind:
            case "parquet":
                return Parquet(self.place)
            case "delta":
                return Delta(self.place, keys=keys, **self.options)
            case "iceberg":
                return Iceberg("weir.rows", self._catalog, keys=keys, **self.options)
            case "postgres":
                return Postgres(self.place, self.table, keys=keys, **self.options)
            case _:
                return Kafka(self.results.servers, self.topic, key="place", **self.options)

    def rows(self):
        match self.kind:
            case "parquet":
                rows = pq.read_table(self.place).to_pylist()
            case "delta":
                rows = deltalake.DeltaTable(self.place).to_pyarrow_table().to_pylist()
            case "iceberg":
                rows = (
                    load_catalog("weir", **self._catalog)
                    .load_table("weir.rows")
                    .scan()
                    .to_arrow()
                    .to_pylist()
                )
            case "postgres":
                with psycopg.connect(self.place) as database:
                    return sorted(database.execute(f"SELECT place, rows, total FROM {self.table}").fetchall())
            case _:
                rows = self.results.rows(self.topic)
        return sorted((row["place"], row["rows"], row["total"]) for row in rows)


@pytest.fixture
def target(request, tmp_path, monkeypatch):
    return Target(request.param, tmp_path, request, monkeypatch)


BY_SERVERS = [f"{kind}-by-servers" for kind in ("delta", "iceberg", "postgres", "kafka")]
PARTED = pytest.mark.parametrize("target", ["parquet", *BY_SERVERS], indirect=True)
ALL = pytest.mark.parametrize(
    "target", ["parquet", "delta", "iceberg", "postgres", "kafka", *BY_SERVERS], indirect=True
)


@ALL
def test_killed_between_any_two_steps_of_a_delivery(target):
    faults = [f"{point}:{batch}" for batch, point in enumerate(POINTS)]
    faults += [f"{point}:{(batch + 2) % 4}" for batch, point in enumerate(POINTS)]
    query = weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink(), faults=faults)
    assert query.pending_faults == []
    assert target.rows() == sink_app.truth()[0]


@PARTED
def test_tasks_that_fail_and_a_driver_that_dies_when_parts_are_there(target):
    faults = [f"{point}:{100 * batch + part}" for batch, point in enumerate(IN_PARTS) for part in (0, 1)]
    faults += ["parts-written:2", "parts-written:3"]
    query = weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink(), faults=faults)
    assert query.pending_faults == []
    assert target.rows() == sink_app.truth()[0]


@PARTED
@pytest.mark.parametrize("point", IN_PARTS)
def test_a_driver_that_dies_between_two_parts(target, point):
    died = []

    def die(where, number):
        if where == point and number in (1, 100, 301) and number not in died:
            died.append(number)
            raise weir.testing.Crash

    with watching(die):
        weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink())
    assert died == [1, 100, 301]
    assert target.rows() == sink_app.truth()[0]


@pytest.mark.parametrize("target", [kind.partition("-")[0] for kind in BY_SERVERS], indirect=True)
def test_settings_that_change_in_the_middle_of_a_delivery(target):
    """Parts are there when the driver is to write the batch itself, or it has begun to when servers are to."""

    def die(where, number):
        if (where, number) in deaths:
            deaths.remove((where, number))
            use(None if where in ("part-written", "parts-written") else 0)
            raise weir.testing.Crash

    def use(rows):
        target.options["servers_from"] = rows
        query._options = Options.of(query._options, {"sink": target.sink()})

    deaths = [("part-written", 100), ("sink-staged", 2), ("parts-written", 3)]
    target.options["servers_from"] = 0
    query = weir.testing.start(sink_app.app(), servers=2, sink=target.sink())
    with query, watching(die):
        for batch in sink_app.BATCHES:
            query.feed(batch)
    assert not deaths
    assert target.rows() == sink_app.truth()[0]


@pytest.mark.parametrize(
    "target", ["delta", "iceberg", "postgres", "postgres-by-servers", "delta-by-servers"], indirect=True
)
def test_rows_are_replaced_by_key(target):
    faults = ["sink-staged:1", "sink-committed:2"]
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink(["place"]), faults=faults)
    assert target.rows() == sorted((place, *values) for place, values in sink_app.truth()[1].items())


@ALL
def test_a_second_run_adds_its_rows_or_is_refused(target):
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink())
    if target.kind == "parquet":
        with pytest.raises(CheckpointMismatch, match="shared=True"):
            weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink())
        assert target.rows() == sink_app.truth()[0]
        shared = target.place + "-shared"
        for _ in range(2):
            sink = Parquet(shared, shared=True)
            weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink, faults=["sink-staged:1"])
        target.place = shared
    else:
        weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=target.sink())
    assert target.rows() == sorted(2 * sink_app.truth()[0])


def test_a_process_that_is_really_killed(postgres, tmp_path):
    command = [sys.executable, str(APP), str(tmp_path / "checkpoint"), str(tmp_path), postgres]
    for fault in ("sink-staged:1", "sink-committed:2"):
        died = subprocess.run(command, env={**os.environ, "WEIR_FAULT": fault}, timeout=120)
        assert died.returncode == -signal.SIGKILL, fault
    subprocess.run(command, check=True, timeout=120)
    updates, last = sink_app.truth()
    delta = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    for table in (pq.read_table(tmp_path / "parquet"), delta):
        rows = table.select(["place", "rows", "total"]).to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == updates
    with psycopg.connect(postgres) as database:
        assert sorted(database.execute("SELECT place, rows, total FROM killed_rows")) == updates
        places = {p: (n, t) for p, n, t in database.execute("SELECT * FROM killed_places")}
    assert places == last


class Away(Sink):
    """A sink that can't be reached for some tries, or for ever."""

    def __init__(self, tries, error=SinkUnavailable):
        self.tries, self.error, self.seen = tries, error, []

    def deliver(self, delivery):
        self.seen.append((delivery.batch, delivery.again, delivery.rows))
        if self.tries:
            self.tries -= 1
            raise self.error("the lights are out")


def test_a_sink_that_is_away_is_waited_for_and_the_query_says_so(caplog):
    sink = Away(tries=3)
    with caplog.at_level(logging.WARNING, "weir"):
        query = weir.testing.run(sink_app.app(), sink_app.BATCHES[:2], servers=2, sink={"places": [sink]})
    assert [(batch, again) for batch, again, _ in sink.seen] == [(0, False), *[(0, True)] * 3, (1, False)]
    waits = query.recent_progress[0].sink_waits["places: Away"]
    assert waits["tries"] == 3
    assert "the lights are out" in waits["why"]
    assert "waiting for the sink of 'places': the lights are out" in caplog.text
    assert "sink_waits" not in query.recent_progress[1].to_dict()


def test_a_query_that_waits_can_be_stopped_and_owes_the_batch(checkpoint, monkeypatch):
    sink = Away(tries=1000)
    query = weir.testing.start(sink_app.app(), checkpoint, servers=2, sink=sink)

    def stop(message):
        if "tried 2" in message:
            assert "the lights are out" in query.status["message"]
            query._driver.retry.stop()

    real = query._driver._say
    monkeypatch.setattr(query._driver.retry, "_say", lambda message: (real(message), stop(message)))
    with pytest.raises(EngineError, match="Nothing is lost"):
        query.feed(sink_app.BATCHES[0])
    sink.tries = 0
    again = weir.testing.start(sink_app.app(), checkpoint, servers=2, sink=sink)
    again.feed(sink_app.BATCHES[0], number=0)
    assert sink.seen[-1][:2] == (0, True)


def test_an_error_that_will_not_pass_stops_the_query(checkpoint):
    sink = Away(tries=1, error=SinkError)
    with pytest.raises(SinkError, match="lights"):
        weir.testing.run(sink_app.app(), sink_app.BATCHES, checkpoint, servers=2, sink=sink)
    assert len(sink.seen) == 1


def test_a_commit_whose_answer_is_lost_is_found_by_its_mark(results):
    topic, results.lost_answers = results.topic(), 2
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=Kafka(results.servers, topic))
    assert results.lost_answers == 0
    rows = sorted((row["place"], row["rows"], row["total"]) for row in results.rows(topic))
    assert rows == sink_app.truth()[0]
    assert results.written(topic) == len(rows)  # nothing was written twice, not even in vain


@pytest.mark.parametrize("target", ["iceberg"], indirect=True)
def test_a_driver_that_was_thought_dead_cannot_commit_to_iceberg(target):
    old, new = target.sink(), target.sink()
    delivery = _delivery("q", "places", {"place": ["FR"], "rows": [1], "total": [2]})
    old.open("q", "places", delivery.schema, True)

    def deliver_meanwhile(point, batch):
        if point == "sink-staged" and not met:
            met.append(batch)
            new.deliver(delivery)

    met = []
    with watching(deliver_meanwhile), pytest.raises(SinkUnavailable, match="CommitFailed"):
        old.deliver(delivery)
    old.deliver(delivery)  # it comes again, and finds the mark
    assert target.rows() == [("FR", 1, 2)]


def test_a_driver_that_was_thought_dead_cannot_deliver_to_kafka(results):
    topic = results.topic()
    old, new = (Kafka(results.servers, topic) for _ in range(2))
    old.open("q", "places", _delivery("q", "places").schema, True)
    delivery, met = _delivery("q", "places"), []

    def deliver_meanwhile(point, batch):
        if point == "sink-staged" and not met:
            met.append(batch)
            new.deliver(delivery)

    with watching(deliver_meanwhile), pytest.raises(SinkError, match="[Ff]enced"):
        old.deliver(delivery)
    assert results.rows(topic) == [{"n": 1}]


@pytest.mark.parametrize("fault", ["sink-committed:1", "sink-delivered:1"])
def test_two_topics_of_one_operator_have_marks_of_their_own(fault, results):
    topics = [results.topic() for _ in range(2)]
    sinks = [Kafka(results.servers, topic) for topic in topics]
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sinks, faults=[fault])
    for topic in topics:
        rows = sorted((row["place"], row["rows"], row["total"]) for row in results.rows(topic))
        assert rows == sink_app.truth()[0]


@pytest.mark.parametrize("fault", ["sink-committed:1", "sink-delivered:1"])
def test_two_operators_share_a_folder_of_parquet_files(fault, tmp_path):
    source = weir.source("k string")
    app = weir.Application(*(source.keyed("k", weir.Count(), name=name) for name in ("a", "b")))
    sinks = {name: Parquet(str(tmp_path / "out")) for name in ("a", "b")}
    weir.testing.run(app, [[{"k": "x"}, {"k": "y"}]] * 3, servers=2, sink=sinks, faults=[fault])
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["k"], row["count"]) for row in rows) == sorted(
        2 * [(key, count) for key in "xy" for count in (1, 2, 3)]
    )


def test_of_two_queries_that_start_with_one_folder_the_second_to_write_is_refused(tmp_path):
    def query():
        return weir.testing.start(sink_app.app(), servers=2, sink=Parquet(str(tmp_path / "out")))

    with query() as first, query() as second:
        for one in (first, second):
            one._driver.start(one._rows({}))  # the folder is looked at, and empty
        first.feed(sink_app.BATCHES[0])
        with pytest.raises(CheckpointMismatch, match="has batches of another checkpoint"):
            second.feed(sink_app.BATCHES[1])
        assert pq.read_table(tmp_path / "out")["rows"].to_pylist() == first.output()["rows"].to_pylist()


def _delivery(query, operator, rows=None):
    from weir.sinks import Delivery

    table = pa.table(rows or {"n": [1]})
    return Delivery(query, operator, 3, False, table.schema, 1, 1, lambda part: table, lambda n, task: [])


def test_rows_arrive_on_kafka_brokers(brokers):
    topic = brokers.topic(3)
    sink = Kafka(brokers.servers, topic, key="place")
    faults = ["delivery-started:0", "sink-committed:1", "sink-delivered:2"]
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink, faults=faults)
    rows = sorted((row["place"], row["rows"], row["total"]) for row in brokers.read(topic))
    assert rows == sink_app.truth()[0]


def test_mistakes_are_told_before_any_batch_runs(postgres, tmp_path, brokers):
    for sink in (
        Postgres(postgres, "typos", keys=["plaace"]),
        Delta(str(tmp_path / "x"), keys=["plaace"]),
        Iceberg("weir.x", {"uri": f"sqlite:///{tmp_path}/x.db"}, keys=["plaace"]),
        Kafka(brokers.servers, brokers.topic(), key="plaace"),
    ):
        with pytest.raises(UnknownColumn, match="did you mean 'place'"):
            weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink)
    nobody = postgres.replace("/postgres?", "/nonsense?")
    with pytest.raises(SinkError, match="does not exist"):
        weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=Postgres(nobody, "t"))
    with pytest.raises(weir.WeirError, match="or a list of these"):
        weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=[Postgres])


@pytest.mark.parametrize("servers_from", [10, 0])
def test_every_type_arrives_in_postgres(postgres, servers_from):
    from decimal import Decimal

    schema = "k string, s string, b binary, f double, d date, t timestamp, x decimal(10,2), l array<string>, o boolean"
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    rows = [
        {"k": "full", "s": 'a "b",\n', "b": b"\x00\xff", "f": 1e-300, "d": at.date(), "t": at}
        | {"x": Decimal("12.30"), "l": ["a", None], "o": True},
        {"k": "empty", "s": "", "b": b"", "f": float("inf"), "l": []},
        {"k": "null"},
    ]
    app = weir.source(schema).map(lambda row: row, name="same")
    weir.testing.run(
        app,
        [rows],
        servers=2,
        sink=Postgres(postgres, f"public.types{servers_from}", servers_from=servers_from),
    )
    with psycopg.connect(postgres) as database:
        names = [c.split()[0] for c in schema.split(", ")]
        found = {
            row[0]: dict(zip(names, row, strict=True))
            for row in database.execute(f"SELECT * FROM types{servers_from}")
        }
    for row in rows:
        assert found[row["k"]] == {**dict.fromkeys(names), **row}


def test_large_batches_of_delta_are_written_by_servers_and_small_ones_by_the_driver(tmp_path):
    app = weir.source("k string, n long, s array<string>").map(lambda row: row, name="same")
    rows = [{"k": f"k{i}", "n": i, "s": ["x"]} for i in range(20)] + [{"k": "x" * 40}]
    sink = Delta(str(tmp_path / "out"), servers_from=10, target_file_size=500)
    weir.testing.run(app, [rows, rows[:3], rows], servers=3, sink=sink)
    table = deltalake.DeltaTable(str(tmp_path / "out"))
    found = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["k"])
    everything = [{"k": None, "n": None, "s": None, **row} for row in [*rows, *rows[:3], *rows]]
    assert found == sorted(everything, key=lambda row: row["k"])
    written = [
        re.search(r"-[0-9a-f]{32}-[0-9a-f]{8}-(\d+)-[-0-9a-f]{36}\.parquet$", uri)
        for uri in table.file_uris()
    ]
    by_servers = Counter(match[1] for match in written if match)
    assert set(by_servers) == {"0", "2"}
    assert min(by_servers.values()) > 1
    assert written.count(None) == 1
    added = pa.table(table.get_add_actions(flatten=True))
    assert sum(added["num_records"].to_pylist()) == len(everything)
    skipped = table.to_pyarrow_dataset().filter(pc.field("n") > 18).to_table()
    assert skipped["n"].to_pylist() == [19, 19]


def test_delta_tables_with_rules_of_their_own_are_written_by_the_driver(tmp_path):
    """Files that servers add would bypass them."""
    path = str(tmp_path / "out")
    deltalake.write_deltalake(path, pa.table({"n": pa.array([1], pa.int64())}))
    deltalake.DeltaTable(path).alter.add_constraint({"small": "n < 100"})
    app = weir.source("n long").map(lambda row: row, name="same")
    weir.testing.run(app, [[{"n": 2}]], servers=2, sink=Delta(path, servers_from=0))
    with pytest.raises(SinkError):
        weir.testing.run(app, [[{"n": 200}]], servers=2, sink=Delta(path, servers_from=0))
    assert sorted(deltalake.DeltaTable(path).to_pyarrow_table()["n"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("servers_from", [None, 0])
def test_delta_tables_of_partitions_that_get_new_columns(tmp_path, servers_from):
    path = str(tmp_path / "out")
    rows = [
        {"k": key, "d": dt.date(2026, 1, day), "b": flag, "n": 10 * day}
        for key in ("x", "a/b é%20=1", None)
        for day, flag in ((1, True), (2, None))
    ]
    app = weir.source("k string, d date, b boolean, n long").map(lambda row: row, name="same")
    sink = Delta(path, partition_by=["k", "d", "b"], servers_from=servers_from)
    weir.testing.run(app, [rows, rows], servers=2, sink=sink)
    more = weir.source("k string, d date, b boolean, extra string").map(lambda row: row, name="same")
    wider = [{"k": "x", "d": dt.date(2026, 1, 3), "b": False, "extra": "new"}]
    with pytest.raises(SinkError):
        weir.testing.run(more, [wider], servers=2, sink=Delta(path, servers_from=servers_from))
    sink = Delta(path, merge_schema=True, partition_by=["k", "d", "b"], servers_from=servers_from)
    weir.testing.run(more, [wider], servers=2, sink=sink, faults=["sink-staged:0"])
    table = deltalake.DeltaTable(path)
    everything = [{"n": None, "extra": None, **row} for row in [*rows, *rows, *wider]]
    by_all = lambda row: str(sorted(row.items()))  # noqa: E731
    assert sorted(table.to_pyarrow_table().to_pylist(), key=by_all) == sorted(everything, key=by_all)
    assert table.metadata().partition_columns == ["k", "d", "b"]
    kept = table.to_pyarrow_table(filters=[("k", "=", "a/b é%20=1"), ("d", "=", dt.date(2026, 1, 2))])
    assert kept["n"].to_pylist() == [20, 20]


@pytest.fixture(scope="module")
def s3():
    with s3_server.running() as endpoint:
        yield endpoint


@pytest.mark.parametrize("keys", [(), ("place",)])
def test_delta_tables_in_an_object_store_are_written_by_servers(s3, keys, monkeypatch):
    monkeypatch.setattr("weir.sinks.base.Delivery.batches", None)
    bucket = f"tables-{len(keys)}"
    s3_server.create_bucket(s3, bucket)
    path = f"s3://{bucket}/tables/out"
    options = {f"aws_{name}": value for name, value in s3_server.KEYS.items()}
    options |= {"aws_endpoint": s3, "aws_allow_http": "true"}
    sink = Delta(path, keys=keys, storage_options=options, servers_from=0, target_file_size=1000)
    faults = ["part-written:100", "parts-written:2", "sink-committed:3"]
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink, faults=faults)
    rows = deltalake.DeltaTable(path, storage_options=options).to_pyarrow_table().to_pylist()
    updates, last = sink_app.truth()
    truth = sorted((place, *values) for place, values in last.items()) if keys else updates
    assert sorted((row["place"], row["rows"], row["total"]) for row in rows) == truth


def test_files_of_delta_have_about_the_size_that_is_asked_for(tmp_path):
    app = weir.source("k string, n long").map(lambda row: row, name="same")
    rows = [{"k": f"{i:0100d}", "n": i} for i in range(2000)]
    for size, files in ((1 << 20, 1), (60_000, 4)):
        sink = Delta(str(tmp_path / str(size)), servers_from=0, target_file_size=size)
        weir.testing.run(app, [rows], servers=8, sink=sink)
        table = deltalake.DeltaTable(sink.path)
        assert table.to_pyarrow_table().num_rows == 2000
        assert len(table.file_uris()) == files


def _part_tables(postgres):
    with psycopg.connect(postgres) as database:
        found = database.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'weir\\_part\\_%'"
        )
        return [name for (name,) in found]


def test_parts_that_are_there_are_not_copied_again_and_none_is_left_behind(postgres, monkeypatch):
    copied = []
    real = _Loading._copy
    monkeypatch.setattr(
        _Loading, "_copy", lambda self, t, into, *rest: copied.append(into) or real(self, t, into, *rest)
    )
    faults = ["part-written:100", "parts-written:2", "part-staged:300"]
    sink = Postgres(postgres, "parts_once", servers_from=0)
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink, faults=faults)
    twice = [name for name, times in Counter(copied).items() if times > 1]
    assert [re.search(r"_3_0_", name) is not None for name in twice] == [True]  # it was rolled back
    assert _part_tables(postgres) == []
    query = weir.testing.start(
        sink_app.app(), servers=2, sink=Postgres(postgres, "parts_left", servers_from=0)
    )
    with watching(_raising("part-written", 1)), pytest.raises(RuntimeError):
        query.feed(sink_app.BATCHES[0])
    assert len(_part_tables(postgres)) == 2
    query.restart(sink=Postgres(postgres, "parts_left", servers_from=None))
    query.feed(sink_app.BATCHES[0], number=0)
    assert _part_tables(postgres) == []


def _raising(point, number):
    def watcher(where, at):
        if (where, at) == (point, number):
            raise RuntimeError(point)

    return watcher


@pytest.mark.parametrize("keys", [(), ("place",)])
def test_unlogged_parts_that_a_crash_of_postgres_has_emptied_are_copied_again(postgres, keys):
    """Such a crash leaves them there, without rows: before the task looks again, or before the driver moves them."""

    def empty(where, number):
        if (where, number) in lost:
            lost.remove((where, number))
            with psycopg.connect(postgres) as database:
                for name in _part_tables(postgres):
                    database.execute(f"TRUNCATE {name}")

    lost = [("part-started", 101), ("parts-written", 2)]
    table = f"emptied_{len(keys)}"
    sink = Postgres(postgres, table, keys=keys, servers_from=0)
    with watching(empty):
        weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sink, faults=["part-written:101"])
    assert not lost
    updates, last = sink_app.truth()
    with psycopg.connect(postgres) as database:
        rows = sorted(database.execute(f"SELECT place, rows, total FROM {table}"))
    assert rows == (sorted((place, *values) for place, values in last.items()) if keys else updates)
