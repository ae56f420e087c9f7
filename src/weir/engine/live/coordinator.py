"""The driver's side of live servers: it gathers them, hands them batches, and notices when one is lost.

Whoever starts the servers (a barrier stage of Spark, threads of this process) tells them the address of a
:class:`Group`. A batch goes like this: the driver sends its job to all servers; source tasks, whoever runs them, push
rows to the servers, or the driver does so itself, where there are few; when they are done, the driver tells the servers
how many they were; the servers answer with their reports. Anything that goes wrong ends the life of all servers.
Nothing has been committed then, and the batch runs again by its plan as step jobs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa

from weir.engine.exchange import wire
from weir.engine.live.loads import LoadAggregator
from weir.engine.live.outbox import Answers
from weir.engine.live.source import feed
from weir.engine.live.transport import (
    ANSWER,
    END,
    FAILED,
    JOB,
    LOAD,
    PEERS,
    QUIT,
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
        self.generation = Generation(servers, sealed=sealed)
        self._on_failure, self._silence = on_failure, silence
        self._changed = threading.Condition()
        self._members: dict[int, Connection] = {}
        self._listening: dict[int, Address] = {}
        self._answers: dict[int, Answers] = {}
        self._failure: LiveFailed | None = None
        self._aggregator: LoadAggregator | None = None
        self._closed = False
        self._listener = Listener(bind or host, self.generation, self._watch)
        self.address: Address = (host, self._listener.address[1])

    @property
    def addresses(self) -> list[Address]:
        """Where the servers take rows."""
        return [self._listening[number] for number in range(self.generation.servers)]

    def gather(self, seconds: float) -> None:
        """Wait until all servers are there, and introduce them to each other."""
        n = self.generation.servers
        with self._changed:
            self._changed.wait_for(lambda: self._failure or len(self._members) == n, seconds)
            self._raise()
            if len(self._members) < n:
                raise LiveFailed(f"only {len(self._members)} of {n} live servers came within {seconds:g} s")
        self._tell(PEERS, msgspec.msgpack.encode(self.addresses))

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
            self._changed.wait_for(lambda: self._failure or len(self._answers) == self.generation.servers)
            self._raise()
            return said + [answer for number in sorted(self._answers) for answer in self._answers[number]]

    def feed(self, job: BatchContext, batches: Iterable[pa.RecordBatch]) -> Answers:
        """Send rows of this process to the servers, as the only source task; return what it reports.

        They take the way of the driver's orders: an executor need not let the driver in.
        """

        def send(server: int, frame: Frame) -> None:
            try:
                self._members[server].forward(frame)
            except (OSError, KeyError) as error:
                raise LiveFailed(f"server {server} is gone: {error}") from None

        answers = list(wire.answers_in(feed(job, 0, batches, send)))
        self._tell(END)
        return answers

    def tell_load(self, news: bytes) -> None:
        """Tell all servers how everybody is doing; who is slow to listen misses it."""
        for connection in list(self._members.values()):
            connection.mention(Frame(LOAD, payload=pa.py_buffer(news)))

    def fail(self, error: Exception) -> None:
        """End the life of these servers."""
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

    def _tell(self, what: int, payload: bytes = b"", *, rows: int = 0, source_time: int = 0) -> None:
        try:
            for connection in list(self._members.values()):
                connection.send(what, payload, rows=rows, source_time=source_time)
        except OSError as error:
            raise LiveFailed(f"a live server is gone: {error}") from None

    def _watch(self, connection: Connection, hello: Hello) -> None:
        """Listen to one server."""
        number = hello.number
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
                    self._aggregator.hear(number, frame.data, frame.arrived)
                elif frame.what == FAILED:
                    self.fail(LiveFailed(frame.data.decode()))
            self.fail(LiveFailed(f"server {number} has gone"))
        except TimeoutError:
            self.fail(LiveFailed(f"server {number} has been silent for {self._silence:g} s"))
        except (OSError, LiveFailed) as error:
            self.fail(LiveFailed(f"server {number} is gone: {error}"))
        finally:
            with self._changed:
                del self._members[number]
                self._changed.notify_all()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
