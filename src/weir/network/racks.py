"""The rack of each host: from a file, a script like Hadoop's topology script, a dict or a function."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from weir.errors import TopologyError

DEFAULT_RACK = "/default-rack"  # Hadoop's name for it
SCRIPT_HOSTS = 100  # hosts per call of a script, as in Hadoop
SCRIPT_SECONDS = 30

Lookup = Callable[[list[str]], list[str]]


class Racks:
    """The racks of hosts; each host is looked up once.

    Make one with :meth:`from_file`, :meth:`from_script` or :meth:`of`. A host that a file or a dict doesn't list is in
    ``/default-rack``.

    >>> racks = Racks.of({"host-a": "/rack-1"})
    >>> racks["host-a"], racks["host-b"]
    ('/rack-1', '/default-rack')
    >>> Racks.of(lambda host: "/row-" + host[-1])["host-b"]
    '/row-b'
    """

    def __init__(self, lookup: Lookup, about: str) -> None:
        self._lookup = lookup
        self.about = about
        self._racks: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Racks({self.about})"

    def __getitem__(self, host: str) -> str:
        return self.find([host])[0]

    def find(self, hosts: Iterable[str]) -> list[str]:
        """Return the rack of each host; new hosts are looked up in one call."""
        hosts = list(hosts)
        new = [h for h in dict.fromkeys(hosts) if h not in self._racks]
        if new:
            racks = self._lookup(new)
            if len(racks) != len(new):
                raise TopologyError(
                    f"{self.about} names {len(racks)} racks for {len(new)} hosts ({', '.join(new)}); "
                    "one rack per host is needed, in the hosts' order"
                )
            bad = next((h for h, r in zip(new, racks, strict=True) if not isinstance(r, str) or not r), None)
            if bad is not None:
                raise TopologyError(
                    f"{self.about} names no rack for host {bad!r}; a rack is a non-empty text"
                )
            self._racks.update(zip(new, racks, strict=True))
        return [self._racks[h] for h in hosts]

    @classmethod
    def of(cls, racks: RacksLike) -> Racks:
        """Make racks from a dict of hosts or a function of one host; return a :class:`Racks` as it is."""
        if isinstance(racks, Racks):
            return racks
        if isinstance(racks, Mapping):
            table = dict(racks)
            return cls(
                lambda hosts: [table.get(h, DEFAULT_RACK) for h in hosts], f"a dict of {len(table)} hosts"
            )
        if callable(racks):
            function = racks
            name = getattr(function, "__name__", "a function")
            return cls(lambda hosts: [function(h) for h in hosts], f"the function {name}")
        raise TopologyError(
            f"racks={racks!r}: expected weir.Racks.from_file(…), weir.Racks.from_script(…), a dict from hosts to "
            "racks, or a function of a host"
        )

    @classmethod
    def from_file(cls, path: str | Path) -> Racks:
        """Read a text file with a host and its rack per line, as Hadoop's table mapping; ``#`` begins a comment."""
        try:
            lines = Path(path).read_text().splitlines()
        except OSError as error:
            raise TopologyError(f"{path}: the rack file cannot be read ({error.strerror})") from None
        table: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            if len(words) != 2:
                raise TopologyError(
                    f"{path}, line {number}: expected a host and a rack, got {line.strip()!r}"
                )
            if table.setdefault(words[0], words[1]) != words[1]:
                raise TopologyError(
                    f"{path}, line {number}: host {words[0]!r} is in {words[1]!r} and in {table[words[0]]!r}"
                )
        return cls(lambda hosts: [table.get(h, DEFAULT_RACK) for h in hosts], f"the file {path}")

    @classmethod
    def from_script(cls, path: str | Path) -> Racks:
        """Ask a program that is given hosts as arguments and prints a rack for each, one per line or word."""
        if not Path(path).is_file():
            raise TopologyError(f"{path}: there is no such rack script")

        def lookup(hosts: list[str]) -> list[str]:
            racks: list[str] = []
            for start in range(0, len(hosts), SCRIPT_HOSTS):
                racks += _ask(path, hosts[start : start + SCRIPT_HOSTS])
            return racks

        return cls(lookup, f"the script {path}")


def _ask(path: str | Path, hosts: list[str]) -> list[str]:
    try:
        done = subprocess.run(
            [str(Path(path).resolve()), *hosts], capture_output=True, text=True, timeout=SCRIPT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TopologyError(f"the rack script {path} cannot be run: {error}") from None
    if done.returncode:
        raise TopologyError(
            f"the rack script {path} failed with exit code {done.returncode}: {done.stderr.strip()[-300:]}"
        )
    return done.stdout.split()


RacksLike = Racks | Mapping[str, str] | Callable[[str], str]
