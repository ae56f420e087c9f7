"""What must hold of tables of Spark's catalogs; test_spark_table.py runs this on a Spark with connectors."""

from __future__ import annotations

import deltalake
import pyarrow as pa
import pytest
import sink_app
import table_app
from pyiceberg.catalog import load_catalog

import weir.testing
from weir.errors import SinkError, SinkUnavailable, TopologyError
from weir.faults import watching
from weir.sinks import Delivery, Delta, Iceberg, SparkTable
from weir_evaluation.connectors import catalog

FORMATS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def tables(folder):
    session = table_app.session(folder)
    table_app.make_tables(session)
    yield session
    session.stop()


@pytest.fixture
def name(tables, kind, request):
    called = request.node.name.partition("[")[0]
    name = f"weir.shop.{called}" if kind == "iceberg" else called
    tables.sql(f"CREATE TABLE {name} ({table_app.COLUMNS}) USING {kind}")
    return name


def rows_of(spark, name):
    return table_app.content(spark, name)


def delivery(spark, batch, *rows, again=False, deleted=None):
    table = pa.table(dict(zip(("place", "rows", "total"), zip(*rows, strict=True), strict=True)))
    if deleted is not None:
        table = table.append_column("gone", pa.array(deleted))

    def frame(order=""):
        given = table.append_column(order, pa.array(range(len(table)))) if order else table
        return spark.createDataFrame(given)

    return Delivery(
        "q", "places", batch, again, table.schema, len(table), 1, lambda part: table, None, [1], frame
    )


def opened(spark, name, first, **more):
    sink = SparkTable(name, **more)
    sink.prepare(lambda: first.frame().limit(0))
    sink.open("q", "places", first.schema, True)
    return sink


class Died(Exception):
    pass


def test_dead_at_every_step_of_every_delivery(tables, folder):
    deaths = set()

    def die(point, batch):
        if point not in ("commit-written", "delivery-started", "sink-staged", "sink-committed"):
            return
        met[point, batch] = met.get((point, batch), 0) + 1
        if (point, batch, met[point, batch]) not in deaths:
            deaths.add((point, batch, met[point, batch]))
            raise Died

    for _ in range(60):
        met = {}
        with watching(die):
            query = table_app.start(tables, folder)
            try:
                query.await_termination()
                break
            except Exception as error:
                if "Died" not in repr(error):
                    raise
            finally:
                query.stop()
    # each point of each batch, of the sinks' own for each sink that is still to be reached
    assert len(deaths) >= len(sink_app.BATCHES) * 8
    for name, keys in table_app.TABLES.items():
        assert rows_of(tables, name) == table_app.truth(keys), name
    # read without Spark, too
    path = tables.sql("DESCRIBE DETAIL delta_last").collect()[0]["location"].removeprefix("file:")
    last = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in last) == table_app.truth(["place"])
    with load_catalog("weir", **catalog(folder)) as shared:
        for name in ("rows", "last"):
            found = shared.load_table(f"shop.iceberg_{name}").scan().to_arrow().to_pylist()
            assert sorted(tuple(row.values()) for row in found) == table_app.truth(
                ["place"] * (name == "last")
            )


def test_tables_are_shared_with_the_sinks_that_need_no_spark(tables, folder):
    path = f"{folder}/shared"
    sinks = [Delta(path), Iceberg("shop.shared", catalog(folder))]
    weir.testing.run(sink_app.app(), sink_app.BATCHES, servers=2, sink=sinks)
    more = delivery(tables, 0, ("x", 1, 2))
    for name in (f"delta.`{path}`", "weir.shop.shared"):
        assert rows_of(tables, name) == sink_app.truth()[0]
        opened(tables, name, more).deliver(more)
        assert rows_of(tables, name) == sorted([*sink_app.truth()[0], ("x", 1, 2)])
    weir.testing.run(sink_app.app(), sink_app.BATCHES[:1], servers=2, sink=sinks)
    for name in (f"delta.`{path}`", "weir.shop.shared"):
        assert len(rows_of(tables, name)) == len(sink_app.truth()[0]) + 1 + 9


@FORMATS
@pytest.mark.parametrize("keys", [[], ["place"]])
def test_a_driver_that_was_thought_dead_adds_nothing(tables, kind, keys):
    name = f"{'weir.shop.' if kind == 'iceberg' else ''}zombie_{len(keys)}"
    tables.sql(f"CREATE TABLE {name} ({table_app.COLUMNS}) USING {kind}")
    batch = delivery(tables, 0, ("a", 1, 1), ("b", 1, 2))
    old, new = (opened(tables, name, batch, keys=keys) for _ in range(2))

    def deliver_meanwhile(point, number):
        if point == "sink-staged" and not met:
            met.append(number)
            new.deliver(batch)

    met = []
    with watching(deliver_meanwhile):
        if kind == "iceberg":
            with pytest.raises(SinkUnavailable):
                old.deliver(batch)
        old.deliver(delivery(tables, 0, ("a", 1, 1), ("b", 1, 2), again=True))
    assert rows_of(tables, name) == [("a", 1, 1), ("b", 1, 2)]
    if kind == "iceberg":
        assert [row[0] for row in tables.sql(f"SELECT name FROM {name}.refs").collect()] == ["main"]


@FORMATS
@pytest.mark.parametrize("keys", [[], ["place"]])
def test_what_others_write_meanwhile_stays(tables, kind, keys):
    name = f"{'weir.shop.' if kind == 'iceberg' else ''}others_{len(keys)}"
    tables.sql(f"CREATE TABLE {name} ({table_app.COLUMNS}) USING {kind}")
    sink = opened(tables, name, delivery(tables, 0, ("a", 1, 1)), keys=keys)

    def others(point, number):
        if point == "sink-staged" and number not in met:
            met.append(number)
            tables.sql(f"INSERT INTO {name} VALUES ('o', {number}, 0)")

    met = []
    with watching(others):
        for number in range(2):
            batch = delivery(tables, number, ("a", number, 1))
            if kind == "iceberg" and keys:
                with pytest.raises(SinkUnavailable, match="somebody else"):
                    sink.deliver(batch)
            else:
                sink.deliver(batch)
            sink.deliver(delivery(tables, number, ("a", number, 1), again=True))
    ours = [("a", 1, 1)] if keys else [("a", 0, 1), ("a", 1, 1)]
    assert rows_of(tables, name) == [*ours, ("o", 0, 0), ("o", 1, 0)]


@FORMATS
def test_of_several_rows_the_last_counts_and_deleted_ones_go(tables, name):
    batch = delivery(
        tables, 0, ("a", 1, 1), ("b", 1, 1), ("a", 2, 2), ("c", 1, 1), deleted=[False] * 3 + [True]
    )
    sink = opened(tables, name, batch, keys=["place"], deleted="gone")
    sink.deliver(batch)
    assert rows_of(tables, name) == [("a", 2, 2), ("b", 1, 1)]
    sink.deliver(delivery(tables, 1, ("a", 3, 3), ("a", 4, 4), ("d", 1, 1), deleted=[False, True, None]))
    assert rows_of(tables, name) == [("b", 1, 1), ("d", 1, 1)]
    sink.deliver(delivery(tables, 2, ("e", 3, 3), deleted=[True]))  # changes nothing
    sink.deliver(delivery(tables, 3, ("b", 5, 5), deleted=[False]))
    assert rows_of(tables, name) == [("b", 5, 5), ("d", 1, 1)]


@pytest.mark.parametrize("kind", ["iceberg"])
def test_snapshots_that_have_expired(tables, name):
    def expire():
        tables.sql(
            f"CALL weir.system.expire_snapshots(table => '{name}', retain_last => 1, "
            "older_than => TIMESTAMP '2100-01-01')"
        )

    for number in range(2):
        tables.sql(f"INSERT INTO {name} VALUES ('o', {number}, 0)")
    expire()
    batch = delivery(tables, 0, ("a", 1, 1), again=True)
    sink = opened(tables, name, batch)  # notes where the table stood
    sink.deliver(batch)
    sink.deliver(batch)
    tables.sql(f"INSERT INTO {name} VALUES ('o', 2, 0)")
    expire()
    with pytest.raises(SinkError, match="nobody can tell"):
        sink.deliver(batch)
    for again in (False, True):  # the next batch was not delivered before, and says so
        sink.deliver(delivery(tables, 1, ("b", 1, 1), again=again))
    assert rows_of(tables, name) == [("a", 1, 1), ("b", 1, 1), ("o", 0, 0), ("o", 1, 0), ("o", 2, 0)]


@FORMATS
def test_columns_are_told_apart_by_name(tables, kind):
    name = f"{'weir.shop.' if kind == 'iceberg' else ''}wider"
    tables.sql(f"CREATE TABLE {name} (more string, total double, PLACE string, rows bigint) USING {kind}")
    schema = pa.schema([("place", pa.string()), ("rows", pa.int32()), ("total", pa.float32())])

    def batch(*rows):
        table = pa.Table.from_pylist(list(rows), schema)
        return Delivery(
            "q", "places", 0, False, schema, len(table), 1, lambda part: table, None, [1],
            lambda order="": tables.createDataFrame(table),
        )  # fmt: skip

    some = batch({"place": "a", "rows": 1, "total": 0.5})
    opened(tables, name, some).deliver(some)
    assert [row.asDict() for row in tables.table(name).collect()] == [
        {"more": None, "total": 0.5, "PLACE": "a", "rows": 1}
    ]
    tables.sql(f"ALTER TABLE {name} DROP COLUMN rows") if kind == "iceberg" else tables.sql(
        f"CREATE OR REPLACE TABLE {name} (PLACE int, total double) USING delta"
    )
    with pytest.raises(SinkError, match="the table has no column 'rows'"):
        opened(tables, name, some)


@FORMATS
def test_mistakes_are_told_before_work_starts(tables, name, kind):
    batch = delivery(tables, 0, ("a", 1, 1))
    with pytest.raises(SinkError, match="no such table. Make it: CREATE TABLE .*nowhere"):
        opened(tables, name + "_nowhere", batch)
    other = "delta" if kind == "iceberg" else "iceberg"
    with pytest.raises(SinkError, match=f"format='{other}', but the table's is '{kind}'"):
        opened(tables, name, batch, format=other)
    tables.sql(f"CREATE OR REPLACE TEMP VIEW seen AS SELECT * FROM {name}")
    with pytest.raises(TopologyError, match="format='view' is not supported"):
        opened(tables, "seen", batch)
