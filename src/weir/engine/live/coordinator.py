"""The driver's side of live servers: it gathers them, hands them batches, and notices when one is lost.

Whoever starts the servers (a stage of Spark, threads of this process) tells them the address of a
:class:`LiveCoordinator`. A batch goes like this: the driver sends its job to all servers; source tasks, whoever runs
them, push rows to the servers, or the driver does so itself, where there are few; when they are done, the driver tells
the servers how many they were; the servers answer with their reports.

Servers may come and go between two batches; the others keep their process, their connections and what they have open.
Anything that goes wrong ends all of them. Nothing has been committed then, and the batch runs again by its plan as
step jobs.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa

from weir.engine.exchange import wire
from weir.engine.exchange.wire import Answers
from weir.engine.live.control import LoadAggregator
from weir.engine.live.source import Timed, feed
from weir.engine.live.tls import Identity
from weir.engine.live.transport import (
    ANSWER,
    COUNTED,
    END,
    FAILED,
    JOB,
    LOAD,
    PEERS,
    QUIT,
    READY,
    SOURCES,
    Address,
    Connection,
    Frame,
    Generation,
    Hello,
    Listener,
)
from weir.engine.task.batch_context import BatchContext
from weir.errors import LiveFailed

SILENCE = 60.0  # seconds without a sign of life after which a server counts as lost
STUCK_SECONDS = 4.0  # seconds in which no source task was done, after which it is asked whether any can begin


class LiveCoordinator:
    """Live servers as their driver sees them.

    ``host`` is the address at which servers reach this process. ``on_failure`` is called, in another thread, when a
    server is lost: source tasks that wait for it should be ended. ``sealed`` is whether they encrypt what they send.
    """

    def __init__(
        self,
        servers: int,
        host: str,
        on_failure: Callable[[], None] | None = None,
        silence: float = SILENCE,
        bind: str | None = None,
        sealed: bool = False,
    ) -> None:
        self.generation = Generation(servers, identity=Identity.new() if sealed else None)
        self._on_failure, self._silence = on_failure, silence
        self._changed = threading.Condition()
        self._servers = list(range(servers))  # number → member
        self._spare: list[int] = []  # members that have come, or are coming, and have no number yet
        self._leaving: set[int] = set()
        self._ready: set[int] = set()  # members that can reach all others, as they were told last
        self._told = 0  # how often they were told who is there
        self._names = itertools.count(servers)
        self._members: dict[int, Connection] = {}
        self._listening: dict[int, Address] = {}
        self._answers: dict[int, Answers] = {}
        self._failure: LiveFailed | None = None
        self._aggregator: LoadAggregator | None = None
        self._holding = -1  # the batch whose rows source tasks hold, or will
        self._counted: dict[int, bytes] = {}  # source task → what it has counted of them
        self._planned = b""  # that batch, once it is planned, for source tasks
        self._closed = False
        self._listener = Listener(bind or host, self.generation, self._watch)
        self.address: Address = (host, self._listener.address[1])

    @property
    def addresses(self) -> list[Address]:
        """Where the servers take rows."""
        return [self._listening[member] for member in self._servers]

    def gather(self, seconds: float) -> None:
        """Wait until all servers are there, and introduce them to each other."""
        self._await(self._servers, seconds)
        self._introduce()

    def prepare(self, count: int, start: Callable[[list[int]], None], seconds: float) -> None:
        """Have so many more servers at hand for :meth:`change`, connected to all others, while batches go on.

        ``start`` starts members of these names.
        """
        with self._changed:
            fresh = [next(self._names) for _ in range(count - len(self._spare))]
            self._spare += fresh
        if fresh:
            start(fresh)
            self._await(self._servers + fresh, seconds)
            self._introduce()

    def change(self, origin: list[int], start: Callable[[list[int]], None], seconds: float) -> None:
        """Go over to other servers between two batches: those that stay go on as they are.

        ``origin`` has for each server its number before, −1 for a new one.
        """
        self.prepare(origin.count(-1), start, seconds)
        before = self._servers
        self._servers = [before[old] if old >= 0 else self._spare.pop(0) for old in origin]
        self._await(self._servers, seconds)
        self._leaving |= set(before) - set(self._servers)
        self._introduce()
        with self._changed:
            leaving = [self._members[member] for member in self._leaving if member in self._members]
        for connection in leaving:
            with contextlib.suppress(OSError):
                connection.send(QUIT)

    def _await(self, members: list[int], seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._members.keys() >= set(members), seconds)
            self._raise()
            there = len(self._members.keys() & set(members))
        if there < len(members):
            raise LiveFailed(f"only {there} of {len(members)} live servers came within {seconds:g} s")

    def _introduce(self) -> None:
        """Tell all who the servers are, and who may become one; wait until each can reach the others."""
        with self._changed:
            self._told, self._ready = self._told + 1, set()
            spare = [member for member in self._spare if member in self._members]
        known = [[(member, self._listening[member]) for member in some] for some in (self._servers, spare)]
        members = [*self._servers, *spare]
        self._tell(PEERS, msgspec.msgpack.encode(known), members, source_time=self._told)
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._ready >= set(members))
            self._raise()

    def run(
        self, batch: int, job: bytes, push: Callable[[], Answers], aggregator: LoadAggregator | None = None
    ) -> Answers:
        """Run a batch: ``push`` runs its source tasks, and returns what they report. Returns all reports.

        What servers say of their load meanwhile goes to ``aggregator``.
        """
        with self._changed:
            self._raise()
            self._answers = {}
        self._aggregator = aggregator
        self._tell(JOB, job, source_time=batch)
        try:
            said = push()
        except Exception as error:  # a source task has lost a server, which says why, if it can
            with self._changed:
                self._changed.wait_for(lambda: self._failure, 1.0 if isinstance(error, LiveFailed) else 0.0)
            self._raise()
            raise
        self._tell(SOURCES, rows=sum(kind == wire.CONTROL for kind, _ in said))
        with self._changed:
            self._changed.wait_for(lambda: self._failure or len(self._answers) == len(self._servers))
            self._raise()
            return said + [answer for member in self._servers for answer in self._answers[member]]

    def hold(self, batch: int) -> None:
        """Expect source tasks that count the rows of the next batch, and hold them until it is planned."""
        with self._changed:
            self._holding, self._counted, self._planned = batch, {}, b""

    def counts(
        self, tasks: int, stuck: Callable[[int], bool], pause: float = STUCK_SECONDS
    ) -> list[bytes] | None:
        """Return what source tasks have counted, once all have; None if some can't begin before others have ended.

        ``stuck`` is asked after every pause in which no task was done, and told how many hold their rows.
        """
        with self._changed:
            while len(self._counted) < tasks:
                before = len(self._counted)
                done = self._changed.wait_for(lambda: self._failure or len(self._counted) > before, pause)  # noqa: B023
                self._raise()
                if not done and stuck(before):
                    return None
            return list(self._counted.values())

    def release(self, job: bytes) -> None:
        """Let source tasks that hold rows push them: those that wait, and those to come."""
        with self._changed:
            self._planned = msgspec.msgpack.encode((job, self.addresses))
            self._changed.notify_all()

    def feed(self, job: BatchContext, batches: Iterable[Timed]) -> Answers:
        """Send rows of this process to the servers, as the only source task; return what it reports.

        They take the way of the driver's orders: an executor need not let the driver in.
        """

        def send(server: int, frame: Frame) -> None:
            try:
                self._members[self._servers[server]].forward(frame)
            except (OSError, KeyError) as error:
                raise LiveFailed(f"server {server} is gone: {error}") from None

        answers = feed(job, 0, batches, send)
        self._tell(END)
        return answers

    def tell_load(self, load: bytes) -> None:
        """Tell all servers how everybody is doing; who is slow to listen misses it."""
        for connection in self._connections():
            connection.mention(Frame(LOAD, payload=pa.py_buffer(load)))

    def fail(self, error: Exception) -> None:
        """End this generation of servers."""
        with self._changed:
            if self._failure is not None or self._closed:
                return
            self._failure = error if isinstance(error, LiveFailed) else LiveFailed(str(error))
            self._changed.notify_all()
        if self._on_failure is not None:
            self._on_failure()

    def close(self) -> None:
        """Let the servers go. A batch that runs is given up."""
        with self._changed:
            self._closed = True
            self._failure = self._failure or LiveFailed("the live servers were let go")
            self._changed.notify_all()
        for connection in list(self._members.values()):
            with contextlib.suppress(OSError):
                connection.send(QUIT)
        with self._changed:  # they close their ends first, unless they are stuck
            self._changed.wait_for(lambda: not self._members, 1.0)
        self._listener.close()

    def _tell(self, what: int, payload: bytes = b"", members: list[int] | None = None, **about: int) -> None:
        try:
            for connection in self._connections(members):
                connection.send(what, payload, **about)
        except OSError as error:
            raise LiveFailed(f"a live server is gone: {error}") from None

    def _connections(self, members: list[int] | None = None) -> list[Connection]:
        """The servers of the batch, in order, or other members."""
        there = self._members  # one that is lost leaves it
        return [there[m] for m in (self._servers if members is None else members) if m in there]

    def _watch(self, connection: Connection, hello: Hello) -> None:
        """Listen to one server, or to a source task that holds its rows."""
        number = hello.number
        if hello.role == "source":
            self._inform(connection, hello)
            return
        if hello.role != "server" or hello.listens is None or number in self._listening:
            return
        connection.wait_at_most(self._silence)
        with self._changed:
            self._members[number], self._listening[number] = connection, hello.listens
            self._changed.notify_all()
        try:
            while (frame := connection.receive()) is not None:
                if frame.what == ANSWER:
                    answers = msgspec.msgpack.decode(frame.data, type=Answers)
                    with self._changed:
                        self._answers[number] = answers
                        self._changed.notify_all()
                elif frame.what == LOAD and self._aggregator is not None:
                    self._aggregator.hear(self._servers.index(number), frame.data, frame.arrived)
                elif frame.what == READY:
                    with self._changed:
                        if frame.source_time == self._told:
                            self._ready.add(number)
                        self._changed.notify_all()
                elif frame.what == FAILED and number not in self._leaving:
                    self.fail(LiveFailed(frame.data.decode()))
            if number not in self._leaving:
                self.fail(LiveFailed(f"server {number} has gone"))
        except TimeoutError:
            self.fail(LiveFailed(f"server {number} has been silent for {self._silence:g} s"))
        except (OSError, LiveFailed) as error:
            if number not in self._leaving:
                self.fail(LiveFailed(f"server {number} is gone: {error}"))
        finally:
            with self._changed:
                del self._members[number]
                self._changed.notify_all()

    def _inform(self, connection: Connection, hello: Hello) -> None:
        """Tell a source task of its batch's plan, once it has counted its rows, and there is one."""
        try:
            frame = connection.receive()
            if frame is None or frame.what != COUNTED:
                return  # it has failed, and its job says why
            with self._changed:
                if hello.batch != self._holding or hello.number in self._counted:
                    return
                self._counted[hello.number] = frame.data
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._failure or self._planned)
                if self._failure is not None:
                    return
            connection.send(JOB, self._planned)
            connection.receive()  # it ends the connection when it has all of it
        except (OSError, LiveFailed):
            return  # it has gone, and its job says so

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
