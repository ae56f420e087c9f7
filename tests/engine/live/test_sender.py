"""Senders of live servers: who sends does not wait for a slow link, and what is sent arrives whole and in order."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from support import counts, posts, rows_of, two_counts
from truth import eventually
from weir.engine.live import sender as sender_module
from weir.engine.live.inbox import Inbox
from weir.engine.live.sender import Sender
from weir.engine.live.tls import Channel, Identity
from weir.engine.live.transport import END, ROWS, Connection, Frame
from weir.engine.local.in_process import LiveThreads
from weir.testing import LocalQuery, run

IDENTITY = Identity.new()
LARGE = 40_000_000  # more than the system keeps for any connection


def frame(size: int, edge: int = 0) -> Frame:
    return Frame(ROWS, edge=edge, rows=1, payload=pa.py_buffer(os.urandom(size)) if size else None)


def ends(sealed: bool) -> tuple[Connection, Connection]:
    """Return who sends and who receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    if not sealed:
        return Connection(one), Connection(other)
    with ThreadPoolExecutor(1) as pool:
        greeting = pool.submit(Channel, other, IDENTITY, listens=True)
        channel = Channel(one, IDENTITY, listens=False)
        return Connection(one, channel=channel), Connection(other, channel=greeting.result())


@contextlib.contextmanager
def sending(*connections: Connection, **terms):
    sender = Sender(dict(enumerate(connections)), **terms)
    try:
        yield sender
    finally:
        sender.close()
        for connection in connections:
            connection.close()


def received(connection: Connection) -> list[tuple[int, bytes]]:
    out = []
    while (got := connection.receive()) is not None and got.what != END:
        out.append((got.edge, got.data))
    return out


@given(
    sizes=st.lists(st.sampled_from([0, 1, 1000, 70_000, 3_000_000]), max_size=12),
    sealed=st.booleans(),
    pause=st.sampled_from([0.0, 0.02]),
)
def test_all_arrives_whole_and_in_order(sizes, sealed, pause):
    one, other = ends(sealed)
    frames = [frame(size, edge) for edge, size in enumerate(sizes)]
    got: list[tuple[int, bytes]] = []

    def read():
        time.sleep(pause)
        got.extend(received(other))

    reader = threading.Thread(target=read)
    reader.start()
    with sending(one, bound=4_000_000) as sender:
        for each in [*frames, Frame(END)]:
            sender.send(0, each)
        sender.drain()
        reader.join(20)
    assert got == [(each.edge, each.data) for each in frames]
    other.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_who_sends_goes_on_while_a_peer_does_not_read_and_others_get_theirs(sealed):
    (slow, late), (fast, prompt) = ends(sealed), ends(sealed)
    large, small = frame(LARGE), frame(1000)
    with sending(slow, fast) as sender:
        sender.send(0, large)  # nobody reads it yet
        sender.send(0, Frame(END))
        sender.send(1, small)
        sender.send(1, Frame(END))
        assert received(prompt) == [(0, small.data)]
        reader = threading.Thread(target=lambda: got.extend(received(late)))
        got: list[tuple[int, bytes]] = []
        reader.start()
        sender.drain()
        reader.join(20)
        assert got == [(0, large.data)]
    late.close()
    prompt.close()


def test_what_waits_has_a_bound():
    one, other = ends(sealed=False)
    sent = []
    with sending(one, bound=LARGE + 1000) as sender:

        def send():
            for size in (LARGE, 500, LARGE, 10):
                sender.send(0, frame(size))
                sent.append(size)
            sender.send(0, Frame(END))

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        eventually(lambda: sent == [LARGE, 500])
        time.sleep(0.2)
        assert sent == [LARGE, 500]  # the third would be too much
        assert [len(data) for _, data in received(other)] == [LARGE, 500, LARGE, 10]
        thread.join(20)
        assert sent == [LARGE, 500, LARGE, 10]
    other.close()


def test_a_connection_that_ends_is_told_at_once_and_to_who_sends_next():
    one, other = ends(sealed=False)
    lost, told = [], threading.Event()

    def lose(number, error):
        lost.append((number, type(error)))
        told.set()

    with sending(one, lost=lose) as sender:
        sender.send(0, frame(LARGE))
        other.close()
        assert told.wait(20)
        assert lost[0][0] == 0
        assert issubclass(lost[0][1], OSError)
        with pytest.raises(OSError):
            sender.drain()
        with pytest.raises(OSError):
            sender.send(0, frame(10))


def test_a_sender_that_is_closed_loses_nobody():
    one, other = ends(sealed=False)
    lost = []
    with sending(one, lost=lambda *what: lost.append(what)) as sender:
        sender.send(0, frame(LARGE))
    time.sleep(0.1)
    assert lost == []
    other.close()


@pytest.mark.usefixtures("few_starts")
def test_rows_for_others_leave_before_a_server_works_on_its_own(monkeypatch):
    """Each server's first call of ``work`` only returns when rows of the other have arrived here."""
    arrived: dict[int, threading.Event] = defaultdict(threading.Event)  # by inbox
    inboxes: dict[int, Inbox] = {}  # by the thread that takes from them
    put, take = Inbox.put, Inbox.take

    def noted(self, frame):
        put(self, frame)
        if frame.step == 2:
            arrived[id(self)].set()

    def taken(self, *terms, **options):
        inboxes[threading.get_ident()] = self
        return take(self, *terms, **options)

    monkeypatch.setattr(Inbox, "put", noted)
    monkeypatch.setattr(Inbox, "take", taken)
    in_time: dict[int, bool] = {}

    def work(batch):
        mine = id(inboxes[threading.get_ident()])
        if mine not in in_time:
            in_time[mine] = arrived[mine].wait(60)
        return batch

    tables = [posts(3000, 1)]
    app = (
        weir.source(tables[0].schema)
        .map_batches(lambda batch: batch, name="spread", routing=weir.Shuffle())
        .map_batches(work, name="work", routing=weir.Shuffle())
        .keyed("topic", weir.Count(), name="topics")
    )
    query = run(app, tables, servers=2, execution="live")
    assert {p.execution for p in query.recent_progress} == {"live"}
    assert list(in_time.values()) == [True, True]
    assert rows_of(query.state("topics")) == counts(tables, "topic")


@pytest.mark.usefixtures("few_starts")
@pytest.mark.parametrize("sealed", [False, True])
def test_counts_are_right_when_next_to_nothing_may_wait(monkeypatch, sealed):
    monkeypatch.setattr(sender_module, "BOUND", 100)
    monkeypatch.setattr(LocalQuery, "_live_runner", partial(LiveThreads, limit=2000, sealed=sealed))
    tables = [posts(3000, seed) for seed in range(2)]
    query = run(two_counts(routing=weir.PartialKey()), tables, servers=3, execution="live")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert {p.execution for p in query.recent_progress} == {"live"}
