"""``weir.testing``: whole applications in this process, with several sources, faults, restarts, scaling and hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from support import POSTS, Rises, counts, posts, rows_of, two_counts
from weir.errors import EngineError, SourceError, TopologyError
from weir.testing import Crash, run, start

TABLES = [posts(300, seed) for seed in range(3)]


def check(query, tables=TABLES):
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")


# ---------------------------------------------------------------------- what is fed


def test_rows_come_as_tables_batches_or_dicts():
    query = start(two_counts(), servers=2)
    query.feed(TABLES[0])
    query.feed(TABLES[1].combine_chunks().to_batches()[0])
    query.feed(TABLES[2].to_pylist())
    check(query)
    query.feed(TABLES[0].select(["n", "topic", "place"]))  # columns in another order
    check(query, [*TABLES, TABLES[0]])
    query.feed([])
    assert query.progress.rows == 0


def test_several_sources():
    web, mobile = weir.source(POSTS, "web"), weir.source(POSTS, "mobile")
    topics = web.union(mobile).keyed("topic", weir.Count(), name="topics")
    app = weir.Application(topics, mobile.keyed("place", weir.Count(), name="places"))
    query = run(app, [{"web": TABLES[0], "mobile": TABLES[1]}, {"mobile": TABLES[2]}, {}], servers=2)
    assert rows_of(query.state("topics")) == counts(TABLES, "topic")
    assert rows_of(query.state("places")) == counts(TABLES[1:], "place")
    assert [p.rows for p in query.recent_progress] == [600, 300, 0]
    assert set(query.outputs) == {"topics", "places"}
    with pytest.raises(EngineError, match="ends in 2 operators; name one"):
        query.output()


def test_files(tmp_path):
    paths = []
    for part, table in enumerate(TABLES):
        folder = tmp_path / f"part={part % 2}"
        folder.mkdir(exist_ok=True)
        paths.append(folder / f"{part}.parquet")
        pq.write_table(table, paths[-1])
    counted = weir.files(None, str(tmp_path), name="posts").keyed("place", weir.Count(), name="places")
    query = run(counted, [paths[:2], {"posts": [str(paths[2])]}], servers=2)
    assert rows_of(query.state("places")) == counts(TABLES, "place")
    for paths, says in (([tmp_path / "none.parquet"], "none.parquet: cannot be listed"), ([3], "no path")):
        with pytest.raises(SourceError, match=says):
            run(counted, [paths], servers=2)
    with pytest.raises(TopologyError, match="has a schema but no rows"):
        counted.start(str(tmp_path / "checkpoint"), servers=2)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"other": []}, "no source 'other'; .*'source'"),
        (pa.table({"place": ["a"], "topic": ["b"]}), "rows for source 'source' have no column 'n'"),
        (pa.table({"place": ["a"], "topic": ["b"], "n": ["c"]}), "do not fit its columns"),
        ([{"place": "a", "topic": "b", "n": "c"}], "do not fit its columns"),
        ([3], "do not fit its columns"),
    ],
)
def test_wrong_rows_are_refused(batch, says):
    query = start(two_counts(), servers=2)
    with pytest.raises(SourceError, match=says):
        query.feed(batch)
    query.feed(TABLES[0])  # nothing has happened
    assert query.progress.batch == 0


def test_sources_without_a_name_are_ambiguous_if_there_are_two():
    both = weir.source(POSTS, "web").union(weir.source(POSTS, "mobile")).keyed("topic", weir.Count())
    with pytest.raises(SourceError, match="has 2 sources; feed {name: rows}"):
        run(both, [TABLES[0]], servers=2)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"faults": ["commit-writen:1"]}, EngineError, "did you mean 'commit-written'"),
        ({"faults": ["commit-written"]}, EngineError, "expected POINT:BATCH"),
        ({"source_tasks": 0}, EngineError, "at least one source task"),
        ({"hosts": []}, EngineError, "one host"),
        ({"servrs": 2}, TopologyError, "did you mean 'servers'"),
        ({"sink": {"topic": print}}, TopologyError, "sink for unknown operator 'topic'"),
    ],
)
def test_wrong_options_are_refused(options, error, says):
    with pytest.raises(error, match=says):
        start(two_counts(), **{"servers": 2, **options})


def test_servers_are_chosen_if_nobody_says_how_many_and_stay_as_they_are(checkpoint):
    """Scaling, of operators with a fixed parallelism too, is kept by restarts that leave the number open."""
    app = two_counts(parallelism=1)
    query = start(app, checkpoint)
    query.feed(TABLES[0])
    assert query.status["servers"] == 2
    query.scale_out(2)
    query.feed(TABLES[1])
    placement = query.topology.by_name["topics"].placement
    for named in ({}, {"servers": 2}, {"servers": "auto"}):  # 2 is what was there before scaling
        query.stop()
        query = start(app, checkpoint, **named)
        assert query.topology.servers == 4
        assert query.topology.by_name["topics"].placement == placement
    query.feed(TABLES[2])
    check(query)
    query.restart(servers=3)
    query.restart(servers="auto")
    assert query.topology.servers == 4  # nothing was committed on three
    query.stop()


# ---------------------------------------------------------------------- what is seen


def test_output_state_and_progress():
    query = start(two_counts(), servers=2)
    with pytest.raises(EngineError, match="no batch has been committed"):
        query.state("topics")
    assert query.progress is None
    assert query.output().num_rows == 0
    for table in TABLES:
        query.feed(table)
    assert [p.batch for p in query.recent_progress] == [0, 1, 2]
    topics = set(TABLES[1]["topic"].to_pylist())
    so_far = {t: n for t, n in counts(TABLES[:2], "topic") if t in topics}
    assert dict(rows_of(query.output("topics", 1))) == so_far
    assert query.output().num_rows == sum(query.output(batch=b).num_rows for b in range(3))
    with pytest.raises(EngineError, match="did you mean 'topics'"):
        query.output("topcs")
    assert query.dead_letters is None
    assert query.is_active
    query.stop()
    assert not query.is_active


def test_users_sinks_are_called_and_hear_of_every_batch():
    heard = []
    sinks = {"places": lambda rows, batch: heard.append((batch, rows.num_rows))}
    query = run(two_counts(), TABLES, servers=2, sink=sinks)
    assert [batch for batch, _ in heard] == [0, 1, 2]
    assert sum(rows for _, rows in heard) == query.output("places").num_rows > 0
    assert set(query.outputs) == {"places"}


def test_dead_letters():
    def picky(row):
        if row.n > 900:
            raise ValueError("too large")
        return row

    app = weir.source(POSTS).map(picky, on_error="divert").keyed("topic", weir.Count())
    letters = []
    query = run(app, TABLES, servers=2, dead_letters=lambda rows, batch: letters.append(rows))
    large = sum(n > 900 for table in TABLES for n in table["n"].to_pylist())
    assert query.dead_letters.num_rows == sum(rows.num_rows for rows in letters) == large > 0
    assert set(query.dead_letters["error"].to_pylist()) == {"ValueError: too large"}


def test_the_end_of_the_input_is_told_by_finish():
    window = weir.tumbling("at", "1 minute")
    app = weir.source("k string, at timestamp").keyed("k", weir.Count(), name="w", window=window)
    query = start(app, servers=2)
    query.feed([{"k": "a", "at": 1_000_000}, {"k": "b", "at": 2_000_000}])
    assert query.output("w").num_rows == 0
    query.finish()
    assert sorted(query.output("w")["k"].to_pylist()) == ["a", "b"]
    assert query.status["message"] == "finished"


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("point", ["plan-written", "job-done", "commit-written", "sink-delivered"])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_the_driver_dies_once_at_every_point(point, batch):
    query = run(two_counts(), TABLES, servers=2, faults=[f"{point}:{batch}"])
    assert query.pending_faults == []
    check(query)
    assert len(query.deliveries) == 3


@pytest.mark.parametrize("point", ["plan-written", "job-done", "commit-written"])
def test_the_driver_dies_in_the_batch_in_which_state_changes_its_owners(point, checkpoint):
    query = start(two_counts(), checkpoint, servers=2, faults=[f"{point}:2"])
    for table in TABLES[:2]:
        query.feed(table)
    query.restart(servers=3)
    query.feed(TABLES[2])
    assert query.pending_faults == []
    check(query)


@pytest.mark.parametrize("step", [1, 2])
def test_a_task_runs_twice(step):
    runs = []

    def note(batch):
        runs.append(batch.num_rows)
        return batch

    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .map_batches(note, routing=weir.Shuffle())
    )
    app = app.keyed("topic", weir.Count(emit="rows"), name="topics")
    undisturbed = run(app, TABLES, servers=2)
    once = sum(runs)
    runs.clear()
    query = run(app, TABLES, servers=2, faults=[f"step-started:{100 + step}"] * 2)
    assert query.pending_faults == []
    assert sum(runs) > once == 900
    check(query)
    assert [rows_of(t) for *_, t in query.deliveries] == [rows_of(t) for *_, t in undisturbed.deliveries]


def test_a_sink_that_dies_hears_of_its_batch_again():
    deaths = [1]

    def sink(rows, batch):
        if batch in deaths:
            deaths.remove(batch)
            raise Crash

    query = run(two_counts(), TABLES, servers=2, sink=sink)
    assert [batch for _, batch, _ in query.deliveries] == [0, 1, 1, 2]
    check(query)


def test_faults_that_never_happen_are_told():
    query = run(two_counts(), TABLES, servers=2, faults=["job-done:7", "job-done:1"])
    assert query.pending_faults == ["job-done:7"]


# ---------------------------------------------------------------------- restarts and scaling


def test_a_restart_with_other_settings_or_another_application(checkpoint):
    query = start(two_counts(), checkpoint, servers=2)
    query.feed(TABLES[0])
    identity = query.id
    query.restart(servers=3, routing=weir.PartialKey())
    query.feed(TABLES[1])
    assert len(query.progress.servers) == 3
    query.restart(two_counts().keyed("n", weir.Count(), name="numbers"))
    query.feed(TABLES[2])
    check(query)
    assert rows_of(query.state("numbers")) == counts(TABLES[2:], "n")
    assert query.id == identity
    with pytest.raises(weir.errors.CheckpointMismatch, match="another key"):
        query.restart(weir.source(POSTS).keyed("topic", weir.Count(), name="places"))


def test_a_query_goes_on_from_a_checkpoint(checkpoint):
    run(two_counts(), TABLES[:1], checkpoint, servers=2)
    query = run(two_counts(), TABLES[1:], checkpoint, servers=2)
    check(query)
    assert query.progress.batch == 2


@pytest.mark.parametrize("routing", [None, weir.PartialKey(), weir.Locality(period=1, forecast=None)])
def test_servers_come_and_go(routing):
    query = start(two_counts(routing=routing), servers=2)
    query.feed(TABLES[0])
    dry = query.scale_out(2, dry_run=True)
    assert (dry.operation, len(dry.machines)) == ("out", 2)
    assert query.topology.servers == 2
    query.scale_out(2)
    query.feed(TABLES[1])
    assert query.topology.servers == 4
    query.scale_in(3)
    query.feed(TABLES[2])
    assert [len(p.servers) for p in query.recent_progress] == [2, 4, 1]
    assert [(s.before, s.to) for s in query.scalings] == [(2, 4), (4, 1)]
    check(query)
    query.stop()
    with pytest.raises(EngineError, match="only a running"):
        query.scale_out(1)


# ---------------------------------------------------------------------- hosts and order


def test_servers_live_on_hosts_and_groupings_know_how_far_apart_they_are():
    hosts = ["a", "a", "b"]
    app = two_counts(routing=weir.Weighted(weir.Hash()))
    query = run(app, TABLES, servers=3, hosts=hosts, racks={"a": "r1", "b": "r2"})
    check(query)
    places = query.progress.places
    assert [p["host"] for p in places] == hosts
    assert [p["rack"] for p in places] == ["r1", "r1", "r2"]
    distance = query.progress.edges["places → topics"].distance
    assert distance["process"]["rows"] + distance["node"]["rows"] + distance["any"]["rows"] == 300
    assert distance["any"]["rows"] > 0
    together = run(app, TABLES, servers=3)
    assert together.progress.edges["places → topics"].distance.get("any", {"rows": 0})["rows"] == 0
    # the rows that leave a host are fewer where the grouping knows hosts than where it spreads evenly
    even = run(
        two_counts(routing=weir.Shuffle()), TABLES, servers=3, hosts=hosts, racks={"a": "r1", "b": "r2"}
    )
    away = [q.progress.edges["places → topics"].distance["any"]["rows"] for q in (query, even)]
    assert away[0] < away[1]


@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_the_order_in_which_rows_come_changes_nothing(seed, sources):
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places", routing=weir.PartialKey())
        .keyed("topic", Rises(), name="rises")
    )
    with tempfile.TemporaryDirectory() as folder:
        start(app, f"{folder}/one", servers=3).stop()
        shutil.copytree(f"{folder}/one", f"{folder}/two")  # the same identity, from which routers are seeded
        one = run(app, TABLES[:2], f"{folder}/one", servers=3, seed=seed, source_tasks=sources)
        faults = ["step-started:101", "step-started:2", "job-done:1"]
        two = run(
            app, TABLES[:2], f"{folder}/two", servers=3, seed=seed + 1, source_tasks=sources, faults=faults
        )
        assert two.pending_faults == []
        assert one.id == two.id
        assert rows_of(one.state("rises")) == rows_of(two.state("rises"))
        assert rows_of(one.output("rises")) == rows_of(two.output("rises"))


def test_a_session_for_what_needs_spark(spark):
    assert weir.testing.local_spark().sparkContext is spark.sparkContext


def test_a_session_starts_quietly():
    """Nothing but what the program prints, and later what the JVM has to say; Ctrl-C is a KeyboardInterrupt.

    It ends quietly, too, while a query runs on live servers.
    """
    program = """
import os, signal, tempfile, time
import weir.testing
spark = weir.testing.local_spark("local[2]")
print("begun")
spark._jvm.System.err.println("an error of Spark's")
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
query = weir.source(rows).count("value").start(tempfile.mkdtemp(), servers=1, execution="live")
while query.status["batch"] is None:
    time.sleep(0.1)
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "begun\ninterrupted\n"), done.stderr
    assert done.stderr == "an error of Spark's\n"


def test_without_java_the_error_says_so(tmp_path):
    for tool in ("bash", "env", "dirname", "find"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    program = "import weir.testing; weir.testing.local_spark('local[1]')"
    terms = {"env": {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, **terms)
    assert "JAVA_HOME is not set" in done.stderr
    assert "It needs a Java 17+ runtime" in done.stderr.splitlines()[-1]


def test_rows_with_a_misspelt_column_are_refused():
    with pytest.raises(SourceError, match="has no column 'plac'; did you mean 'place'"):
        run(weir.source("place string").keyed("place", weir.Count()), [[{"plac": "FR"}]], servers=2)
