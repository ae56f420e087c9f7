"""Java programs that tests and benchmarks start: ``NAME.xml`` names their jars, and Maven fetches them once.

``python -m weir_evaluation.jars`` fetches those of ``make test`` into the virtual environment; ``scripts/setup``
does so. Nothing is fetched while these run: where the jars are missing, :func:`folder` says so. Tests that are `long`
and benchmarks fetch what only they use.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

PROJECTS = Path(__file__).parent


class NoJars(RuntimeError):
    """The jars of a program are not here, and why."""


def folder(name: str) -> Path:
    """Return the folder that has the jars of a program."""
    place = _place(name)
    if not place.is_dir():
        raise NoJars(
            f"the jars of {name} are not here: python -m weir_evaluation.jars fetches them, with mvn"
        )
    return place


def fetch(name: str) -> Path:
    """Fetch the jars of a program unless they are here, and return their folder."""
    place = _place(name)
    if place.is_dir():
        return place
    if shutil.which("mvn") is None:
        raise NoJars(f"no jars of {name}: there is no mvn here (apt-get install maven)")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        shutil.copy(PROJECTS / f"{name}.xml", f"{work}/pom.xml")
        command = ["mvn", "-q", "-B", f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True)
        if done.returncode:
            why = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr)
            raise NoJars(f"no jars of {name}: {why.strip()}")
        try:
            Path(work, "jars").rename(place)
        except OSError:  # somebody else was faster
            if not place.is_dir():
                raise
    return place


def _place(name: str) -> Path:
    project = (PROJECTS / f"{name}.xml").read_bytes()
    return Path(sys.prefix) / "jars" / f"{name}-{zlib.crc32(project):08x}"
