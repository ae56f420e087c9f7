"""What reaches the driver does not grow with the number of servers, and says as much as it did."""

from __future__ import annotations

import threading
from concurrent import futures

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
import weir.testing
from support import POSTS, counts, posts, rows_of
from weir.engine.exchange import wire
from weir.engine.local import in_process
from weir.engine.steering import learning
from weir.engine.task import key_counting
from weir.engine.task.key_counting import Learning
from weir.engine.task.tables import load_table
from weir.locality.config import Locality
from weir.locality.manager import LocalityManager


def app(routing=None):
    places = weir.source(POSTS).keyed("place", weir.Count(emit="rows"), name="places", routing=routing)
    return places.keyed("topic", weir.Count(), name="topics")


def answers_of(monkeypatch, application, tables, **options):
    """Return what the driver was sent in each batch, by kind, and the query."""
    seen = []
    real = in_process.result_of

    def of(answers, *about):
        answers = list(answers)
        seen.append({k: [p for kind, p in answers if kind == k] for k in (wire.CONTROL, wire.STATISTICS)})
        return real(answers, *about)

    monkeypatch.setattr(in_process, "result_of", of)
    return seen, weir.testing.run(application, tables, **options)


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(1, 10**7))
def test_servers_share_what_the_driver_takes_in(servers, operators, capacity):
    edges = [(o, o + 1) for o in range(operators - 1)]
    made = Learning.of([f"o{o}" for o in range(operators)], edges, servers, Locality(capacity=capacity))
    assert 1 <= made.capacity <= min(capacity, key_counting.SERVER_ENTRIES)
    assert (
        made.capacity == 1
        or servers * (operators + len(edges)) * made.capacity <= key_counting.DRIVER_ENTRIES
    )


@pytest.mark.parametrize("routing", [None, weir.PartialKey()], ids=["locality", "split"])
def test_a_report_is_as_long_with_many_servers_as_with_few(monkeypatch, routing):
    tables = [posts(4000, seed) for seed in range(2)]
    longest = {}
    for servers in (3, 24):
        options = {"routing": weir.Locality(period=1)} if routing is None else {}
        with monkeypatch.context() as patch:
            seen, query = answers_of(patch, app(routing), tables, servers=servers, **options)
        assert rows_of(query.state("topics")) == counts(tables, "topic")
        longest[servers] = max(len(p) for p in seen[-1][wire.CONTROL])
        if routing is None:
            assert len(seen[-1][wire.STATISTICS]) <= servers  # one summary each, whatever the steps
    assert longest[24] < longest[3] + 60


def test_the_summaries_of_a_batch_stay_within_the_budget(monkeypatch):
    monkeypatch.setattr(key_counting, "DRIVER_ENTRIES", 60)
    tables = [posts(4000, seed) for seed in range(3)]
    _, query = answers_of(monkeypatch, app(), tables, servers=4, routing=weir.Locality(period=1))
    assert query._driver.learner.learning.capacity == 5
    shares = query.progress.routing.counted
    assert all(0 < share < 1 for share in shares.values())
    assert rows_of(query.state("topics")) == counts(tables, "topic")


tallies = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 10**9)), min_size=1, max_size=20)


@given(tallies, tallies)
def test_tallies_agree_exactly_if_every_server_got_its_rows(one, two):
    def whole(parts):
        out, truth = {}, {}
        for server, rows in parts:
            wire.add_tally(out, (), server, rows)
            truth[server] = truth.get(server, 0) + rows
        return out, truth

    (a, sent), (b, got) = whole(one), whole(two)
    assert (a == b) == (sent == got)
    assert whole(one[::-1])[0] == a


def test_what_is_learnt_and_saved_beside_the_batches_is_not_lost(monkeypatch):
    monkeypatch.setattr(learning, "AT_ONCE", 0)
    monkeypatch.setattr(learning.Learner, "light", False)
    tables = [posts(1500, seed) for seed in range(9)]
    with weir.testing.start(app(), servers=3, routing=weir.Locality(period=2)) as query:
        for table in tables:
            query.feed(table)
            learner = query._driver.learner
            running = (learner._taking_in, learner._computing, learner._saving)
            futures.wait([f for f in running if f is not None])
        assert query.progress.table_version > 0
        assert query._driver.ledger.last.manager is not None
        known = learner.manager.known[0]
        query.restart()
        query.feed(tables[0])
        assert query._driver.learner.manager.known[0] >= known
        assert rows_of(query.state("topics")) == counts([*tables, tables[0]], "topic")


def test_a_plan_does_not_wait_for_statistics_that_are_being_taken_in(monkeypatch):
    monkeypatch.setattr(learning, "AT_ONCE", 0)
    gate = threading.Event()
    real = learning.Learner._take_in
    monkeypatch.setattr(learning.Learner, "_take_in", lambda self, parts: (gate.wait(60), real(self, parts)))
    tables = [posts(1500, seed) for seed in range(2)]
    with weir.testing.start(app(), servers=3, routing=weir.Locality(period=1)) as query:
        query.feed(tables[0])
        before = query._driver.learner.next_plan(1, {}, 0)
        assert before == ({}, 0, [])
        gate.set()
        query.feed(tables[1])
        assert rows_of(query.state("topics")) == counts(tables, "topic")


def test_tables_change_while_the_statistics_of_later_batches_are_being_taken_in(monkeypatch):
    monkeypatch.setattr(learning, "AT_ONCE", 0)
    planned = threading.Semaphore(0)
    real = learning.Learner._take_in
    monkeypatch.setattr(
        learning.Learner, "_take_in", lambda self, parts: (planned.acquire(timeout=60), real(self, parts))
    )
    fed = []
    with weir.testing.start(app(), servers=3, routing=weir.Locality(period=1)) as query:
        while query.progress is None or not query.progress.table_version:
            assert len(fed) < 500, "no table was adopted"
            fed.append(posts(300, len(fed)))
            query.feed(fed[-1])  # planned, while the statistics of the batch before wait to be taken in
            planned.release()
        for _ in fed:
            planned.release()
        assert rows_of(query.state("topics")) == counts(fed, "topic")


def test_a_manager_that_fails_beside_the_batches_goes_on_from_the_tables_in_force(monkeypatch):
    monkeypatch.setattr(learning, "AT_ONCE", 0)
    failing = []
    real = LocalityManager.plan_next

    def plan_next(self):
        plan = real(self)
        if plan is not None and len(failing) < 2:
            failing.append(plan)
            raise RuntimeError("a plan that nobody gets")
        return plan

    monkeypatch.setattr(LocalityManager, "plan_next", plan_next)
    tables = [posts(600, seed) for seed in range(12)]
    with weir.testing.start(app(), servers=3, routing=weir.Locality(period=1)) as query:
        for table in tables:
            query.feed(table)
            learner = query._driver.learner
            futures.wait([f for f in (learner._taking_in, learner._computing) if f is not None])
        assert len(failing) == 2
        assert query.progress.table_version > 0
        for number, name in enumerate(learner.names):
            in_force = load_table(query._driver.storage, query._driver.ledger.last.tables[name])
            unpublished = 0 if learner._ready is None else len(learner._ready.patches.get(number, ()))
            assert abs(learner.manager.listed(number) - len(in_force)) <= unpublished
        assert rows_of(query.state("topics")) == counts(tables, "topic")
