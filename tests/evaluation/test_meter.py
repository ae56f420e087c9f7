"""The meter behind ``weir bench peers``, on process trees whose CPU and memory are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from truth import eventually
from weir_evaluation.bench.peers import meter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BURN = """
import os, sys, time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

def wait_for(condition):
    while not condition():
        time.sleep(0.01)

def tell(name, text):
    with open(name + ".new", "w") as file:
        file.write(str(text))
    os.rename(name + ".new", name)

def seen(by, pid):
    return os.path.exists(f"{by}-{pid}")
"""

# the meter, in a hurry, and telling at which processes it has looked for their CPU time and for their memory
METER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("meter", sys.argv.pop(1))
meter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(meter)
meter.INTERVAL = meter.DISCOVERY = 0.02
meter.MEMORY_SHARE = 1.0

def telling(look, name):
    def looked(pids):
        answer = look(pids)
        for pid in pids:
            open(f"{name}-{pid}", "w").close()
        return answer
    return looked

meter.cpu_seconds = telling(meter.cpu_seconds, "cpu")
meter.memory_mb = telling(meter.memory_mb, "memory")
meter.main()
"""


def metered(tmp_path: Path, program: str, seconds: float = 60, cores: int = 1) -> dict:
    script, out = tmp_path / "program.py", tmp_path / "meter.json"
    script.write_text(BURN + program)
    command = [sys.executable, "-c", METER, meter.__file__, str(out), str(seconds), str(cores)]
    assert subprocess.run([*command, sys.executable, str(script)], cwd=tmp_path).returncode == 0
    return json.loads(out.read_text())


def test_cpu_of_children_alive_dead_and_orphaned_is_counted_once(tmp_path):
    result = metered(
        tmp_path,
        """
child = os.fork()
if not child:  # waited for: booked with its parent
    burn(0.4)
    tell("child.cpu", time.process_time())
    os._exit(0)
middle = os.fork()
if not middle:
    if not os.fork():  # an orphan, as daemons are: its parent has gone
        os.setsid()
        burn(0.4)
        wait_for(lambda: seen("cpu", os.getpid()))
        tell("orphan.cpu", time.process_time())
        tell("orphan.pid", os.getpid())
        os._exit(0)
    os._exit(0)
os.waitpid(child, 0), os.waitpid(middle, 0)
burn(0.4)
wait_for(lambda: os.path.exists("orphan.pid"))
pid = int(open("orphan.pid").read())
wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
tell("main.cpu", time.process_time())
""",
    )
    assert result["exit"] == 0
    cpu = [c for _, c in result["samples"]]
    assert cpu == sorted(cpu)
    by_themselves = sum(float((tmp_path / f"{who}.cpu").read_text()) for who in ("child", "orphan", "main"))
    assert by_themselves >= 1.2
    assert cpu[-1] == pytest.approx(by_themselves, abs=0.2)


def test_shared_pages_count_once(tmp_path):
    result = metered(
        tmp_path,
        """
block = bytearray(100 << 20)
for page in range(0, len(block), 4096):
    block[page] = 1
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        wait_for(lambda: os.path.exists("leave"))
        os._exit(0)
    children.append(child)
wait_for(lambda: all(seen("memory", child) for child in children))
tell("leave", "now")
for _ in range(3):
    os.wait()
""",
    )
    assert 100 <= result["peak_mb"] < 200  # resident sets would add up to 400


def test_nothing_is_left_behind(tmp_path):
    result = metered(
        tmp_path,
        """
import signal
if not os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    tell("pid", os.getpid())
    time.sleep(600)
wait_for(lambda: os.path.exists("pid"))
sys.exit(3)
""",
    )
    assert result["exit"] == 3
    assert not alive(int((tmp_path / "pid").read_text()))


def test_time_is_up(tmp_path):
    out = tmp_path / "meter.json"
    command = [
        sys.executable,
        meter.__file__,
        str(out),
        "1.5",
        "1",
        "sh",
        "-c",
        "echo $$ > pid; exec sleep 600",
    ]
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    assert json.loads(out.read_text())["exit"] is None
    assert not alive(int((tmp_path / "pid").read_text()))


def test_when_the_asker_dies_all_is_ended(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(BURN + "tell('pid', os.getpid())\ntime.sleep(600)")
    asker = tmp_path / "asker.py"
    command = [sys.executable, meter.__file__, "out.json", "60", "1", sys.executable, str(program)]
    asker.write_text(f"import subprocess\nsubprocess.run({command!r})")
    process = subprocess.Popen([sys.executable, str(asker)], cwd=tmp_path)
    eventually(lambda: (tmp_path / "pid").exists())
    pid = int((tmp_path / "pid").read_text())
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
