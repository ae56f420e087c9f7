"""The meter behind ``weir bench peers``, on process trees whose CPU and memory are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weir_evaluation.bench.peers import meter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BURN = """
import os, sys, time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
"""


def metered(tmp_path: Path, program: str, seconds: float = 60, cores: int = 1) -> dict:
    script, out = tmp_path / "program.py", tmp_path / "meter.json"
    script.write_text(BURN + program)
    command = [
        sys.executable,
        meter.__file__,
        str(out),
        str(seconds),
        str(cores),
        sys.executable,
        str(script),
    ]
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    return json.loads(out.read_text())


def test_cpu_of_children_alive_dead_and_orphaned_is_counted_once(tmp_path):
    told = metered(
        tmp_path,
        """
child = os.fork()
if not child:  # waited for: booked with its parent
    burn(0.5)
    os._exit(0)
middle = os.fork()
if not middle:
    if not os.fork():  # an orphan, as daemons are: its parent has gone
        os.setsid()
        burn(0.5)
        time.sleep(0.5)
        open("orphan.done", "w").close()
        os._exit(0)
    os._exit(0)
os.waitpid(child, 0), os.waitpid(middle, 0)
burn(0.5)
while not os.path.exists("orphan.done"):
    time.sleep(0.05)
time.sleep(0.3)
""",
    )
    assert told["exit"] == 0
    cpu = [c for _, c in told["samples"]]
    assert cpu == sorted(cpu)
    assert 1.45 <= cpu[-1] < 2.0  # three times 0.5, and a Python's start


def test_shared_pages_count_once(tmp_path):
    told = metered(
        tmp_path,
        """
block = bytearray(os.urandom(1 << 20) * 100)
for _ in range(3):
    if not os.fork():
        time.sleep(1.5)
        os._exit(0)
for _ in range(3):
    os.wait()
""",
    )
    assert 100 <= told["peak_mb"] < 200  # resident sets would add up to 400


def test_nothing_is_left_behind(tmp_path):
    told = metered(
        tmp_path,
        """
import signal
if not os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    open("pid", "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists("pid") or not open("pid").read():
    time.sleep(0.02)
sys.exit(3)
""",
    )
    assert told["exit"] == 3
    assert not alive(int((tmp_path / "pid").read_text()))


def test_time_is_up(tmp_path):
    told = metered(tmp_path, "open('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)", seconds=2)
    assert told["exit"] is None
    assert not alive(int((tmp_path / "pid").read_text()))


def test_when_the_asker_dies_all_is_ended(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)")
    asker = tmp_path / "asker.py"
    command = [sys.executable, meter.__file__, "out.json", "60", "1", sys.executable, str(program)]
    asker.write_text(f"import subprocess\nsubprocess.run({command!r})")
    process = subprocess.Popen([sys.executable, str(asker)], cwd=tmp_path)
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    process.kill()
    process.wait()
    assert eventually(lambda: not alive(pid))


def test_cores_are_limited(tmp_path):
    metered(tmp_path, "open('cores', 'w').write(str(len(os.sched_getaffinity(0))))", cores=1)
    assert (tmp_path / "cores").read_text() == "1"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition, seconds: float = 30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s (pid {os.getpid()})")
