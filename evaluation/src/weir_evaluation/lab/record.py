"""What is known about a lab: a file that outlives whoever wrote it, so that nothing is ever left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weir_evaluation.lab.errors import LabError
from weir_evaluation.lab.network import PREFIX, LabNetwork, links, namespaces, pids

FILE = "lab.json"
HOMES = Path("/run/weir-lab")  # a file per lab of this machine: the folder that has its record


class HostRecord(msgspec.Struct):
    """A host as it was set up, and the bandwidth it has now."""

    name: str
    address: str
    rack: int
    bandwidth: str


class Record(msgspec.Struct):
    """A lab as it was set up."""

    id: str
    network: str
    driver: str
    master: str
    bandwidth: str
    racks: int
    uplink: str
    cores: int
    memory: str
    hosts: list[HostRecord]
    owner: tuple[int, str] | None = (
        None  # process and when it began; None if the lab should outlive its maker
    )
    created: float = 0.0

    @property
    def folder(self) -> Path:
        return home() / self.id

    @property
    def url(self) -> str:
        return f"spark://{self.master}:7077"

    @property
    def orphan(self) -> bool:
        """Whether the program that it was made for is gone."""
        return self.owner is not None and self.owner != process(self.owner[0])

    def save(self) -> None:
        path = self.folder / FILE
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        aside.replace(path)
        HOMES.mkdir(mode=0o755, exist_ok=True)
        (HOMES / self.id).write_text(str(home()))


def home() -> Path:
    """The folder with the records of labs: ``WEIR_LAB_HOME``, or ``weir-lab`` among the temporary files."""
    folder = Path(os.environ.get("WEIR_LAB_HOME") or Path(tempfile.gettempdir()) / "weir-lab")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise LabError(f"{folder} belongs to another user; set WEIR_LAB_HOME to a folder of your own")
    return folder


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keeps others from choosing the same name or addresses at the same time."""
    with open(home() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def process(pid: int) -> tuple[int, str] | None:
    """A process, told apart from later ones with its number by the time it began; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if stat[0] == "Z" else (pid, stat[19])


def labs() -> dict[str, Record | None]:
    """Every lab of this folder by its id; None for what is left of one whose record is lost."""
    records: dict[str, Record | None] = {}
    for path in sorted(home().glob(f"*/{FILE}")):
        with contextlib.suppress(msgspec.MsgspecError, OSError):
            records[path.parent.name] = msgspec.json.decode(path.read_bytes(), type=Record)
    for lab in networks():
        if not _is_elsewhere(lab):
            records.setdefault(lab, None)
    return records


def networks() -> set[str]:
    """The ids of all labs that have something in this machine's network, whoever's they are."""
    matches = (re.fullmatch(rf"{PREFIX}([0-9a-f]{{4}})(-.*)?", name) for name in [*namespaces(), *links()])
    return {match[1] for match in matches if match}


def _is_elsewhere(lab: str) -> bool:
    """Whether another folder than ours has the record of a lab."""
    try:
        folder = Path((HOMES / lab).read_text())
    except OSError:
        return False
    return folder != home() and (folder / lab / FILE).exists()


def find(lab: str | None = None) -> Record:
    """The lab with this id, or the only one there is."""
    known = {i: r for i, r in labs().items() if r is not None}
    if lab is not None:
        record = known.get(lab)
        if record is None:
            raise LabError(f"there is no lab {lab!r} here; known: {', '.join(known) or 'none'} (weir lab up)")
        return record
    if len(known) == 1:
        return next(iter(known.values()))
    if not known:
        raise LabError("there is no lab on this machine; start one: weir lab up --hosts 3")
    raise LabError(f"there are several labs here ({', '.join(known)}); say which: --lab {next(iter(known))}")


def remove(lab: str) -> None:
    """Ends every process of a lab and deletes its network and files; nothing that isn't the lab's is touched."""
    network = LabNetwork(lab)
    for namespace in namespaces(f"{PREFIX}{lab}-"):
        end(namespace)
    network.clear()
    shutil.rmtree(home() / lab, ignore_errors=True)
    (HOMES / lab).unlink(missing_ok=True)


def sweep() -> list[str]:
    """Removes labs whose programs are gone; returns their ids."""
    gone = [i for i, record in labs().items() if record is not None and record.orphan]
    for lab in gone:
        remove(lab)
    return gone


def end(namespace: str, patience: float = 10.0) -> None:
    """Kills all processes in a namespace, also those that are just being born."""
    until = time.monotonic() + patience
    while found := pids(namespace):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise LabError(f"processes in {namespace} don't die: {found}")
        time.sleep(0.05)
