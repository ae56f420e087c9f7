"""``weir advise``: sound advice on data whose answer is known, and tables that keep what it promises."""

from __future__ import annotations

import argparse
import io
import json
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import weir
from support import stream, write_batches
from weir.advise.counts import Question
from weir.advise.files import count_files, open_files
from weir.cli import main as cli
from weir.errors import TopologyError, UnknownColumn, WeirError
from weir.hashing import hash_columns
from weir.locality import advise

QUIET = Console(file=io.StringIO())
START = datetime(2024, 1, 1)


def asked(data, *options, servers=4, keys="place,topic"):
    parser = argparse.ArgumentParser()
    advise.arguments(parser)
    return parser.parse_args([str(data), "--keys", keys, "--servers", str(servers), *map(str, options)])


def advice(data, *options, **terms):
    return advise.run(asked(data, *options, **terms), QUIET)


def codes(result):
    return {piece["code"] for piece in result["recommendation"]["advice"]}


def stream_of(place, topic):
    """Rows a second apart."""
    when = pa.array([START + timedelta(seconds=i) for i in range(len(place))], pa.timestamp("us", "UTC"))
    names = [
        pa.array([f"{kind} {k}" for k in keys], pa.string()) for kind, keys in (("p", place), ("t", topic))
    ]
    return pa.table({"time": when, "place": names[0], "topic": names[1], "n": np.arange(len(place))})


def planted(rows=8_000, seed=0, groups=16, together=0.9, shift=0, keys=80):
    """Keys of equal ``number % groups`` keep company; ``shift`` regroups the topics."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, keys, rows)
    own = rng.integers(0, keys // groups, rows) * groups + (place + shift * (place // groups)) % groups
    return place, np.where(rng.random(rows) < together, own, rng.integers(0, keys, rows))


def write(path, table):
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module", autouse=True)
def hasty():
    """Few starts for the partitioner: it works hardest on graphs as small as these, which are easy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.locality.proposal._STARTS", 2)
        patch.setattr("weir.advise.judge._STARTS", 2)
        yield


@pytest.fixture(scope="module")
def advised(communities):
    return advice(communities, "--time", "time")


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    return write(tmp_path_factory.mktemp("advise") / "communities.parquet", stream_of(*planted()))


def test_planted_communities_are_found_and_last(advised):
    found = advised
    assert found["hash"]["locality"] == pytest.approx(0.25, abs=0.07)
    # nine in ten keep company, and one in four of the others meets it by chance
    assert found["table"]["locality"] == pytest.approx(0.925, abs=0.03)
    assert found["drift"]["late"]["locality"] > 0.89
    assert found["live"]["locality"] > 0.89
    assert found["bound"]["locality"] >= found["table"]["locality"]
    assert all(busiest < 1.15 for busiest in found["table"]["imbalance"].values())
    assert found["recommendation"]["verdict"] == "start"
    assert "drifts" not in codes(found)
    assert found["hops"][0]["bytes_saved_per_row"] > 0.5 * found["row_bytes"]
    json.dumps(found)


def test_no_communities_means_hash_even_where_the_bound_flatters(tmp_path):
    rng = np.random.default_rng(1)
    # few rows per pair: a table that has seen them looks good, and is worth nothing on the next ones
    table = stream_of(rng.integers(0, 100, 6_000), rng.integers(0, 1_000, 6_000))
    found = advice(write(tmp_path / "none.parquet", table))
    assert found["bound"]["locality"] > 0.4
    assert found["table"]["locality"] < 0.3
    assert found["recommendation"]["verdict"] == "hash"
    assert "no company" in found["recommendation"]["words"]


def test_keys_that_never_return_mean_hash(tmp_path):
    numbers = np.arange(2_000)
    found = advice(write(tmp_path / "new.parquet", stream_of(numbers, numbers)))
    assert found["recommendation"]["verdict"] == "hash"
    assert "never seen" in found["recommendation"]["words"]
    assert found["new_rows"] == {"place": 1.0, "topic": 1.0}


def test_drift_is_seen_and_learning_recommended(tmp_path):
    parts = [planted(3_000, seed=i, shift=i) for i in range(4)]
    place, topic = (np.concatenate(side) for side in zip(*parts, strict=True))
    found = advice(write(tmp_path / "drift.parquet", stream_of(place, topic)), "--time", "time")
    assert found["drift"]["late"]["locality"] < found["drift"]["relearnt"] - 0.2
    assert "drifts" in codes(found)
    text = next(p["text"] for p in found["recommendation"]["advice"] if p["code"] == "drifts")
    assert "period" in text
    assert found["memory_slices"] is not None


def test_a_hub_sets_the_floor_and_is_to_be_split(tmp_path):
    place, topic = planted()
    topic = np.where(np.random.default_rng(2).random(len(topic)) < 0.4, 7, topic)
    found = advice(write(tmp_path / "hub.parquet", stream_of(place, topic)))
    hot = found["hot_keys"][1]
    assert hot["keys"][0]["key"] == "t 7"
    assert hot["floor"] == pytest.approx(0.4 * 4, abs=0.1)
    assert hot["floor"] == pytest.approx(hot["keys"][0]["share"] * 4)
    assert found["table"]["imbalance"]["topic"] >= hot["floor"] - 0.01
    assert "hot_key" in codes(found)
    assert "split_hot=True" in str(found["recommendation"]["advice"])


def with_nulls(table):
    rng = np.random.default_rng(3)
    gone = pa.array(rng.random(len(table)) < 0.05)
    empty = pa.scalar(None, pa.string())
    return table.set_column(2, "topic", pa.compute.if_else(gone, empty, table["topic"])), int(
        pa.compute.sum(gone).as_py()
    )


def same(ours, theirs):
    assert (ours.rows, ours.nulls, ours.begins) == (theirs.rows, theirs.nulls, theirs.begins)
    assert len(ours.slices) == len(theirs.slices)
    for a, b in zip(ours.slices, theirs.slices, strict=True):
        assert a.rows == b.rows
        for kind in ("keys", "pairs"):
            for which, counts in getattr(a, kind).items():
                for side in ("left", "right", "count"):
                    np.testing.assert_array_equal(
                        getattr(counts, side), getattr(getattr(b, kind)[which], side)
                    )
    for a, b in zip(ours.keys, theirs.keys, strict=True):
        assert a.schema.types == b.schema.types
        assert set(hash_columns(a.columns).tolist()) == set(hash_columns(b.columns).tolist())


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_both_readers_count_the_same(spark, tmp_path, kind):
    from weir.spark.counting import count_frame, open_frame

    table, gone = with_nulls(stream_of(*planted(3_000)))
    path = str(tmp_path / f"rows.{'csv' if kind == 'csv' else 'parquet'}")
    if kind == "csv":
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), path)
    operators = {"places": ["place"], "both": ["topic", "n"]}
    dataset = open_files(path)
    question = Question(path, operators, "time", slices=10)
    ours = count_files(question, dataset)
    theirs = count_frame(question, open_frame(spark, path, dataset.schema))
    assert ours.nulls == {"places": 0, "both": gone, "time": 0}
    same(ours, theirs)
    assert ours.row_bytes == pytest.approx(theirs.row_bytes, rel=0.2)


def test_both_readers_keep_the_heaviest_pairs_within_the_same_bound(spark, communities):
    from weir.spark.counting import count_frame, open_frame

    question = Question(str(communities), {"a": ["place"], "b": ["topic"]}, "time", capacity=1_000, slices=5)
    ours = count_files(question, open_files(question.data))
    theirs = count_frame(question, open_frame(spark, question.data))
    for a, b in zip(ours.slices, theirs.slices, strict=True):
        left, right = a.pairs[0, 1].count, b.pairs[0, 1].count
        assert len(left) == len(right) == 200
        np.testing.assert_array_equal(np.sort(left), np.sort(right))


def test_spark_table_through_the_command(spark, communities, advised):
    spark.read.parquet(str(communities)).createOrReplaceTempView("posts_advised")
    there = advice("table:posts_advised", "--time", "time")
    assert there["reader"] == "spark"
    assert there["table"] == advised["table"]
    unordered = advice("table:posts_advised")
    assert unordered["drift"] is None
    assert "no_time" in codes(unordered)
    with pytest.raises(UnknownColumn, match="did you mean 'topic'"):
        advice("table:posts_advised", keys="place,topik")
    with pytest.raises(WeirError, match="did you mean 'posts_advised'"):
        advice("table:posts_advise")


def test_tables_written_start_a_query_with_the_promised_locality(spark, tmp_path, checkpoint):
    table = stream_of(*planted(10_000))
    past, future = table.slice(0, 6_000), [table.slice(6_000, 2_000), table.slice(8_000)]
    out = tmp_path / "tables"
    found = advice(
        write(tmp_path / "past.parquet", past),
        *("--out", out, "--operators", "places,topics", "--time", "time"),
        servers=3,
    )
    read = weir.RoutingTable.from_file(out / "topics.arrow", n=3)
    assert read.keys.column_names == ["topic"]
    assert read.lookup("t 5") in (0, 1, 2)
    rows = stream(
        spark, write_batches(tmp_path / "rows", future), "time timestamp, place string, topic string, n long"
    )
    query = (
        weir.source(rows)
        .keyed("place", weir.Count(), name="places")
        .keyed("topic", weir.Count(), name="topics")
        .start(checkpoint, servers=3, routing=weir.Locality(start=str(out)), trigger={"availableNow": True})
    )
    query.await_termination()
    assert query.recent_progress[0]["locality"] == pytest.approx(found["table"]["locality"], abs=0.03)
    assert query.recent_progress[0]["locality"] > 0.85


def test_chains_of_keys_of_several_columns(tmp_path):
    place, topic = planted(4_000)
    table = stream_of(place, topic).append_column("server", pa.array(place.astype(np.int32)))
    data = write(tmp_path / "chain.parquet", table)
    out = tmp_path / "out"
    found = advice(data, "--out", out, "--payload", 1000, keys="place,topic+server,server")
    assert found["operators"]["topic+server"] == ["topic", "server"]
    assert len(found["hops"]) == 2
    # the last hop can be all local: the key before it determines it
    assert found["hops"][1]["table"] > found["hops"][1]["hash"] + 0.3
    assert found["row_bytes"] == 1000
    # a key column that is called like one of a table's own is renamed, and keeps its type
    read = weir.RoutingTable.from_file(out / "server.arrow")
    assert read.keys.schema.types == [pa.int32()]


def test_sampling_counts_about_so_many_rows(communities):
    assert advice(communities, "--sample", 2_000)["rows"] == pytest.approx(2_000, rel=0.1)


def test_plot_and_printed_advice(communities, tmp_path, capsys):
    plot = tmp_path / "plot.png"
    line = ["advise", str(communities), "--keys", "place,topic", "--servers", "4", "--time", "time"]
    assert cli.main([*line, "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert text.index("Start with this table") < text.index("how the last tenth")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_is_all_that_json_prints(communities, advised, capsys):
    line = ["advise", str(communities), "--keys", "place,topic", "--servers", "4", "--time", "time", "--json"]
    assert cli.main(line) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(advised))


def test_mistakes_are_named_before_work_starts(communities, tmp_path, monkeypatch):
    with pytest.raises(UnknownColumn, match="did you mean 'topic'"):
        advice(communities, keys="place,topik")
    with pytest.raises(UnknownColumn, match="did you mean 'time'"):
        advice(communities, "--time", "tme")
    with pytest.raises(TopologyError, match="doesn't tell the time"):
        advice(communities, "--time", "place")
    with pytest.raises(TopologyError, match="name two at least"):
        advice(communities, keys="place")
    with pytest.raises(TopologyError, match="--operators"):
        advice(communities, keys="place,place")
    with pytest.raises(TopologyError, match="give 2 names"):
        advice(communities, "--operators", "one")
    with pytest.raises(WeirError, match="no data at"):
        advice(tmp_path / "nowhere.parquet")
    with pytest.raises(WeirError, match="give 2 or more"):
        advice(communities, servers=1)
    with pytest.raises(WeirError, match="can't write there"):
        advice(communities, "--out", communities / "below-a-file")
    with pytest.raises(WeirError, match="name a folder that exists"):
        advice(communities, "--plot", tmp_path / "no" / "plot.png")
    with pytest.raises(WeirError, match="no rows"):
        advice(write(tmp_path / "empty.parquet", stream_of([], [])))
    still = stream_of(*planted(100)).set_column(0, "time", pa.array([1] * 100))
    with pytest.raises(WeirError, match="same time"):
        advice(write(tmp_path / "still.parquet", still), "--time", "time")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(WeirError, match="neither Parquet nor CSV"):
        advice(tmp_path / "text.parquet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WeirError, match="pip install"):
        advice(communities, "--plot", tmp_path / "plot.png")


def test_nulls_everywhere(tmp_path):
    rows = stream_of(*planted(50))
    nothing = rows.set_column(1, "place", pa.nulls(50, pa.string()))
    with pytest.raises(WeirError, match="all keys are null"):
        advice(write(tmp_path / "null.parquet", nothing))
