"""Connections, inboxes and groups of live servers: who is let in, what is noticed, and that nobody waits for ever."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from truth import eventually
from weir.engine.live import transport
from weir.engine.live.coordinator import LiveCoordinator
from weir.engine.live.inbox import Inbox
from weir.engine.live.tls import Channel, Identity
from weir.engine.live.transport import (
    END,
    HEAD,
    ROWS,
    Connection,
    Frame,
    Generation,
    Hello,
    Listener,
    connect,
)
from weir.engine.live.worker import LiveWorker
from weir.errors import LiveFailed

HOST = "127.0.0.1"
IDENTITY = Identity.new()


@contextlib.contextmanager
def listening(generation, welcome):
    listener = Listener(HOST, generation, welcome)
    try:
        yield listener.address
    finally:
        listener.close()


@contextlib.contextmanager
def running(servers=2, **terms):
    """A group of servers in threads; what their driver sends them is taken for a job by nobody."""
    group = LiveCoordinator(servers, HOST, **terms)
    workers = {}

    def serve(number):
        terms = (number, group.address, group.generation, lambda data: pytest.fail("a job"))
        workers[number] = resident = LiveWorker(*terms, beat=0.05)
        resident.run()

    def start(members):
        for number in members:
            threading.Thread(target=serve, args=(number,), daemon=True).start()

    group.start = start  # more of them
    start(range(servers))
    try:
        group.gather(20)
        eventually(lambda: len(workers) == servers)
        eventually(lambda: all(len(r._peers) == servers - 1 for r in workers.values()))
        yield group, workers
    finally:
        group.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_frames_arrive_whole_and_in_order(sealed):
    got = []
    done = threading.Event()

    def welcome(connection, hello):
        while (frame := connection.receive()) is not None:
            got.append((frame.what, frame.edge, frame.rows, frame.data))
        done.set()

    generation = Generation(1, identity=IDENTITY if sealed else None)
    large = bytes(range(256)) * (80_000 if sealed else 40_000)  # longer than what is encrypted at a time
    with listening(generation, welcome) as address:
        connection = connect(address, generation, Hello("peer", 0, generation.name))
        connection.send(ROWS, large, edge=3, rows=7)
        connection.send(ROWS, pa.py_buffer(b"x"), edge=4, rows=1)
        connection.send(END, step=2)
        connection.close()
        assert done.wait(20)
    assert got == [(ROWS, 3, 7, large), (ROWS, 4, 1, b"x"), (END, 0, 0, b"")]


def test_a_frame_that_is_cut_off_is_noticed():
    ours, theirs = socket.create_server((HOST, 0)), None
    theirs = socket.create_connection(ours.getsockname())
    taken, _ = ours.accept()
    theirs.sendall(HEAD.pack(ROWS, 1, 1, 0, 5, 0, 1000) + b"too short")
    theirs.close()
    with pytest.raises(LiveFailed, match="middle of a frame"):
        Connection(taken).receive()
    ours.close()


def pair():
    """Return two ends of a TCP connection."""
    with socket.create_server((HOST, 0)) as ours:
        theirs = socket.create_connection(ours.getsockname())
        return theirs, ours.accept()[0]


class Wire:
    """Stands between two sides, hears what they say, and may change it."""

    def __init__(self, address, change=lambda data, number: data):
        self.heard, self._change = [], change
        self._listener, self._target = socket.create_server((HOST, 0)), address
        self.address = self._listener.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        one, (other, _) = socket.create_connection(self._target), self._listener.accept()
        for pair in ((other, one, self._change), (one, other, lambda data, number: data)):
            threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source, target, change):
        with contextlib.suppress(OSError):
            number = 0
            while data := source.recv(1 << 16):
                self.heard.append(data)
                target.sendall(change(data, number))
                number += 1
            target.shutdown(socket.SHUT_WR)


ROWS_OF_A_CUSTOMER = b"the rows of a customer " * 10


@pytest.mark.parametrize("sealed", [False, True])
def test_what_travels_can_be_read_only_where_it_is_not_encrypted(sealed):
    generation, got, done = Generation(1, identity=IDENTITY if sealed else None), [], threading.Event()

    def welcome(connection, hello):
        got.append((hello.role, connection.receive().data))
        connection.send(ROWS, ROWS_OF_A_CUSTOMER[::-1])
        done.wait(20)

    with listening(generation, welcome) as address:
        wire = Wire(address)
        connection = connect(wire.address, generation, Hello("the role of a peer", 0, generation.name))
        connection.send(ROWS, ROWS_OF_A_CUSTOMER)
        assert connection.receive().data == ROWS_OF_A_CUSTOMER[::-1]
        done.set()
        connection.close()
    assert got == [("the role of a peer", ROWS_OF_A_CUSTOMER)]
    heard = b"".join(wire.heard)
    for secret in (
        ROWS_OF_A_CUSTOMER[:20],
        ROWS_OF_A_CUSTOMER[::-1][:20],
        b"the role",
        generation.name.encode(),
    ):
        assert (secret in heard) == (not sealed)


@pytest.mark.parametrize("how", ["changed", "repeated", "left out"])
def test_what_is_changed_on_the_way_is_not_taken(how):
    generation, got, ended = Generation(1, identity=IDENTITY), [], threading.Event()
    meddling = threading.Event()

    def welcome(connection, hello):
        try:
            while (frame := connection.receive()) is not None:
                got.append(frame.data)
        except LiveFailed as error:
            got.append(str(error))
        ended.set()

    def change(data, number):
        if not meddling.is_set():
            return data
        return {
            "changed": data[:40] + bytes([data[40] ^ 1]) + data[41:],
            "repeated": 2 * data,
            "left out": b"",
        }[how]

    with listening(generation, welcome) as address:
        wire = Wire(address, change)
        connection = connect(wire.address, generation, Hello("peer", 0, generation.name))
        connection.send(ROWS, b"one")
        eventually(lambda: got == [b"one"])
        meddling.set()
        connection.send(ROWS, b"two")
        if how == "left out":
            eventually(lambda: len(wire.heard) > 3)
            heard = len(wire.heard)
            connection.send(ROWS, b"three")
            eventually(lambda: len(wire.heard) > heard)
            meddling.clear()
            connection.send(ROWS, b"four")
        assert ended.wait(20)
        connection.close()
    assert "not what was sent" in got[-1]
    assert got[1:-1] in ([], [b"two"] if how == "repeated" else [])


@pytest.mark.parametrize(
    "who", ["without a certificate", "of another generation", "with TLS 1.2", "in plain text"]
)
def test_who_has_no_certificate_of_this_generation_is_not_heard(who):
    generation, welcomed = Generation(1, identity=IDENTITY), []
    with listening(generation, lambda connection, hello: welcomed.append(hello)) as address:
        if who == "in plain text":
            with pytest.raises(LiveFailed):
                connect(
                    address,
                    Generation(1, generation.name, generation.secret),
                    Hello("peer", 0, generation.name),
                )
        elif who == "of another generation":
            other = Generation(1, generation.name, generation.secret, Identity.new())
            with pytest.raises(LiveFailed, match="certificate verify failed"):
                connect(address, other, Hello("peer", 0, generation.name))
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=IDENTITY.authority)
            if who == "with TLS 1.2":
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            with socket.create_connection(address, timeout=20) as stranger, pytest.raises(ssl.SSLError):  # noqa: PT012
                tls = context.wrap_socket(stranger, server_hostname="live.weir")
                tls.sendall(b"hello")
                tls.recv(1)
    assert welcomed == []


def test_who_accepts_without_the_certificate_hears_nothing():
    generation, impostor = Generation(1, identity=IDENTITY), Generation(1, identity=Identity.new())
    with listening(impostor, lambda connection, hello: pytest.fail("welcomed")) as address:
        wire = Wire(address)
        hello = Hello("the role of a peer", 0, generation.name)
        with pytest.raises(LiveFailed, match="certificate verify failed"):
            connect(wire.address, generation, hello)
    assert b"the role" not in b"".join(wire.heard)


def test_keys_are_agreed_upon_anew_for_each_connection():
    """What was sent stays secret when the certificate's key is lost later: TLS 1.3, and no sessions that go on."""
    listener = socket.create_server((HOST, 0))
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            accepted = pool.submit(lambda: Channel(listener.accept()[0], IDENTITY, listens=True))
            ours = Channel(socket.create_connection(listener.getsockname()), IDENTITY, listens=False)
            theirs = accepted.result()
            assert {one._tls.version() for one in (ours, theirs)} == {"TLSv1.3"}
            assert not theirs._tls.session_reused
            assert not ours._tls.session.has_ticket
    listener.close()


def test_no_file_ever_holds_a_key_that_can_be_used(monkeypatch, tmp_path):
    seen = []
    real = ssl.SSLContext.load_cert_chain

    def look(self, path, **terms):
        seen.append(Path(path).read_bytes())
        return real(self, path, **terms)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    identity = Identity.new()
    generation = Generation(1, identity=identity)
    with listening(generation, lambda connection, hello: None) as address:
        connect(address, generation, Hello("peer", 0, generation.name)).close()
    assert len(seen) == 2
    assert all(b"BEGIN ENCRYPTED PRIVATE KEY" in text and identity.password not in text for text in seen)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["another secret", "another life", "no greeting"])
def test_strangers_and_earlier_lives_are_turned_away(case):
    generation, welcomed = Generation(1), []
    with listening(generation, lambda connection, hello: welcomed.append(hello)) as address:
        if case == "no greeting":
            with socket.create_connection(address) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
                with contextlib.suppress(ConnectionError):
                    assert stranger.recv(100) == b""
        elif case == "another secret":
            with pytest.raises(LiveFailed, match="secret"):
                connect(address, Generation(1, generation.name), Hello("peer", 0, generation.name))
        else:
            with pytest.raises(LiveFailed, match="turned this side away: it is of generation earlier"):
                connect(address, Generation(1, "earlier", generation.secret), Hello("peer", 0, "earlier"))
    assert welcomed == []


def test_who_listens_without_the_secret_is_not_trusted():
    """The listener proves its knowledge first: nothing but a greeting reaches one that has none."""
    generation, heard = Generation(1), []
    impostor = socket.create_server((HOST, 0))

    def answer():
        peer, _ = impostor.accept()
        peer.recv(4096)
        peer.sendall(bytes(64))
        heard.append(peer.recv(4096))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pytest.raises(LiveFailed, match="does not know the secret"):
        connect(impostor.getsockname(), generation, Hello("source", 0, generation.name))
    thread.join(20)
    assert heard == [b""]
    impostor.close()


def test_the_secret_is_in_no_text():
    generation = Generation(2)
    assert generation.secret.hex() not in repr(generation)
    assert repr(generation.secret) not in repr(generation)
    assert "PRIVATE" not in repr(IDENTITY)
    assert IDENTITY.password.decode() not in repr(IDENTITY)


def test_a_source_task_comes_once_and_in_its_batch():
    inbox = Inbox(1)
    inbox.announce(Frame(ROWS, source_time=4))
    with pytest.raises(LiveFailed, match="batch 3 came in batch 4"):
        inbox.begin_source(0, 3, 1.0)
    inbox.begin_source(0, 4, 1.0)
    inbox.end_source(0)
    with pytest.raises(LiveFailed, match="ran twice"):
        inbox.begin_source(0, 4, 1.0)
    with pytest.raises(LiveFailed, match="ran twice"):
        inbox.take(1)


def test_rows_of_a_task_that_has_not_reported_are_not_taken_for_complete():
    inbox = Inbox(1)
    inbox.announce(Frame(ROWS, source_time=0))
    for task in (0, 1):
        inbox.begin_source(task, 0, 1.0)
        inbox.end_source(task)
    inbox.all_sources(1)
    with pytest.raises(LiveFailed, match="only 1 have reported"):
        inbox.take(1)


def test_later_steps_go_first_and_a_step_ends_when_all_have_said_so():
    inbox = Inbox(3)
    for step in (2, 3, 2):
        inbox.put(Frame(ROWS, step=step, payload=pa.py_buffer(b"rows")))
    assert [inbox.take(2).step for _ in range(3)] == [3, 2, 2]
    ends = []
    thread = threading.Thread(target=lambda: ends.append(inbox.take(2)), daemon=True)
    thread.start()
    inbox.end(3)
    inbox.end(2)
    thread.join(0.05)
    assert ends == []
    inbox.end(2)
    thread.join(20)
    assert ends == [None]


def test_a_lost_server_ends_the_life_of_all():
    with running(3) as (group, workers):
        lost = workers[1]
        for peer in lost._peers.values():  # as when its process dies: connections end without a word
            peer.close()
        lost._control.close()
        eventually(lambda: group._failure)
        with pytest.raises(LiveFailed):
            group.run(0, b"", list)


def test_a_connection_that_is_cut_between_two_servers_is_noticed():
    with running(2) as (group, workers):
        workers[0]._peers[1].close()
        eventually(lambda: group._failure)
        with pytest.raises(LiveFailed, match="went away before its end"):
            group.run(0, b"", list)


def test_a_server_that_hangs_is_noticed_and_source_tasks_are_told():
    told = threading.Event()
    with running(2, silence=0.5, on_failure=told.set) as (group, workers):
        workers[0]._beat = 3600.0  # as a process that was stopped: its connections stay, but nothing comes
        assert told.wait(20)
        with pytest.raises(LiveFailed, match="silent"):
            group.run(0, b"", list)


def test_servers_that_never_come_are_not_waited_for_without_end():
    group = LiveCoordinator(2, HOST)
    with pytest.raises(LiveFailed, match="only 0 of 2"):
        group.gather(0.05)
    group.close()


def test_servers_that_are_to_come_know_all_others_before_they_are_needed():
    with running(2) as (group, workers):
        group.prepare(2, group.start, 20)
        assert {m: sorted(w._peers) for m, w in workers.items()} == {
            0: [1, 2, 3],
            1: [0, 2, 3],
            2: [0, 1, 3],
            3: [0, 1, 2],
        }
        assert [workers[m]._servers for m in (0, 1)] == [[0, 1], [0, 1]], "the batches of now have two"
        connections = {m: dict(w._peers) for m, w in workers.items()}
        group.change([1, -1], lambda members: pytest.fail("one that has come takes part"), 20)
        assert [workers[m]._servers for m in (1, 2)] == [[1, 2], [1, 2]]
        assert workers[1]._peers[2] is connections[1][2], "its connection is the one it had"
        assert sorted(workers[1]._peers) == [2, 3], "the other one may still come"
        eventually(lambda: 0 not in group._members)


def test_servers_that_fill_each_others_inboxes_go_on(tmp_path):
    """Both send far more than fits sockets and memory before they take anything."""
    generation, size, count = Generation(2), 1 << 20, 48
    inboxes = [Inbox(2, str(tmp_path), limit=4 << 20) for _ in range(2)]

    def reader(inbox):
        def welcome(connection, hello):
            while (frame := connection.receive(inbox.room)) is not None:
                inbox.put(frame) if frame.what == ROWS else inbox.end(frame.step)

        return welcome

    listeners = [Listener(HOST, generation, reader(inbox)) for inbox in inboxes]
    taken = [0, 0]

    def server(me):
        peer = connect(listeners[1 - me].address, generation, Hello("peer", me, generation.name))
        for _ in range(count):
            peer.send(ROWS, bytes(size), step=2)
        peer.send(END, step=2)
        while (frame := inboxes[me].take(2)) is not None:
            taken[me] += frame.payload.size
        peer.close()

    threads = [threading.Thread(target=server, args=(me,), daemon=True) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert taken == [count * size] * 2
    assert all(inbox.spilled for inbox in inboxes)
    for listener in listeners:
        listener.close()


def test_a_source_waits_longer_than_a_silent_host_is_given(monkeypatch):
    monkeypatch.setattr(transport, "ACK_TIMEOUT", 0.2)
    generation, size, got, slow = Generation(1), 16 << 20, [], threading.Event()

    def welcome(connection, hello):
        slow.wait(20)
        frame = connection.receive()
        got.append(frame if frame is None else frame.payload.size)

    with listening(generation, welcome) as address:
        connection = connect(address, generation, Hello("source", 0, generation.name))
        # what does not fit the buffers meets a closed window until then
        threading.Timer(1.0, slow.set).start()
        connection.send(ROWS, bytes(size))
        eventually(lambda: got)
        connection.close()
    assert got == [size]


def test_a_source_waits_for_a_slow_server_and_is_woken_when_it_fails():
    inbox = Inbox(1, limit=10)
    inbox.put(Frame(ROWS, step=1, payload=pa.py_buffer(bytes(20))))
    waiting = threading.Thread(target=inbox.wait_for_room, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert inbox.take(1) is not None
    waiting.join(20)
    assert not waiting.is_alive()
    inbox.put(Frame(ROWS, step=1, payload=pa.py_buffer(bytes(20))))
    waiting = threading.Thread(target=inbox.wait_for_room, daemon=True)
    waiting.start()
    inbox.fail(LiveFailed("lost"))
    waiting.join(20)
    assert not waiting.is_alive()
