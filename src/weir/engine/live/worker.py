"""A server that stays: its connections, and one batch after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from weir.engine.live.inbox import LIMIT, Inbox
from weir.engine.live.live_batch import LiveBatch
from weir.engine.live.sender import Sender
from weir.engine.live.transport import (
    ALIVE,
    ANSWER,
    END,
    FAILED,
    HANDSHAKE_SECONDS,
    JOB,
    LOAD,
    PEERS,
    QUIT,
    READY,
    ROWS,
    SOURCES,
    Address,
    Connection,
    Frame,
    Generation,
    Hello,
    Listener,
    connect,
)
from weir.engine.task.batch_context import BatchContext
from weir.errors import LiveFailed
from weir.state.reader import LOOK_AFTER, unmap_deleted

Members = list[tuple[int, Address]]
BEAT = 2.0  # seconds between two signs of life to the driver


class _PeerLost(LiveFailed):
    """A server or a source task has ended its connection: somebody else may know why."""


class LiveWorker:
    """A server from its first batch to its last: its connections, and the loop that runs one batch after the other.

    ``member`` is what it is called as long as it lives; its number among the servers may change between two batches.
    ``decode`` turns what the driver sends into a job. Rows beyond ``limit`` bytes wait in files of ``folder``.
    """

    def __init__(
        self,
        member: int,
        driver: Address,
        generation: Generation,
        decode: Callable[[bytes], BatchContext],
        folder: str | None = None,
        limit: int = LIMIT,
        beat: float = BEAT,
    ) -> None:
        self.member, self.generation, self._decode = member, generation, decode
        self._servers: list[int] = []  # number → member
        self.inbox = Inbox(generation.servers, folder, limit)
        self._peers: dict[int, Connection] = {}  # by member
        self._sources: dict[int, Connection] = {}  # those that are sending rows
        self._sender = Sender(self._peers, self._lose)
        self._stopped, self._dismissed = threading.Event(), threading.Event()

        def hello(host: str) -> Hello:
            # other servers reach this one at the address from which it reaches the driver, and at no other
            self._listener = Listener(host, generation, self._welcome)
            return Hello("server", member, generation.name, listens=self._listener.address)

        self._control = connect(driver, generation, hello)
        self._beat = beat
        for target in (self._obey, self._live):
            threading.Thread(target=target, daemon=True, name=f"weir-{target.__name__}").start()

    @property
    def number(self) -> int:
        """Its number among the servers of the batch."""
        return self._servers.index(self.member)

    def run(self) -> None:
        """Run batches until the driver says that there are no more, or something fails, which the driver then hears."""
        try:
            while (frame := self.inbox.next_job()) is not None:
                batch = LiveBatch(
                    self._decode(frame.data),
                    self.number,
                    self.inbox,
                    self._send,
                    self._end_step,
                    partial(self._control.send, LOAD),
                )
                answers = batch.run()
                self.inbox.reset()
                self._control.send(ANSWER, msgspec.msgpack.encode(answers), source_time=frame.source_time)
                unmap_deleted(LOOK_AFTER // 2)  # while nobody waits for it
        except Exception as error:
            if isinstance(error, _PeerLost):
                self._dismissed.wait(0.5)  # the peer that is lost knows better why, and so comes first
            text = f"server {self.member}: {type(error).__name__}: {error}"
            try:
                self._control.send(FAILED, text.encode())
            except OSError:
                return
        finally:
            self.close()

    def close(self) -> None:
        """End all connections."""
        self._stopped.set()
        self._listener.close()
        self._sender.close()
        for connection in [*self._peers.values(), self._control]:
            connection.close()

    def _send(self, server: int, frame: Frame) -> None:
        member = self._servers[server]
        if member == self.member:
            self.inbox.put(frame._replace(arrived=time.perf_counter()))
            return
        try:
            self._sender.send(member, frame)
        except OSError as error:
            raise _PeerLost(f"another server is gone: {error}") from None

    def _lose(self, server: int, error: OSError) -> None:
        self.inbox.fail(_PeerLost(f"server {server} is gone: {error}"))

    def _end_step(self, step: int) -> None:
        for number, member in enumerate(self._servers):
            if member != self.member:
                self._send(number, Frame(END, step=step))

    # ------------------------------------------------------------------ threads

    def _obey(self) -> None:
        """Do what the driver says."""
        try:
            while (frame := self._control.receive()) is not None:
                if frame.what == JOB:
                    self.inbox.announce(frame)
                elif frame.what == SOURCES:
                    self.inbox.all_sources(frame.rows)
                elif frame.what == ROWS:  # of a small batch, whose only source is the driver
                    self.inbox.put(frame)
                elif frame.what == END:
                    self.inbox.begin_source(0, self.inbox.batch, 0.0)
                    self.inbox.end_source(0)
                elif frame.what == LOAD:
                    self.inbox.cluster_load = frame
                    self._pass_on(frame)
                elif frame.what == PEERS:
                    self._meet(*msgspec.msgpack.decode(frame.data, type=tuple[Members, Members]))
                    self._control.send(READY, source_time=frame.source_time)
                elif frame.what == QUIT:
                    self.inbox.announce(None)
            error = LiveFailed("the driver has ended the connection")
        except (OSError, LiveFailed) as failure:
            error = LiveFailed(f"the driver is gone: {failure}")
        self._dismissed.set()
        self.inbox.fail(error)

    def _pass_on(self, load: Frame) -> None:
        """Pass the load of all servers on to source tasks; each gets it from one server."""
        for task, connection in list(self._sources.items()):
            if task % len(self._servers) == self.number:
                connection.mention(load)

    def _meet(self, servers: Members, spare: Members) -> None:
        """Get to know the servers of the batches that follow and those that may come, and let go of all others."""
        known = servers + spare
        for member, address in known:
            if member != self.member and member not in self._peers:
                hello = Hello("peer", self.member, self.generation.name)
                try:
                    self._peers[member] = connect(address, self.generation, hello)
                except LiveFailed as error:
                    self.inbox.fail(_PeerLost(f"server {member} is gone: {error}"))
                    return
        self._servers = [member for member, _ in servers]
        self.inbox.servers = len(servers)
        for member in self._peers.keys() - dict(known).keys():
            self._peers.pop(member).close()

    def _live(self) -> None:
        """Send signs of life: also while an operator is at work."""
        while not self._stopped.wait(self._beat):
            try:
                self._control.send(ALIVE)
            except OSError:
                return

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        """Read what another server or a source task sends."""
        source = hello.role == "source"
        who = f"source task {hello.number}" if source else f"server {hello.number}"
        try:
            if source:
                self.inbox.begin_source(hello.number, hello.batch, HANDSHAKE_SECONDS)
                self._sources[hello.number] = connection
            while (frame := connection.receive(self.inbox.room)) is not None:
                if frame.what == ROWS:
                    self.inbox.put(frame)
                    if source:
                        self.inbox.wait_for_room()
                elif source:
                    self.inbox.end_source(hello.number)
                    return
                else:
                    self.inbox.end(frame.step)
            if source or hello.number in self._servers:
                raise _PeerLost(f"{who} went away before its end")
        except (OSError, LiveFailed) as error:
            if not self._stopped.is_set() and not (source and hello.batch != self.inbox.batch):
                if isinstance(error, ConnectionError):
                    error = _PeerLost(f"{who}: {error}")
                elif isinstance(error, OSError):  # a full disk, for instance
                    error = LiveFailed(f"what {who} sent can't be kept: {error}")
                self.inbox.fail(error)
        finally:
            if self._sources.get(hello.number) is connection:
                del self._sources[hello.number]
