"""A peer's own environment: a virtualenv in the cache folder, made once, with nothing of ours in it."""

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
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

STAMP = "ready.json"


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
