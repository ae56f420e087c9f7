"""Advice: sound on data whose answer is obvious, and tables that keep what it promises."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

import weir
from recorded import planted, stream_of, write
from support import two_counts
from weir.advise import advise
from weir.errors import TopologyError, UnknownColumn, WeirError
from weir.testing import run

pytestmark = pytest.mark.usefixtures("few_starts")


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    return write(tmp_path_factory.mktemp("advise") / "communities.parquet", stream_of(*planted()))


@pytest.fixture(scope="module")
def advised(communities):
    return advise(communities, keys=["place", "topic"], servers=4, time="time")


def advice(data, *, servers=4, keys=("place", "topic"), **options):
    return advise(data, keys=keys, servers=servers, **options)


def codes(result):
    return {piece["code"] for piece in result["recommendation"]["advice"]}


def test_planted_communities_are_found_and_last(advised):
    result = advised
    assert result["hash"]["locality"] == pytest.approx(0.25, abs=0.07)
    # nine in ten keep affinity, and one in four of the others meets it by chance
    assert result["table"]["locality"] == pytest.approx(0.925, abs=0.03)
    assert result["drift"]["late"]["locality"] > 0.89
    assert result["live"]["locality"] > 0.89
    assert result["bound"]["locality"] >= result["table"]["locality"]
    assert all(busiest < 1.15 for busiest in result["table"]["imbalance"].values())
    assert result["recommendation"]["verdict"] == "start"
    assert "drifts" not in codes(result)
    # the controller would learn tables by itself, and says so in its own words
    assert result["auto"]["locality"] > 0.89
    assert "tables: " in "".join(result["auto"]["says"])
    assert result["hops"][0]["bytes_saved_per_row"] > 0.5 * result["row_bytes"]
    json.dumps(result)


def test_no_communities_means_hash_even_where_the_bound_flatters(tmp_path):
    rng = np.random.default_rng(1)
    # few rows per pair: a table that has seen them looks good, and is worth nothing on the next ones
    table = stream_of(rng.integers(0, 100, 6_000), rng.integers(0, 1_000, 6_000))
    result = advice(write(tmp_path / "none.parquet", table))
    assert result["bound"]["locality"] > 0.4
    assert result["table"]["locality"] < 0.3
    assert result["recommendation"]["verdict"] == "hash"
    assert "no affinity" in result["recommendation"]["words"]


def test_keys_that_never_return_mean_hash(tmp_path):
    numbers = np.arange(2_000)
    result = advice(write(tmp_path / "new.parquet", stream_of(numbers, numbers)))
    assert result["recommendation"]["verdict"] == "hash"
    assert "never seen" in result["recommendation"]["words"]
    assert result["auto"]["locality"] == pytest.approx(result["hash"]["locality"], abs=0.05)
    assert result["new_rows"] == {"place": 1.0, "topic": 1.0}


def test_drift_is_seen_and_learning_recommended(tmp_path):
    parts = [planted(3_000, seed=i, shift=i) for i in range(4)]
    place, topic = (np.concatenate(side) for side in zip(*parts, strict=True))
    result = advice(write(tmp_path / "drift.parquet", stream_of(place, topic)), time="time")
    assert result["drift"]["late"]["locality"] < result["drift"]["relearnt"] - 0.2
    assert "drifts" in codes(result)
    text = next(p["text"] for p in result["recommendation"]["advice"] if p["code"] == "drifts")
    assert "period" in text
    assert result["memory_slices"] is not None


def test_a_hub_sets_the_floor_and_is_to_be_split(tmp_path):
    place, topic = planted()
    topic = np.where(np.random.default_rng(2).random(len(topic)) < 0.4, 7, topic)
    result = advice(write(tmp_path / "hub.parquet", stream_of(place, topic)))
    hot = result["hot_keys"][1]
    assert hot["keys"][0]["key"] == "t 7"
    assert hot["floor"] == pytest.approx(0.4 * 4, abs=0.1)
    assert hot["floor"] == pytest.approx(hot["keys"][0]["share"] * 4)
    assert result["table"]["imbalance"]["topic"] >= hot["floor"] - 0.01
    assert "hot_key" in codes(result)
    assert "split_hot=True" in str(result["recommendation"]["advice"])
    assert "the hottest key of topic needs 1." in " ".join(result["auto"]["says"])
    merging = advice(tmp_path / "hub.parquet", merges="topic")
    assert merging["auto"]["split"] == {"topic": 1}
    assert not merging["auto"]["needs"]


def test_chains_of_keys_of_several_columns(tmp_path):
    place, topic = planted(4_000)
    table = stream_of(place, topic).append_column("server", pa.array(place.astype(np.int32)))
    data = write(tmp_path / "chain.parquet", table)
    out = tmp_path / "out"
    result = advice(data, out=out, payload=1000, keys="place,topic+server,server")
    assert result["operators"]["topic+server"] == ["topic", "server"]
    assert len(result["hops"]) == 2
    # the last hop can be all local: the key before it determines it
    assert result["hops"][1]["table"] > result["hops"][1]["hash"] + 0.3
    assert result["row_bytes"] == 1000
    # a key column that is called like one of a table's own is renamed, and keeps its type
    read = weir.Table.from_file(out / "server.arrow")
    assert read.keys.schema.types == [pa.int32()]


def test_keys_as_on_the_command_line_and_steps_of_the_work(communities, advised):
    steps = []
    result = advice(
        str(communities),
        keys="place,topic",
        time="time",
        progress=lambda step, total: steps.append((step, total)),
    )
    assert result == advised
    assert steps[0][0] == "hash"
    assert {total for _, total in steps} == {len(steps)}


def test_a_plus_in_the_name_of_a_column_is_part_of_it(tmp_path):
    table = stream_of(*planted(500)).rename_columns(["time", "place", "topic+n", "n"])
    result = advice(write(tmp_path / "plus.parquet", table), keys="place,topic+n")
    assert result["operators"] == {"place": ["place"], "topic+n": ["topic+n"]}


def test_tables_written_start_a_query_with_the_promised_locality(tmp_path):
    table = stream_of(*planted(10_000))
    past, future = table.slice(0, 6_000), [table.slice(6_000, 2_000), table.slice(8_000)]
    out = tmp_path / "tables"
    result = advice(
        write(tmp_path / "past.parquet", past),
        out=out,
        operators=["places", "topics"],
        time="time",
        servers=3,
    )
    read = weir.Table.from_file(out / "topics.arrow", n=3)
    assert read.keys.column_names == ["topic"]
    assert read.lookup("t 5") in (0, 1, 2)
    app = two_counts("time timestamp, place string, topic string, n long")
    query = run(app, future, servers=3, routing=weir.Locality(tables=str(out)))
    assert query.recent_progress[0].locality == pytest.approx(result["table"]["locality"], abs=0.03)
    assert query.recent_progress[0].locality > 0.85


def test_sampling_counts_about_so_many_rows(communities):
    assert advice(communities, sample=2_000)["rows"] == pytest.approx(2_000, rel=0.1)


def test_mistakes_are_named_before_work_starts(communities, tmp_path):
    with pytest.raises(WeirError, match="merges 'topics': did you mean 'topic'"):
        advice(communities, merges=["topics"])
    with pytest.raises(UnknownColumn, match="did you mean 'topic'"):
        advice(communities, keys=["place", "topik"])
    with pytest.raises(UnknownColumn, match="did you mean 'time'"):
        advice(communities, time="tme")
    with pytest.raises(TopologyError, match="doesn't tell the time"):
        advice(communities, time="place")
    with pytest.raises(TopologyError, match="name two at least"):
        advice(communities, keys=["place"])
    with pytest.raises(TopologyError, match="--operators"):
        advice(communities, keys=["place", "place"])
    with pytest.raises(TopologyError, match="give 2 names"):
        advice(communities, operators=["one"])
    with pytest.raises(WeirError, match="no data at"):
        advice(tmp_path / "nowhere.parquet")
    for servers in (1, "4"):
        with pytest.raises(WeirError, match="give 2 or more"):
            advice(communities, servers=servers)
    with pytest.raises(WeirError, match="give 1 or more"):
        advice(communities, alpha=0.9)
    for option in ("sample", "payload", "capacity"):
        with pytest.raises(WeirError, match=f"{option} 0: give a number above 0"):
            advice(communities, **{option: 0})
    with pytest.raises(WeirError, match="can't write there"):
        advice(communities, out=communities / "below-a-file")
    with pytest.raises(WeirError, match="no rows"):
        advice(write(tmp_path / "empty.parquet", stream_of([], [])))
    still = stream_of(*planted(100)).set_column(0, "time", pa.array([1] * 100))
    with pytest.raises(WeirError, match="same time"):
        advice(write(tmp_path / "still.parquet", still), time="time")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(WeirError, match="neither Parquet nor CSV"):
        advice(tmp_path / "text.parquet")


def test_nulls_everywhere(tmp_path):
    rows = stream_of(*planted(50))
    nothing = rows.set_column(1, "place", pa.nulls(50, pa.string()))
    with pytest.raises(WeirError, match="all keys are null"):
        advice(write(tmp_path / "null.parquet", nothing))
