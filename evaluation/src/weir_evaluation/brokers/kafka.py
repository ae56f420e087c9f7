"""Apache Kafka itself, in KRaft mode: brokers with ports and folders of their own, on this machine's loopback."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from weir_evaluation import jars
from weir_evaluation.brokers.cluster import Cluster

START = 30.0  # seconds within which brokers must answer
# a broker of tests lives for minutes: to compile for speed takes longer than it saves
JAVA = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Kafka's own topics are small, and what it does now and then it does often, so that tests see it
SETTINGS: dict[str, Any] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "log.initial.task.delay.ms": 500,
    "log.retention.check.interval.ms": 500,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
}


class Kafka(Cluster):
    """Brokers while a ``with`` block lasts; ``servers`` is where they listen.

    They are numbered from 1, and each is a controller, too. ``settings`` are Kafka's own. ``secure`` names further
    protocols to listen with (``"SSL"``, ``"SASL_PLAINTEXT"``, ``"SASL_SSL"``); ``listeners["SSL"]`` is where.
    ``java`` are options of the JVM.
    """

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, Any] | None = None,
        secure: tuple[str, ...] = (),
        java: tuple[str, ...] = JAVA,
    ) -> None:
        self._classes = f"{jars.folder('kafka')}/*"
        self.brokers, self._settings, self._options = brokers, dict(settings or {}), java
        self._protocols = ("CONTROLLER", "PLAINTEXT", *secure)
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Kafka:
        self.folder = Path(tempfile.mkdtemp(prefix="weir-brokers-"))
        numbers = range(1, self.brokers + 1)
        ports = iter(free_ports(len(self._protocols) * self.brokers))
        self._places = {n: {p: f"127.0.0.1:{next(ports)}" for p in self._protocols} for n in numbers}
        self.listeners = {p: ",".join(at[p] for at in self._places.values()) for p in self._protocols}
        try:
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            for number in numbers:
                self._config(number).write_text(self._properties(number))
            formats = [
                self._java(n, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c")
                for n in numbers
            ]
            ended = [one.wait(START) for one in formats]
            if any(ended):
                raise RuntimeError(
                    f"Kafka: the folders of brokers cannot be made: {ended}, {self._printed(1)}"
                )
            for number in numbers:
                self.running[number] = self._java(number, "kafka.Kafka")
            super().__init__(self.listeners["PLAINTEXT"], self.brokers)
            for at in self._places.values():
                self._await_brokers(at["PLAINTEXT"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.running):
            self.kill(number)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, broker: int) -> None:
        """Start a broker again; it has what it had."""
        self.running[broker] = self._java(broker, "kafka.Kafka")
        self._await_brokers(self._places[broker]["PLAINTEXT"])

    def kill(self, broker: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill a broker."""
        process = self.running.pop(broker)
        process.send_signal(how)
        process.wait()

    def add_user(self, name: str, password: str) -> None:
        """Let somebody in by SCRAM."""
        kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        asked = UserScramCredentialUpsertion(name, kind, password.encode())
        self.admin.alter_user_scram_credentials([asked])[name].result(10)

    def _properties(self, number: int) -> str:
        listeners = [f"{name}://{place}" for name, place in self._places[number].items()]
        quorum = min(self.brokers, 2)
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{n}@{at['CONTROLLER']}" for n, at in self._places.items()),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join(
                f"{name}:{name.replace('CONTROLLER', 'PLAINTEXT')}" for name in self._protocols
            ),
            "advertised.listeners": ",".join(listeners[1:]),
            "log.dirs": self.folder / str(number),
            "default.replication.factor": self.brokers,
            "offsets.topic.replication.factor": self.brokers,
            "transaction.state.log.replication.factor": self.brokers,
            "transaction.state.log.min.isr": quorum,
            "min.insync.replicas": quorum,
            **SETTINGS,
            **self._settings,
        }
        return "\n".join(f"{key}={value}" for key, value in settings.items())

    def _config(self, number: int) -> Path:
        return self.folder / f"{number}.properties"

    def _printed(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()[-2000:]

    def _java(self, number: int, *words: str) -> subprocess.Popen[bytes]:
        # a broker ends with whoever started it, also if that is killed
        command = ["setpriv", "--pdeathsig", "KILL", "java", *self._options]
        command += ["-cp", self._classes, *words, str(self._config(number))]
        with open(self.folder / f"{number}.log", "ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _await_brokers(self, place: str) -> None:
        """Wait until a broker answers, and knows all that run."""
        admin, ends = Cluster(place).admin, time.monotonic() + START
        while time.monotonic() < ends:
            for number, process in self.running.items():
                if process.poll() is not None:
                    raise RuntimeError(f"Kafka: broker {number} has ended: {self._printed(number)}")
            with contextlib.suppress(KafkaException):
                if set(admin.list_topics(timeout=0.3).brokers) >= set(self.running):
                    return
            time.sleep(0.05)
        raise RuntimeError(f"Kafka: the brokers do not answer after {START:g} s")


def shared(folder: Path, until: int) -> Cluster:
    """Return a broker that all processes share which name this folder; it ends with the process ``until``."""
    jars.folder("kafka")
    folder.mkdir(parents=True, exist_ok=True)
    servers = folder / "servers"
    with open(folder / "lock", "w") as lock, open(folder / "log", "a") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not servers.exists():
            command = [sys.executable, "-m", __name__, str(folder), str(until)]
            nowhere = subprocess.DEVNULL
            host = subprocess.Popen(command, stdin=nowhere, stdout=log, stderr=log, start_new_session=True)
            while not servers.exists():
                if host.poll() is not None:
                    raise RuntimeError(f"Kafka does not start: {(folder / 'log').read_text()}")
                time.sleep(0.05)
    return Cluster(servers.read_text())


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _serve(folder: Path, until: int) -> None:
    """Keep a broker for others, as long as a process lives."""
    # on a busy machine a heartbeat may be late, and this broker has nobody to give way to
    with Kafka(settings={"broker.session.timeout.ms": 20_000}) as brokers:
        hidden = folder / ".servers"
        hidden.write_text(brokers.servers)
        hidden.rename(folder / "servers")
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(until, 0)
                time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
