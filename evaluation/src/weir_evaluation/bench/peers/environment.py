"""A peer's own environment in the cache folder, made once.

Of a Python system it is a virtualenv with nothing of ours in it; of a Java system the classes of our program, which
are compiled for the jars that :mod:`weir_evaluation.jars` fetches.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import zlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from weir_evaluation import jars

STAMP = "ready.json"
JAVA = Path(__file__).parent / "java"


class Unavailable(Exception):
    """A peer that cannot run here, and why."""


def cache() -> Path:
    """Where environments are kept: ``$XDG_CACHE_HOME/weir/peers``, or the same below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "weir" / "peers"


def prepared(name: str, requirements: Sequence[str], console: Console) -> Path:
    """The Python of an environment with these requirements; made now if it is not there yet.

    An environment counts as there only when its installation ended well, for these requirements and this Python.
    """
    folder = cache() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    wanted = json.dumps({"requirements": list(requirements), "python": sys.version.split()[0]})
    stamp = folder / STAMP
    with open(folder.parent / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at a time must not install into one folder
        if stamp.exists() and stamp.read_text() == wanted and python.exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        console.print(f"setting up {name}: {' '.join(requirements)} → {folder}")
        with console.status(f"{name}: making a virtualenv") as status:
            command = [*_pip(folder, python), "install", "--disable-pip-version-check", *requirements]
            began, last = time.monotonic(), ""
            log = folder / "install.log"
            with open(log, "w+") as output:
                install = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
                try:
                    while install.poll() is None:
                        time.sleep(0.2)
                        last = _last_line(log) or last
                        status.update(f"{name}: {time.monotonic() - began:.0f} s  {last[:80]}")
                finally:
                    if install.poll() is None:
                        install.kill()
                        install.wait()
        if install.returncode != 0:
            reason = _reason(log)
            raise Unavailable(f"pip could not install {' '.join(requirements)}: {reason}")
        stamp.write_text(wanted)
        console.print(f"{name} is ready ({time.monotonic() - began:.0f} s)")
    return python


def compiled(name: str, console: Console) -> None:
    """Fetch the jars of a Java peer, and compile our program for it; once, as long as neither changes."""
    sources = [*JAVA.glob("*.java"), *(JAVA / name).glob("*.java")]
    try:
        with console.status(f"{name}: fetching jars with Maven"):
            libraries = jars.fetch(f"peers/{name}")
    except jars.NoJars as error:
        raise Unavailable(str(error)) from None
    classes = _classes(name)
    classes.parent.mkdir(parents=True, exist_ok=True)
    crc = zlib.crc32(b"".join(source.read_bytes() for source in sorted(sources)))
    wanted = json.dumps({"sources": crc, "jars": libraries.name})
    with open(f"{classes}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = classes / STAMP
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(classes, ignore_errors=True)
        command = [tool("javac"), "-nowarn", "--release", "17", "-cp", f"{libraries}/*", "-d", str(classes)]
        done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"javac: {done.stderr.strip() or 'no output'}"[:500])
        stamp.write_text(wanted)


def class_path(name: str) -> list[str]:
    """Where the classes of a Java peer are, ours first; :func:`compiled` has made them."""
    return [str(_classes(name)), f"{jars.folder(f'peers/{name}')}/*"]


def _classes(name: str) -> Path:
    return cache() / f"java-{name}"


def tool(name: str) -> str:
    """A program of the JDK."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no {name}: install a JDK (17 serves all) or set JAVA_HOME to one")
    return found


def _pip(folder: Path, python: Path) -> list[str]:
    """Make a virtualenv, and return the command that installs into it: our own pip if we have one, else one there."""
    ours = importlib.util.find_spec("pip") is not None
    venv.create(folder, with_pip=not ours, symlinks=True)
    return [sys.executable, "-m", "pip", "--python", str(python)] if ours else [str(python), "-m", "pip"]


def _last_line(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 2_000))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _reason(log: Path) -> str:
    """pip's own word for what went wrong."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output"])[0 if errors else -1]
