"""A lab as an object: up, down, what its links carry, and everything that can go wrong with a host."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weir.errors import did_you_mean
from weir_evaluation.lab import record as records
from weir_evaluation.lab import spark
from weir_evaluation.lab.errors import LabError
from weir_evaluation.lab.needs import check
from weir_evaluation.lab.network import LabNetwork, bits, free_network, pids
from weir_evaluation.lab.record import HostRecord, Record

START_SECONDS = 120  # it takes ten on an idle machine; one that is busy gets its time
EXECUTOR_SECONDS = 300
FIRST_ADDRESS = 11


@dataclass(frozen=True)
class Host:
    """A host as it is now.

    ``state`` is ``up``; ``slow`` (less bandwidth than it was set up with); ``cut`` (its link is down); ``dead``
    (nothing runs on it); or ``lost`` (it runs, but the master does not count on it). Bytes: what its link carried.
    """

    name: str
    address: str
    rack: int
    state: str
    bytes_in: int
    bytes_out: int
    bandwidth: str


class LabCluster:
    """A Spark standalone cluster, one worker per host, with links of the bandwidth that you choose.

    Parameters
    ----------
    hosts
        How many; they are called ``h1``, ``h2``, …
    bandwidth
        Of each host's link, in each direction, as ``tc`` writes it: ``"20mbit"``, ``"1gbit"``.
    racks, uplink
        With several racks, hosts are dealt out to them in order, and racks are joined by links of bandwidth
        ``uplink`` (default: that of a host). Driver and master stand outside of the racks.
    cores, memory
        What each host offers to Spark. All hosts share the machine's real cores and memory.
    keep
        Whether the lab outlives this program. Otherwise a lab whose program is gone is removed by the next one.

    Examples
    --------
    ::

        with weir_evaluation.lab.LabCluster(hosts=4, bandwidth="100mbit") as lab:
            spark = lab.session()
            before = lab.traffic()
            ...
            lab.kill("h3")
            lab.heal("h3")
    """

    def __init__(
        self,
        hosts: int = 3,
        bandwidth: str = "1gbit",
        *,
        racks: int = 1,
        uplink: str | None = None,
        cores: int = 1,
        memory: str = "1g",
        keep: bool = False,
    ) -> None:
        if not 1 <= hosts <= 200:
            raise LabError(f"a lab needs 1 to 200 hosts, not {hosts}")
        if not 1 <= racks <= hosts:
            raise LabError(f"{hosts} hosts fill 1 to {hosts} racks, not {racks}")
        if uplink is not None and racks == 1:
            raise LabError("with one rack there is no uplink; set racks=2 or more, or leave uplink out")
        if cores < 1:
            raise LabError(f"a host needs at least one core, not {cores}")
        bits(bandwidth), bits(uplink or bandwidth)
        self._wanted = (hosts, bandwidth, racks, uplink or bandwidth, cores, memory)
        self._keep = keep
        self._record: Record | None = None

    @classmethod
    def attach(cls, lab: str | None = None) -> LabCluster:
        """The lab with this id, or the only one on this machine, whoever started it."""
        record = records.find(lab)
        self = cls(len(record.hosts), record.bandwidth, cores=record.cores, memory=record.memory, keep=True)
        self._record = record
        return self

    # ------------------------------------------------------------------ up and down

    def up(self, tell: Callable[[str], None] = lambda text: None) -> LabCluster:
        """Builds the network, starts master and workers, and returns when all of them are at work."""
        if self._record is not None:
            raise LabError(f"this lab is up already, as {self.id}")
        hosts, bandwidth, racks, uplink, cores, memory = self._wanted
        check(hosts)
        for gone in records.sweep():
            tell(f"removed lab {gone}, whose program is gone")
        with records.alone():
            self._record = record = self._draft(hosts, bandwidth, racks, uplink, cores, memory)
            tell(f"lab {record.id}: {hosts} hosts in {record.network}")
            try:
                self._lay(record)
            except BaseException:
                self.down()
                raise
        try:
            self._check_path()
            spark.write_secret(record)
            spark.command(spark.MASTER), spark.command(spark.WORKER)
            spark.start_master(record)
            self._await_master()
            for host in record.hosts:
                spark.start_worker(record, host)
            self._await([h.name for h in record.hosts], tell)
        except BaseException:
            self.down()
            raise
        return self

    def _draft(self, hosts: int, bandwidth: str, racks: int, uplink: str, cores: int, memory: str) -> Record:
        taken = records.labs().keys() | records.networks()
        name = next(i for i in iter(lambda: secrets.token_hex(2), None) if i not in taken)
        network = free_network()
        made = [
            HostRecord(f"h{i + 1}", str(network[FIRST_ADDRESS + i]), i * racks // hosts + 1, bandwidth)
            for i in range(hosts)
        ]
        record = Record(
            id=name,
            network=str(network),
            driver=str(network[1]),
            master=str(network[2]),
            bandwidth=bandwidth,
            racks=racks,
            uplink=uplink,
            cores=cores,
            memory=memory,
            hosts=made,
            owner=None if self._keep else records.process(os.getpid()),
            created=time.time(),
        )
        record.folder.mkdir(mode=0o700)
        record.save()  # before anything is made, so that whatever is made can be found
        return record

    def _lay(self, record: Record) -> None:
        folder = record.folder
        names = {"localhost": "127.0.0.1", "master": record.master, "switch": record.master}
        names |= {socket.gethostname(): record.driver} | {h.name: h.address for h in record.hosts}
        (folder / "hosts").write_text("".join(f"{a}\t{n}\n" for n, a in names.items()))
        (folder / "resolv.conf").write_text("")
        network = LabNetwork(record.id)
        network.lay(f"{record.driver}/24", f"{record.master}/24", record.racks, record.uplink)
        for host in record.hosts:
            rack = host.rack if record.racks > 1 else 0
            network.plug_in(host.name, f"{host.address}/24", rack, host.bandwidth)

    def _check_path(self) -> None:
        """Executors must reach the driver; a firewall on this machine may see that differently."""
        record = self.record
        with socket.create_server((record.driver, 0)) as server:
            port = server.getsockname()[1]
            reach = f"import socket; socket.create_connection(('{record.driver}', {port}), 3)"
            inside = ["ip", "netns", "exec", self._network.namespace("h1")]
            done = subprocess.run([*inside, sys.executable, "-S", "-c", reach], capture_output=True)
        if done.returncode:
            raise LabError(
                f"hosts of the lab cannot reach {record.driver} on this machine: a firewall keeps them out. Let "
                f"traffic on interface {self._network.plug} in (for example: iptables -I INPUT -i weir-+ -j ACCEPT)."
            )

    def _await_master(self) -> None:
        """A worker that finds no master tries again many seconds later: better to let it wait a moment."""
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.record.master, 7077), 1):
                return
            if time.monotonic() > until:
                end = (self.record.folder / "switch.log").read_text(errors="replace")[-800:]
                raise LabError(f"the master did not start within {START_SECONDS} s; its log ends: {end}")
            time.sleep(0.05)

    def _await(self, names: Sequence[str], tell: Callable[[str], None] = lambda text: None) -> None:
        """Waits until the master counts on these hosts."""
        wanted = {h.address: h.name for h in self.record.hosts if h.name in names}
        until, seen = time.monotonic() + START_SECONDS, -1
        while True:
            states = spark.workers(self.record)
            there = sum(states.get(address) == "ALIVE" for address in wanted)
            if there != seen:
                seen = there
                tell(f"{there} of {len(wanted)} workers at work")
            if there == len(wanted):
                return
            if time.monotonic() > until:
                late = [n for a, n in wanted.items() if states.get(a) != "ALIVE"]
                log = self.record.folder / (f"{late[0]}.log" if states else "switch.log")
                end = log.read_text(errors="replace")[-800:] if log.exists() else "(no log)"
                raise LabError(
                    f"{', '.join(late)} did not start within {START_SECONDS} s; {log.name} ends: {end}"
                )
            time.sleep(0.1)

    def down(self) -> None:
        """Ends every process of the lab and deletes its network and files. A second time does nothing."""
        if self._record is not None:
            records.remove(self._record.id)
            self._record = None

    @contextlib.contextmanager
    def running(self) -> Iterator[LabCluster]:
        """As ``with lab:`` for one that is up already: the session of this program and the lab end with it."""
        try:
            yield self
        finally:
            self.__exit__()

    def __enter__(self) -> LabCluster:
        return self.up()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ImportError):
            from pyspark import SparkContext

            active = SparkContext._active_spark_context
            if active is not None and self._record is not None and active.master == self.master:
                active.stop()
        self.down()

    # ------------------------------------------------------------------ what it is

    @property
    def record(self) -> Record:
        if self._record is None:
            raise LabError("this lab is not up; use it as `with LabCluster(…) as lab:` or call up()")
        return self._record

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def master(self) -> str:
        """The URL of the Spark master."""
        return self.record.url

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        return [h.name for h in self.record.hosts]

    @property
    def _network(self) -> LabNetwork:
        return LabNetwork(self.record.id)

    def hosts(self) -> list[Host]:
        """Every host as it is now."""
        record, network = self.record, self._network
        traffic, states = network.traffic(), spark.workers(record)
        cut = network.down()
        found = []
        for host in record.hosts:
            if host.name in cut:
                state = "cut"
            elif not pids(network.namespace(host.name)):
                state = "dead"
            elif states.get(host.address) != "ALIVE":
                state = "lost"
            else:
                state = "up" if host.bandwidth == record.bandwidth else "slow"
            received, sent = traffic[host.name]
            found.append(Host(host.name, host.address, host.rack, state, received, sent, host.bandwidth))
        return found

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes to and from each host by the kernel's counters; also ``driver`` and, per rack, ``rack 1`` …

        Between two calls: what crossed the links in the meantime.
        """
        found = self._network.traffic()
        wanted = {h.name: h.name for h in self.record.hosts} | {"driver": "driver"}
        if self.record.racks > 1:
            wanted |= {f"rack {r}": f"down{r}" for r in range(1, self.record.racks + 1)}
        return {name: found[port] for name, port in wanted.items()}

    def status(self) -> dict[str, Any]:
        """Everything about the lab, as plain data."""
        record = self.record
        return {
            "lab": record.id,
            "master": record.url,
            "ui": f"http://{record.master}:8080",
            "network": record.network,
            "driver": record.driver,
            "bandwidth": record.bandwidth,
            "racks": record.racks,
            "uplink": record.uplink if record.racks > 1 else None,
            "cores": record.cores,
            "memory": record.memory,
            "folder": str(record.folder),
            "orphan": record.orphan,
            "hosts": [asdict(h) for h in self.hosts()],
            "traffic": {k: list(v) for k, v in self.traffic().items()},
        }

    # ------------------------------------------------------------------ running something on it

    def session(self, name: str = "weir", **options: str) -> Any:
        """A Spark session of this program on the lab, with an executor on every host that is up."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:
            raise LabError("this program has a Spark session already, and Spark allows one; stop it first")
        env = spark.environment(self.record, self.record.folder / "conf")
        os.environ.update({k: env[k] for k in ("SPARK_HOME", "PYSPARK_PYTHON")})
        builder = SparkSession.builder.appName(name)
        quiet = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.driver.memory": "1g",
        }
        every = {**quiet, **spark.settings(self.record), **options}
        # what a JVM is started with is on its command line, for all users to read: the secret comes later
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(every.items()))
        for key, value in {**every, **spark.authentication(self.record)}.items():
            builder = builder.config(key, value)
        made = builder.getOrCreate()
        made.sparkContext.setLogLevel("ERROR")
        self._await_executors(made)
        return made

    def _await_executors(self, session: Any) -> None:
        """A query that begins before all executors have reported would crowd the first ones."""
        wanted = list(spark.workers(self.record).values()).count("ALIVE")
        until = time.monotonic() + EXECUTOR_SECONDS
        while (there := session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < wanted:
            if time.monotonic() > until:
                session.stop()
                logs = f"{self.record.folder}/h*/work"
                raise LabError(
                    f"{there} of {wanted} executors came up within {EXECUTOR_SECONDS} s; see {logs}"
                )
            time.sleep(0.1)

    def environment(self, paths: list[str] | None = None) -> dict[str, str]:
        """The variables with which any PySpark program or ``weir`` command runs on this lab.

        ``paths`` are folders in which executors should look for Python modules, beside ``PYTHONPATH``.
        """
        conf = self.record.folder / "runs" / secrets.token_hex(4)
        return {**os.environ, **spark.environment(self.record, conf, paths)}

    def run(self, command: Sequence[str]) -> int:
        """Runs a command on the lab and returns its exit code."""
        scripts = [
            os.path.dirname(os.path.abspath(c)) for c in command if c.endswith(".py") and os.path.exists(c)
        ]
        env = self.environment(scripts)
        try:
            return subprocess.run(list(command), env=env).returncode
        except FileNotFoundError:
            raise LabError(f"there is no command {command[0]!r}") from None
        finally:
            shutil.rmtree(Path(env["SPARK_CONF_DIR"]), ignore_errors=True)

    # ------------------------------------------------------------------ faults

    def kill(self, host: str) -> None:
        """A host dies: worker, executors and their Python processes are gone at once."""
        records.end(self._network.namespace(self._host(host).name))

    def cut(self, host: str) -> None:
        """A host's link goes down. It lives on, but nobody hears of it."""
        self._network.connect(self._host(host).name, False)

    def slow(self, host: str, to: str) -> None:
        """A host's link gets another bandwidth."""
        found = self._host(host)
        self._network.shape(found.name, to)
        found.bandwidth = to
        self.record.save()

    def heal(self, host: str) -> None:
        """A host is as it was set up: link, bandwidth, and a worker that the master counts on."""
        found = self._host(host)
        if found.bandwidth != self.record.bandwidth:
            self.slow(host, self.record.bandwidth)
        self._network.connect(found.name, True)
        namespace = self._network.namespace(found.name)
        if not pids(namespace) or spark.workers(self.record).get(found.address) != "ALIVE":
            records.end(namespace)  # a worker that was given up is not trusted again
            spark.start_worker(self.record, found)
            self._await([found.name])

    def _host(self, name: str) -> HostRecord:
        for host in self.record.hosts:
            if host.name == name:
                return host
        raise LabError(f"lab {self.id} has no host {name!r}; {did_you_mean(name, self.names)}")
