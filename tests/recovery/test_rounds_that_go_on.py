"""A round of topics goes on while they bring messages: fewer waits, and each message is read once all the same."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import weir
from weir.engine.batch import driver as loop
from weir.faults import watching
from weir.testing import Crash, start

PARTS = [2, 3, 4, 5]


class Feed:
    """Sends the first part of a topic, and as its sink the next one whenever a batch is delivered."""

    def __init__(self, brokers):
        self.topic, self._send, self.sent, self._left = brokers.topic(1), brokers.send, 0, list(PARTS)
        self()

    def __call__(self, rows=None, batch=None):
        if self._left:
            number = self._left.pop(0)
            self._send(self.topic, [{"k": "a"}] * number)
            self.sent += number


@pytest.fixture
def feed(brokers):
    return Feed(brokers)


@pytest.fixture
def begin(brokers, feed, checkpoint):
    def begin(stays=True):
        rows = weir.kafka(brokers.servers, feed.topic, "k string")
        query = start(rows.count("k", name="n"), checkpoint, servers=2, sink=feed)
        query._driver.stays = stays
        return query

    return begin


def test_a_round_goes_on_while_messages_come(begin):
    with begin() as query:
        query.feed()
        assert [p.rows for p in query.recent_progress] == PARTS
        assert query._driver.ledger.last.handed_over == 0


def test_without_that_each_round_reads_what_was_there_when_it_began(begin):
    with begin(stays=False) as query:
        for done in range(1, 5):
            query.feed()
            assert [p.rows for p in query.recent_progress] == PARTS[:done]


def test_whoever_waits_for_the_end_of_a_round_gets_it(begin):
    with begin() as query, query._driver.prompt():
        query.feed()
        assert [p.rows for p in query.recent_progress] == PARTS[:1]


@pytest.mark.parametrize("point", ["plan-written", "job-done", "commit-written"])
@pytest.mark.parametrize("number", [0, 1])  # Spark hands the round over again, or knows that it has ended
def test_a_driver_that_dies_in_the_midst_of_a_round_reads_each_message_once(begin, feed, point, number):
    query = begin()
    query._faults.append((point, 2))
    with watching(query._watch), pytest.raises(Crash):
        query._driver.batch(query._rows({}), 0)
    with begin() as query:
        query.feed(number=0)
        query.feed(number=number)
        assert query.state("n").to_pylist() == [{"k": "a", "count": feed.sent}]
    assert feed.sent == sum(PARTS)


def test_a_round_that_waits_for_messages_is_nothing_that_stopping_gives_up(begin, monkeypatch):
    monkeypatch.setattr(loop, "LINGER", 60.0)
    with begin() as query:
        thread = threading.Thread(target=query.feed)
        thread.start()
        until = time.monotonic() + 60
        while sum(p.rows for p in query.recent_progress) < sum(PARTS) or not query._driver._lingering:
            assert time.monotonic() < until
            time.sleep(0.005)
        assert query._driver.drain(0)
        thread.join(30)
        assert not thread.is_alive()


def test_files_are_deleted_meanwhile_and_what_goes_wrong_there_stops_the_query(
    begin, monkeypatch, checkpoint
):
    query = begin()
    for _ in range(21):
        query.feed()
    query._driver.close()
    assert len(list((Path(checkpoint) / "commits").iterdir())) == 14  # of 24
    query._driver.ledger.clean = lambda: 1 / 0
    query._driver._cleaning.begin(meanwhile=True)
    with pytest.raises(ZeroDivisionError):
        query._driver._cleaning.begin(meanwhile=True)


def test_what_is_being_written_meanwhile_is_left_alone(begin):
    with begin() as query:
        query.feed()
        storage, ledger = query._driver.storage, query._driver.ledger
        storage.write("plans/000000000099-0000.tmp", b"half of a plan")
        ledger.clean()
        assert storage.exists("plans/000000000099-0000.tmp")
        query._driver._cleaning.begin(meanwhile=True)  # between two documents
        assert not storage.exists("plans/000000000099-0000.tmp")
