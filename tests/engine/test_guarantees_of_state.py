"""Whatever groupings do, however servers come and go, wherever it crashes: counts are right, a key is in one place."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import POSTS, Rises, counts, rises_in_python, rows_of
from truth import count_and_top_by, homes_of
from weir import routing
from weir.testing import LocalQuery, start
from weir_evaluation import routing as rivals

pytestmark = pytest.mark.usefixtures("few_starts")

PLACES, TOPICS = 6, 12
ONE_HOME = [None, weir.Hash(), weir.Table.of({f"place {i}": 0 for i in range(4)})]
SPLITTING = [
    weir.Shuffle(),
    weir.PartialKey(),
    weir.Consistent(),
    weir.Weighted(weir.Hash()),
    weir.Weighted(routing.LocalOrShuffle(), control=None),
    routing.LocalOrShuffle(),
    rivals.TwoChoices(),
    rivals.RandomChoices(),
    rivals.BoundedRing(),
    rivals.DChoices(),
    rivals.WChoices(),
]
LEARNING = [
    None,
    weir.Locality(period=1, forecast=None),
    weir.Locality(period=2, new_keys="first_seen"),
    weir.Locality(period=1, forecast=None, new_keys="hash", split_hot=True),
    weir.Locality(period=None, split_hot=weir.Weighted(routing.LocalOrShuffle(), control=None)),
]


@dataclass
class World:
    """An application of two keyed operators, and what has been fed to it."""

    query: LocalQuery
    ordered: bool  # the second operator's state depends on the order of rows
    tables: list[pa.Table] = field(default_factory=list)

    @property
    def servers(self) -> int:
        return self.query.topology.servers

    def check(self) -> None:
        """Compare both states with plain Python, and each key's home with every other's."""
        expected = {"places": counts(self.tables, "place")}
        state = {name: self.query.state(name) for name in ("places", "topics")}
        assert rows_of(state["places"]) == expected["places"]
        if self.ordered:
            rises = {row["topic"]: row["rises"] for row in state["topics"].to_pylist()}
            assert rises == rises_in_python(self.tables)
        else:
            assert rows_of(state["topics"]) == count_and_top_by(self.tables, "topic")
        for name, key in (("places", "place"), ("topics", "topic")):
            keys = state[name][key].to_pylist()
            assert max(Counter(keys).values(), default=1) == 1
            homes = homes_of(self.query.checkpoint, name)
            assert self.query.progress.state_keys[name] == len(homes)
            assert set(homes.values()) <= set(range(len(self.query.progress.servers)))
            assert len(homes) == len(keys)

    def steer(self, action: tuple[str, int]) -> None:
        """Do something to the query between two batches."""
        kind, number = action
        query = self.query
        measured = bool(query._driver.load.rates())  # nobody decides on scaling before there were rows
        if kind == "out" and measured:
            query.scale_out(number)
        elif kind == "in" and measured and number < self.servers:
            query.scale_in(number)
        elif kind == "restart":
            query.restart()
        elif kind == "restart with":
            query.restart(servers=number)
        elif kind == "restart the other way":
            query.restart(execution="jobs" if query._options.execution == "live" else "live")
        elif kind == "reconfigure" and query._driver.learner is not None:
            query.reconfigure(wait=True)


@st.composite
def applications(draw: st.DrawFn) -> tuple[weir.Stream, bool]:
    """Two keyed operators, each behind any grouping that it may have."""
    ordered = draw(st.booleans())
    first = draw(st.sampled_from(ONE_HOME + SPLITTING))
    second = draw(st.sampled_from([None, weir.Hash()] if ordered else [None, weir.Hash(), *SPLITTING]))
    options: dict[str, Any] = {"routing": second}
    operator = Rises(order_by="n") if ordered else weir.Aggregate(count="count", top="max(n)")
    app = (
        weir.source(POSTS)
        .keyed("place", weir.Count(emit="rows"), name="places", routing=first)
        .keyed("topic", operator, name="topics", **options)
    )
    return app, ordered


rows = st.tuples(st.integers(0, PLACES - 1), st.integers(0, TOPICS - 1), st.integers(0, 50))
batches = st.lists(rows, max_size=30).map(
    lambda batch: pa.table(
        {
            "place": pa.array([f"place {p}" for p, _, _ in batch], pa.string()),
            "topic": pa.array([f"topic {t}" for _, t, _ in batch], pa.string()),
            "n": pa.array([n for _, _, n in batch], pa.int64()),
        }
    )
)
actions = st.tuples(
    st.sampled_from(
        ["nothing", "out", "in", "reconfigure", "restart", "restart with", "restart the other way"]
    ),
    st.integers(1, 3),
)


crashes = st.lists(
    st.tuples(
        st.sampled_from(["plan-written", "job-done", "commit-written", "sink-delivered"]), st.integers(0, 4)
    )
    | st.tuples(st.just("step-started"), st.sampled_from([1, 2, 102, 103, 201])),  # of a task: batch and step
    max_size=3,
    unique=True,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    applications(),
    st.sampled_from(LEARNING),
    st.integers(1, 3),
    st.lists(st.tuples(batches, actions), min_size=2, max_size=6),
    st.none() | st.integers(0, 1000),
    crashes,
    st.sampled_from(["jobs", "live"]),
)
def test_counts_are_right_and_every_key_has_one_place(
    application, learning, servers, story, seed, crashes, execution
):
    app, ordered = application
    faults = [f"{point}:{batch}" for point, batch in crashes]
    with tempfile.TemporaryDirectory() as folder:
        ways = {"faults": faults, "execution": execution}
        query = start(app, folder, servers=servers, routing=learning, seed=seed, **ways)
        world = World(query, ordered)
        for table, action in story:
            query.feed(table)
            world.tables.append(table)
            world.check()
            world.steer(action)
        query.finish()
        world.check()
        query.stop()
