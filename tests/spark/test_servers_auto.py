"""``servers="auto"``: as many as there are task slots for, kept by restarts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, two_counts, write_batches
from weir.errors import EngineError
from weir.spark import executors
from weir.spark.executors import Executor, settled_slots
from weir.spark.live_runner import free_servers

TABLES = [posts(400, seed) for seed in range(3)]


def test_live_servers_leave_a_slot_to_the_source_and_restarts_keep_their_number(spark, tmp_path, checkpoint):
    data = tmp_path / "posts"
    app = two_counts(stream(spark, write_batches(data, TABLES[:1]), POSTS))
    query = app.start(checkpoint, trigger=NOW)
    query.await_termination()
    assert query.status["servers"] == 3  # of four slots
    assert '3 servers (servers="auto")' in query.describe()
    assert query.progress.execution == "live"
    write_batches(data, TABLES[1:2])
    other = app.start(checkpoint, servers=2, trigger=NOW)
    other.await_termination()
    assert "2 servers, " in other.describe()
    write_batches(data, TABLES[2:])
    again = app.start(checkpoint, servers="auto", trigger=NOW)
    again.await_termination()
    assert again.topology.servers == 2
    assert rows_of(again.state("topics")) == counts(TABLES, "topic")


def test_a_bounded_run_takes_all_slots(spark, tmp_path, checkpoint):
    folder = write_batches(tmp_path / "posts", TABLES[:1])
    query = weir.source(spark.read.schema(POSTS).parquet(folder)).count("place").run(checkpoint)
    assert query.topology.servers == 4
    assert rows_of(query.state("place")) == counts(TABLES[:1], "place")


def test_slots_that_other_queries_hold_are_not_free(spark, monkeypatch):
    assert (free_servers(spark, live=True), free_servers(spark, live=False)) == (3, 4)
    monkeypatch.setattr("weir.spark.live_runner._held", {spark.sparkContext.applicationId: 3})
    assert (free_servers(spark, live=True), free_servers(spark, live=False)) == (1, 1)


class Cluster:
    """A session on a cluster, as far as slots are asked for."""

    def __init__(self, monkeypatch, come, **conf):
        conf = {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
        getter = SimpleNamespace(get=lambda key, default=None: conf.get(key, default))
        self.sparkContext = SimpleNamespace(master="spark://host:7077", getConf=lambda: getter)
        self.come = iter(come)
        self.living = []
        monkeypatch.setattr(executors, "executors", self.executors)
        monkeypatch.setattr(executors.time, "sleep", lambda seconds: None)

    def executors(self, session):
        number = next(self.come, len(self.living))
        self.living = [Executor(str(i), f"h{i}", 4) for i in range(number)]
        return self.living


def test_executors_that_were_asked_for_are_waited_for(monkeypatch):
    assert settled_slots(Cluster(monkeypatch, [0, 1, 1, 2, 3], executor_instances="3")) == 12
    assert settled_slots(Cluster(monkeypatch, [0, 0, 1, 2])) == 8


def test_if_too_few_come_those_that_did_count_and_none_is_an_error(monkeypatch):
    some = Cluster(monkeypatch, [1, 2], executor_instances="9")
    assert settled_slots(some, seconds=0.05) == 8
    with pytest.raises(EngineError, match="no executor has come within 0 s; pass a number: servers=8"):
        settled_slots(Cluster(monkeypatch, []), seconds=0.0)


def test_with_dynamic_allocation_the_settings_count(monkeypatch):
    dynamic = {"dynamicAllocation_enabled": "true", "executor_cores": "4", "task_cpus": "2"}
    assert settled_slots(Cluster(monkeypatch, [], **dynamic, dynamicAllocation_maxExecutors="5")) == 10
    with pytest.raises(EngineError, match="needs spark.dynamicAllocation.maxExecutors"):
        settled_slots(Cluster(monkeypatch, [], **dynamic))
