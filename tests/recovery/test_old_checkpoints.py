"""Checkpoints that versions 0.1.0 and 0.2.0 wrote are opened and continued: nothing is lost, nothing is counted twice.

``old_checkpoints.py`` wrote them; ``data/README.md`` says how. Batches go on in this process.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lists_of_0_2
import pytest
from old_checkpoints import DATA, SCHEMA, START, STORIES, Total, posts

import weir
import weir.testing
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.inspect.inspection import inspect
from weir.errors import CheckpointMismatch
from weir.state.storage import Storage

MORE = 3  # batches that this version adds


class Totals(weir.Process):
    state = Total
    output = {"topic": "string", "rows": "long", "total": "long"}

    def process(self, key: str, rows: list[Any], state: Total) -> Iterator[Any]:
        state.rows += len(rows)
        state.total += sum(row.n for row in rows)
        yield key, state.rows, state.total


def application(story: str) -> weir.Application:
    """Return the application of a story, as it is written today."""
    source = weir.source(SCHEMA)
    sums = weir.Aggregate(total="sum(n)", most="max(n)")
    if story == "partial_key":
        places = source.keyed("place", weir.Count(emit="rows"), name="places", routing=weir.PartialKey())
        return weir.Application(places.keyed("topic", sums, name="topics", routing=weir.PartialKey()))
    if story == "feedback":
        places = source.keyed("place", weir.Count(emit="rows"), name="places", routing=weir.Consistent())
        return weir.Application(
            places.keyed("topic", sums, name="topics", routing=weir.Weighted(weir.Hash()))
        )
    places = source.keyed("place", weir.Count(emit="rows"), name="places")
    hour = weir.tumbling("at", "1 hour")
    return weir.Application(
        places.keyed("topic", Totals(), name="topics"),
        places.keyed("place", weir.Aggregate(total="sum(n)"), name="hours", window=hour),
    )


def unpack(story: str, folder: Path) -> str:
    """Return a copy of the checkpoint of a story."""
    with tarfile.open(DATA / f"{story}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return str(folder)


def options(story: str) -> dict[str, Any]:
    learns = story in ("locality", "scaled_locality", "planned")
    return {
        "servers": 2 if "scal" in story else 3,
        "routing": weir.Locality(period=1, forecast=None) if learns else None,
    }


def resume(story: str, folder: Path, **others: Any) -> weir.testing.LocalQuery:
    return weir.testing.start(application(story), unpack(story, folder), **{**options(story), **others})


def check_state(query: weir.testing.LocalQuery, story: str, batches: int) -> None:
    """Compare the state with what plain Python makes of all rows."""
    rows = [row for batch in range(batches) for row in posts(batch)]
    places = Counter(row["place"] for row in rows)
    assert {row["place"]: row["count"] for row in query.state("places").to_pylist()} == dict(places)
    topics: dict[str, list[int]] = {}
    for row in rows:
        topics.setdefault(row["topic"], []).append(row["n"])
    state = {row.pop("topic"): row for row in query.state("topics").to_pylist()}
    if story in ("partial_key", "feedback"):
        assert state == {key: {"total": sum(n), "most": max(n)} for key, n in topics.items()}
    else:
        assert state == {key: {"rows": len(n), "total": sum(n)} for key, n in topics.items()}


def hourly(batches: range) -> list[tuple[Any, ...]]:
    """Return place, hour and sum of the windows that belong to some batches."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for batch in batches:
        for row in posts(batch):
            sums[row["place"], START + timedelta(hours=batch)] += row["n"]
    return sorted((*key, total) for key, total in sums.items())


@pytest.mark.parametrize("story", STORIES)
def test_an_old_checkpoint_is_continued(story: str, tmp_path: Path) -> None:
    committed = STORIES[story]
    with resume(story, tmp_path) as query:
        if story != "partial_key":  # of which partial states wait
            check_state(query, story, committed)
        for batch in range(committed, committed + MORE):
            query.feed(posts(batch))
            assert query.progress.batch == batch
        check_state(query, story, committed + MORE)
        assert query.progress.state_keys["places"] == query.state("places").num_rows
        query.finish()
        check_state(query, story, committed + MORE)
        if story not in ("partial_key", "feedback"):
            # the last two hours were open when the old version stopped; what it had closed is not closed again
            closed = query.output("hours").to_pylist()
            windows = sorted((row["place"], row["window_start"], row["total"]) for row in closed)
            assert windows == hourly(range(committed - 2, committed + MORE))
            assert query.state("hours").num_rows == 0


@pytest.mark.parametrize("story", STORIES)
def test_the_progress_of_an_old_checkpoint_is_read(story: str, tmp_path: Path) -> None:
    with resume(story, tmp_path) as query:
        progress = query.progress
        assert progress.batch == STORIES[story] - 1
        assert progress.rows == 60
        assert progress.operators["topics"].rows_in == 60
        assert len(progress.servers) == {"scaled": 4, "scaled_locality": 4, "planned_scaling": 2}.get(
            story, 3
        )


@pytest.mark.parametrize("story", STORIES)
def test_an_old_checkpoint_is_inspected(story: str, tmp_path: Path) -> None:
    about = inspect(unpack(story, tmp_path))
    assert about["health"]["ok"]
    assert about["health"]["damaged"] == []
    assert [batch["batch"] for batch in about["batches"]] == list(range(STORIES[story]))


def test_a_checkpoint_that_was_continued_is_in_order(tmp_path: Path) -> None:
    with resume("scaled_locality", tmp_path) as query:
        query.feed(posts(4))
        query.feed(posts(5))
    health = inspect(str(tmp_path))["health"]
    assert health["ok"]
    assert health["orphans"]["files"] == health["in_flight"]["files"] == 0


def test_learnt_tables_and_the_manager_go_on(tmp_path: Path) -> None:
    with resume("locality", tmp_path) as query:
        query.feed(posts(4))
        before = len(query.routing_table("topics"))
        decisions = len(query.decisions)
        assert before > 10
        assert decisions >= 3
        query.reconfigure(wait=True)
        query.feed(posts(5))
        assert len(query.decisions) == decisions + 1
        assert query.progress.table_version > 3
        check_state(query, "locality", 6)


@pytest.mark.parametrize("story", ["scaled", "scaled_locality"])
def test_a_scaled_checkpoint_keeps_its_servers_and_scales_on(story: str, tmp_path: Path) -> None:
    with resume(story, tmp_path) as query:
        assert query.topology.servers == 4
        query.feed(posts(4))
        query.scale_in(1, wait=0)
        query.feed(posts(5))
        assert query.topology.servers == 3
        assert query.progress.scaled["from"] == 4
        check_state(query, story, 6)


def test_waiting_partial_states_are_merged(tmp_path: Path) -> None:
    def waiting() -> int:
        last = CheckpointLayout(Storage(str(tmp_path))).latest_commit()
        assert last is not None
        return sum(ref.rows for refs in last.manifest["places~held"] for ref in refs)

    with resume("partial_key", tmp_path) as query:
        assert waiting() > 0
        with pytest.raises(weir.errors.EngineError, match="not merged yet"):
            query.state("places")
        query.feed(posts(5))  # merges them
        check_state(query, "partial_key", 6)


def test_routers_hear_what_the_old_version_measured(tmp_path: Path) -> None:
    with resume("feedback", tmp_path) as query:
        query.feed(posts(4))
    storage = Storage(str(tmp_path))
    old = storage.read_document("commits/000000000003-0000", "commit")
    assert old["signals"]["places"]
    assert old["times"]["topics"]
    plan = storage.read_document("plans/000000000004-0000", "plan")
    assert plan["feedback"] == {**old["signals"], **old["times"]}


def test_a_plan_with_a_measured_network_profile_is_planned_anew(tmp_path: Path) -> None:
    """Version 0.2 could measure what distances cost, and wrote it into plans."""
    query = weir.testing.start(application("feedback"), unpack("measured", tmp_path), servers=3)
    with query:
        check_state(query, "feedback", 2)
        query.feed(posts(2))
        assert query.progress.batch == 2
        check_state(query, "feedback", 3)


@pytest.mark.parametrize(("story", "batch"), [("planned", 3), ("planned_scaling", 2)])
def test_a_plan_that_was_left_behind_is_made_anew(story: str, batch: int, tmp_path: Path) -> None:
    """It names owners of keys that this version does not know; nothing of it has happened."""
    with resume(story, tmp_path) as query:
        file = tmp_path / "plans" / f"{batch:012d}-0000"
        plan = file.read_bytes()
        query.feed(posts(batch))
        assert file.read_bytes() != plan
        check_state(query, story, batch + 1)


def test_an_old_checkpoint_takes_other_servers(tmp_path: Path) -> None:
    with resume("hash", tmp_path, servers=5) as query:
        query.feed(posts(4))
        check_state(query, "hash", 5)


def test_another_operator_is_refused_with_the_remedy(tmp_path: Path) -> None:
    app = weir.source(SCHEMA).keyed("place", weir.Aggregate(total="sum(n)"), name="places")
    with pytest.raises(CheckpointMismatch, match="operator 'places' has another definition now.*new name"):
        weir.testing.start(app, unpack("feedback", tmp_path), servers=3, drop_state=["topics"])


@pytest.mark.parametrize("servers", [2, 3])
def test_lists_and_maps_go_on_element_by_element_or_whole(tmp_path: Path, servers: int) -> None:
    with tarfile.open(lists_of_0_2.ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    app = lists_of_0_2.application()
    with weir.testing.start(app, str(tmp_path), servers=servers) as query:
        for batch in range(lists_of_0_2.BATCHES, lists_of_0_2.BATCHES + MORE):
            query.feed(lists_of_0_2.rows(batch))
            states = {s["k"]: s for s in query.state("kept").to_pylist()}
            kept = {k: (s["rows"], json.loads(s["last"]), json.loads(s["kinds"])) for k, s in states.items()}
            assert kept == lists_of_0_2.truth(batch + 1)
        assert inspect(str(tmp_path))["health"]["ok"]
