"""Whole applications in this process, each compared with what plain Python says about the same input."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from support import POSTS, counts, dicts, every_type, grouped, posts, rows_of, two_counts
from weir.testing import run, start
from weir_evaluation.routing import WorstCase

TOPICS = weir.Table.of({f"topic {t}": (t // 10) % 3 for t in range(200)})
PLACES = weir.Table.of({f"place {p}": p % 3 for p in range(20)})


@pytest.fixture(scope="module")
def tables():
    return [posts(3000, seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("places", "topics"),
    [
        (None, None),
        (PLACES, TOPICS),
        (PLACES, WorstCase(TOPICS)),
        (weir.Shuffle(), weir.Shuffle()),
        (weir.Hash(), weir.Shuffle()),
    ],
    ids=["hash", "table", "worst", "shuffled partials", "hash then partials"],
)
def test_two_counts_are_right_whatever_the_grouping(tables, places, topics):
    query = run(two_counts(places=places, routing=topics), tables, servers=3)
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert len(query.recent_progress) == 3
    assert query.progress.state_keys["topics"] == len(counts(tables, "topic"))


def test_a_fitting_table_keeps_rows_on_their_server_and_its_worst_case_none(tables):
    locality = {}
    for name, topics in {"hash": None, "table": TOPICS, "worst": WorstCase(TOPICS)}.items():
        query = run(two_counts(places=PLACES, routing=topics), tables, servers=3)
        edge = query.progress.edges["places → topics"]
        assert edge.local + edge.remote == query.progress.rows == 3000
        locality[name] = edge.locality
    assert locality["table"] > 0.7
    assert locality["hash"] == pytest.approx(1 / 3, abs=0.15)
    assert locality["worst"] < 0.2


def test_a_dag_with_two_sources_a_branch_a_union_and_two_sinks():
    one, two = [posts(1500, 1), posts(1500, 2)], [posts(1500, 3), posts(1500, 4)]
    web = weir.source(POSTS, "web")
    big = weir.source(POSTS, "app").filter_batches(lambda b: pc.greater(b.column("n"), 500), name="big")
    places = web.union(big).keyed("place", weir.Count(emit="rows"), name="places")
    topics = places.keyed("topic", weir.Aggregate(total="sum(n)", top="max(place)"), name="topics")
    pairs = web.keyed(["place", "topic"], weir.Count(), name="pairs", parallelism=2)
    ends = {"topics": {}, "pairs": {}}
    sinks = {
        "topics": lambda t, b: ends["topics"].update({r[0]: r for r in rows_of(t)}),
        "pairs": lambda t, b: ends["pairs"].update({r[:2]: r for r in rows_of(t)}),
    }
    batches = [{"web": a, "app": b} for a, b in zip(one, two, strict=True)]
    query = run(weir.Application(topics, pairs), batches, servers=3, sink=sinks)

    both = [*one, *(table.filter(pc.greater(table["n"], 500)) for table in two)]
    expected = sorted(
        (
            (topic, sum(r["n"] for r in rows), max(r["place"] for r in rows))
            for (topic,), rows in grouped(both, "topic").items()
        ),
        key=repr,
    )
    assert rows_of(query.state("places")) == counts(both, "place")
    assert rows_of(query.state("topics")) == expected
    assert rows_of(query.state("pairs")) == counts(one, "place", "topic")
    assert sorted(ends["topics"].values(), key=repr) == expected
    assert sorted(ends["pairs"].values(), key=repr) == counts(one, "place", "topic")


def test_maps_flat_maps_and_shuffle_between_keyed_operators(tables):
    def words(batch):
        return {
            "word": pa.concat_arrays([batch.column("topic"), pc.utf8_upper(batch.column("topic"))]),
            "n": pa.concat_arrays([batch.column("n")] * 2),
        }

    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places")
        .map_batches(words, "word string, n long", name="words", routing=weir.Shuffle())
        .filter_batches(lambda b: pc.greater(b.column("n"), 10))
        .keyed("word", weir.Count(), name="counts")
    )
    query = run(app, tables, servers=3)
    large = [row for row in dicts(tables) if row["n"] > 10]
    words_twice = pa.table({"word": [w for row in large for w in (row["topic"], row["topic"].upper())]})
    assert rows_of(query.state("counts")) == counts(words_twice, "word")
    assert query.progress.operators["words"].imbalance < 1.02


def test_every_type_of_key():
    table = every_type()
    stream = weir.source(table.schema)
    keys = [["i"], ["l"], ["d"], ["t"], ["b"], ["y"], ["s"], ["s", "d", "b", "y", "i"]]
    for number, key in enumerate(keys):
        stream = stream.keyed(key, weir.Count(emit="rows"), name=f"op{number}")
    query = run(stream, [table], servers=3)
    for number, key in enumerate(keys):
        with_key = table.filter(pc.is_valid(table["s"])) if "s" in key else table
        assert rows_of(query.state(f"op{number}")) == counts(with_key, *key), key
    assert query.progress.operators["op6"].null_keys == table["s"].null_count


def test_all_aggregates(tables):
    aggregate = weir.Aggregate(
        rows="count", some="count(n)", total="sum(n)", low="min(n)", high="max(topic)", mean="mean(n)",
        different="approx_distinct(topic)",
    )  # fmt: skip
    query = run(weir.source(POSTS).keyed("place", aggregate, name="p"), tables, servers=2)
    states = {row[0]: row[1:] for row in rows_of(query.state("p"))}
    groups = grouped(tables, "place")
    assert len(states) == len(groups)
    for (place,), rows in groups.items():
        ours, numbers, topics = states[place], [r["n"] for r in rows], [r["topic"] for r in rows]
        assert ours[:5] == (len(rows), len(rows), sum(numbers), min(numbers), max(topics))
        assert ours[5] == pytest.approx(sum(numbers) / len(rows))
        assert abs(ours[6] - len(set(topics))) <= max(2, 0.15 * len(set(topics)))


def test_placement_and_parallelism_are_kept_to(tables):
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places", placement=[2])
        .map_batches(lambda b: b, name="same", placement=[0, 1])
        .keyed("topic", weir.Count(), name="topics", parallelism=2)
    )
    query = run(app, tables, servers=4)
    rows = [s.rows for s in query.progress.servers]
    assert rows[3] == 0
    assert rows[2] == 3000
    assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_what_is_explained(tables, capsys):
    query = run(two_counts(), tables[:1], servers=2)
    query.explain()
    shown = capsys.readouterr().out
    assert "places ─KG→ topics" in shown
    assert "2 exchanges per batch" in shown
    assert query.status == {"active": False, "message": "stopped", "batch": 0, "servers": 2}
    assert query.exception() is None
    with pytest.raises(weir.errors.EngineError, match="did you mean 'topics'"):
        query.state("topic")


@dataclass
class Rows:
    rows: int = 0


@pytest.mark.parametrize("seed", range(4))
def test_state_that_several_steps_of_a_batch_write_is_read_newest_first(seed):
    """Reports of earlier steps reach a server in any order; the state that the last of them wrote counts."""

    def count(key, rows, state):
        state.rows += len(rows)

    stream = weir.source("key long")
    for step in range(4):  # some rows get to their key's server sooner than others
        stream = stream.map_batches(lambda batch: batch, name=f"shuffle{step}", routing=weir.Shuffle())
    app = stream.process("key", count, name="counts", state=Rows)
    table = pa.table({"key": pa.array([i % 5 for i in range(400)])})
    with start(app, servers=4, seed=seed) as query:
        query.feed(table)
        assert {row["rows"] for row in query.state("counts").to_pylist()} == {80}
