"""The public names are these and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

import weir
import weir.errors
import weir.operators
import weir.routing
import weir.sinks
import weir.testing
from weir.engine.batch.handle import QueryHandle
from weir.locality.config import Costs
from weir_evaluation import routing as rivals

TOP = [
    "Aggregate",
    "Application",
    "Auto",
    "Autoscale",
    "Consistent",
    "Count",
    "Hash",
    "ListState",
    "Locality",
    "MapState",
    "Options",
    "PartialKey",
    "Process",
    "Query",
    "Racks",
    "Shuffle",
    "SideInput",
    "State",
    "Stream",
    "Table",
    "Weighted",
    "WeirError",
    "agg",
    "files",
    "fork",
    "kafka",
    "migrate_state",
    "read_state",
    "session",
    "sliding",
    "source",
    "tumbling",
]
ROUTING = [
    "BalancedWeights",
    "Consistent",
    "Counters",
    "CountingGrouping",
    "Grouping",
    "Hash",
    "InstanceLoad",
    "Instances",
    "Keys",
    "LocalOrShuffle",
    "OperatorTraits",
    "PartialKey",
    "PlannedRouting",
    "Router",
    "RouterContext",
    "RoutingRule",
    "Shuffle",
    "Table",
    "Weighted",
    "key_group",
    "mix",
]
OPERATORS = [
    "Aggregate",
    "AggregateFunction",
    "AsOfJoin",
    "Context",
    "Count",
    "Deduplicate",
    "Filter",
    "FilterRows",
    "FlatMapRows",
    "Instance",
    "Join",
    "KeyedBatch",
    "Lookup",
    "Map",
    "MapAsync",
    "MapRows",
    "Operator",
    "Process",
    "ProcessBatch",
    "PythonAggregate",
    "Rows",
    "Timer",
    "Timers",
    "Window",
    "keyed_schema",
]

SINKS = ["Delivery", "Delta", "Iceberg", "Kafka", "Parquet", "Postgres", "Sink", "SparkTable"]


@pytest.mark.parametrize(
    ("module", "names"),
    [(weir, TOP), (weir.routing, ROUTING), (weir.operators, OPERATORS), (weir.sinks, SINKS)],
)
def test_the_public_names_are_these_and_no_others(module, names):
    assert module.__all__ == names == sorted(names)
    for name in names:
        assert getattr(module, name) is not None


def test_a_name_that_is_not_there_is_missed_as_usual():
    with pytest.raises(AttributeError, match="has no attribute 'Flow'"):
        _ = weir.Flow


@pytest.mark.parametrize("name", weir.routing._MOVED)
def test_a_rival_that_has_moved_says_where(name):
    with pytest.raises(AttributeError, match=f"it is weir_evaluation.routing.{name} now"):
        getattr(weir.routing, name)
    assert name in rivals.__all__


@pytest.mark.parametrize(
    ("use", "new"),
    [
        (lambda: weir.Count(name="rows"), "column="),
        (lambda: weir.Locality(racks="hosts"), "hierarchy="),
        (lambda: weir.Locality(start="tables/"), "tables="),
        (lambda: weir.Locality(memory=4.0), "half_life="),
        (lambda: Costs(calm=0.2), "min_gain="),
        (lambda: weir.files(None, "posts/", schema="k string", place="hash"), "assignment="),
        (lambda: weir.kafka("b:9092", "posts", "k string", place="hash"), "assignment="),
        (lambda: weir.kafka(servers="b:9092", topic="posts", schema="k string"), "bootstrap_servers="),
        (lambda: weir.operators.PythonAggregate("n", start=int, add=max, merge=max), "zero="),
        (lambda: weir.testing.start(weir.source("k string").count("k"), sources=2), "source_tasks="),
        (lambda: weir.testing.start(weir.source("k string").count("k"), parcels=False), "host_handoff="),
        (lambda: QueryHandle.scale_out(None, machines=2), "servers="),
        (lambda: QueryHandle.scale_in(None, machines=2), "servers="),
    ],
)
def test_an_old_name_says_the_new_one(use, new):
    with pytest.raises(weir.errors.TopologyError, match=rf"= is called {new} now"):
        use()


def test_every_error_is_a_weir_error():
    kinds = [k for k in vars(weir.errors).values() if isinstance(k, type) and k.__module__ == "weir.errors"]
    assert len(kinds) > 5
    assert all(issubclass(kind, weir.WeirError) for kind in kinds)


def test_the_library_is_imported_without_pyspark():
    program = (
        "import sys, weir, weir.routing, weir.operators, weir.advise, weir.testing, weir.engine.batch.driver\n"
        "import weir.sinks\n"
        "app = weir.Application(weir.source('place string').keyed('place', weir.Count()))\n"
        "weir.flow.parts_of(app).topology(2)\n"
        "assert not {'pyspark', 'confluent_kafka', 'deltalake', 'psycopg', 'fastavro'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_application_shows_what_users_need():
    assert [name for name in dir(weir.Application) if not name.startswith("_")] == [
        "describe",
        "run",
        "start",
    ]


def test_progress_is_read_by_attribute():
    progress = weir.testing.run(weir.source("k string").count("k"), [[{"k": "a"}]]).progress
    assert (progress.rows, progress.to_dict()["rows"]) == (1, 1)
    for use in (lambda: progress["rows"], lambda: "rows" in progress, lambda: list(progress)):
        with pytest.raises(weir.errors.EngineError, match=r"read by attribute.*progress\.to_dict\(\)"):
            use()
    assert not hasattr(progress, "get")


def test_a_query_has_one_spelling_for_each_thing():
    names = [name for name in dir(weir.Query) if not name.startswith("_")]
    assert [name for name in names if name != name.lower()] == []
    assert {"is_active", "await_termination", "process_all_available", "progress", "recent_progress"} < {
        *names
    }
