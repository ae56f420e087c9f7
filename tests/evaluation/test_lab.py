"""A lab from the command line: up, run, break, heal, down. Real namespaces, real links, a real cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support import counts, rows_of
from truth import eventually
from weir.cli.main import main
from weir.testing import run
from weir_evaluation.bench import lab as bench
from weir_evaluation.lab import LabCluster, missing
from weir_evaluation.lab.errors import LabError
from weir_evaluation.lab.network import LabNetwork, links, namespaces, pids

LACKS = missing()
WEIR = [sys.executable, "-m", "weir.cli.main"]
needs_a_lab = pytest.mark.skipif(bool(LACKS), reason=f"no lab here; missing: {'; '.join(LACKS)}")


def weir(*arguments):
    """Run a command of ours in a process of its own; return its JSON, or what it prints."""
    done = subprocess.run([*WEIR, *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture
def command(capsys):
    """Run a command of ours in this process; return its JSON, what it prints, or what it complains about."""

    def run(*arguments, fails=False):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert code == (1 if fails else 0), err
        if fails:
            return err
        return json.loads(out) if "--json" in arguments else out

    return run


def traces(lab):
    return [*namespaces(f"weir-{lab}"), *links(f"weir-{lab}")]


def master_of(lab):
    """Return the processes of a lab's Spark master."""
    running = []
    for pid in pids(f"weir-{lab}-switch"):
        with contextlib.suppress(OSError):  # it may have ended
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                running.append(pid)
    return running


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Labs of these tests are on a shelf of their own: others on this machine are not seen, let alone touched."""
    folder = str(tmp_path_factory.mktemp("labs"))
    before = os.environ.get("WEIR_LAB_HOME")
    os.environ["WEIR_LAB_HOME"] = folder
    yield folder
    if before is None:
        del os.environ["WEIR_LAB_HOME"]
    else:
        os.environ["WEIR_LAB_HOME"] = before


@pytest.fixture(scope="module")
def lab(home):
    status = weir("lab", "up", "--hosts", "3", "--bandwidth", "200mbit", "--json")
    yield status
    weir("lab", "down", "--lab", status["lab"])
    assert traces(status["lab"]) == []


@needs_a_lab
@pytest.mark.faults
@pytest.mark.long
def test_a_query_survives_the_death_of_a_host_and_equals_plain_spark(lab):
    before = {h["name"]: h for h in weir("lab", "status", "--json")["hosts"]}
    began = time.time()
    result = weir(
        "lab", "run", "--", *WEIR, "bench", "lab", "--rows", "20000", "--batches", "5", "--at", "2", "--json"
    )
    ended = time.time()
    assert result["in_flight"], "the host died too late to hurt"
    assert all(result["equal"].values())
    # from the fault to the commit of its batch, all within this run, and the batches after it were committed, too
    assert began < result["fault_at"] < result["fault_at"] + result["recovery_seconds"] < ended
    assert result["batches_after"] == [3, 4]
    # each server was at home on a host of its own, by the host's own name; the dead one's has moved, then come back
    assert sorted(result["homes_before"]) == ["h1", "h2", "h3"]
    assert set(result["homes_after"]) <= {"h1", "h2", "h3"}
    after = {h["name"]: h for h in weir("lab", "status", "--json")["hosts"]}
    for name, host in after.items():
        assert host["state"] == "up", "the benchmark brought it back"
        # twenty thousand rows in each of five batches, most of them from one host to another
        assert host["bytes_in"] - before[name]["bytes_in"] > 50_000
        assert host["bytes_out"] - before[name]["bytes_out"] > 50_000


@pytest.mark.faults
def test_the_query_of_that_benchmark_equals_plain_counting_when_tasks_and_the_driver_run_again():
    rng = np.random.default_rng(7)
    tables = [bench.posts(rng, 2000) for _ in range(5)]
    app = bench.application("place string, topic string")
    faults = ["step-started:201", "step-started:202", "job-done:2"]
    query = run(app, tables, servers=3, hosts=["h1", "h2", "h3"], faults=faults)
    assert [p.batch for p in query.recent_progress][-2:] == [3, 4]
    assert rows_of(query.state("places")) == counts(tables, "place")
    assert rows_of(query.state("topics")) == counts(tables, "topic")
    assert sorted(s.host for s in query.progress.servers) == ["h1", "h2", "h3"]


@needs_a_lab
def test_programs_run_on_the_lab_without_knowing_of_it(lab):
    script = "import os; print(os.environ['WEIR_LAB'], os.environ['MASTER'], os.environ['SPARK_LOCAL_IP'])"
    shown = weir("lab", "run", "--", sys.executable, "-c", script)
    assert shown.split() == [lab["lab"], lab["master"], lab["driver"]]


@needs_a_lab
def test_the_secret_of_a_lab_is_its_owners_alone(lab, home):
    """Its Spark asks every program for it; nobody else finds it in a file or on a command line."""
    folder = Path(home, lab["lab"])
    secret = folder / "secret.conf"
    assert folder.stat().st_mode & 0o077 == secret.stat().st_mode & 0o077 == 0
    settings = dict(line.split(" ", 1) for line in secret.read_text().splitlines())
    assert settings["spark.authenticate"] == "true"
    word = settings["spark.authenticate.secret"].encode()
    assert len(word) == 64
    started = master_of(lab["lab"])
    assert started
    for pid in [*started, *(p for h in lab["hosts"] for p in pids(f"weir-{lab['lab']}-{h['name']}"))]:
        with contextlib.suppress(OSError):  # it may have ended
            assert word not in Path(f"/proc/{pid}/cmdline").read_bytes()
    script = "import os; print(open(os.environ['SPARK_CONF_DIR'] + '/spark-defaults.conf').read())"
    assert word.decode() in weir("lab", "run", "--", sys.executable, "-c", script)


@needs_a_lab
@pytest.mark.faults
def test_links_carry_what_they_are_allowed_to_and_no_more(lab, command):
    cluster = LabCluster.attach(lab["lab"])

    def seconds(megabytes):
        """Return how long h1 takes to send so much to h2."""
        receive = (
            "import socket, sys; s = socket.create_server(('', 9999)); print('ready', flush=True); "
            "c, _ = s.accept()\nwhile c.recv(1 << 16): pass"
        )
        send = (
            f"import socket, time; c = socket.create_connection(('{cluster.record.hosts[1].address}', 9999)); "
            f"began = time.monotonic(); c.sendall(bytes({megabytes} << 20)); c.shutdown(1); c.recv(1); "
            "print(time.monotonic() - began)"
        )
        at = [["ip", "netns", "exec", f"weir-{lab['lab']}-{h}", sys.executable, "-c"] for h in ("h2", "h1")]
        with subprocess.Popen([*at[0], receive], stdout=subprocess.PIPE, text=True) as receiver:
            receiver.stdout.readline()
            sender = subprocess.run([*at[1], send], timeout=60, check=True, stdout=subprocess.PIPE)
            return float(sender.stdout)

    before = cluster.traffic()
    assert seconds(8) > 8 * 1.048 * 8 / 200 * 0.8  # 200 Mbit/s
    sent = cluster.traffic()["h1"][1] - before["h1"][1]
    assert 8 << 20 <= sent < (8 << 20) * 1.1, "the counters count what was sent, and its headers"
    assert cluster.traffic()["h3"][0] - before["h3"][0] < 1 << 20, "nobody else got it"
    assert command("lab", "slow", "h2", "--to", "10mbit", "--json")["hosts"][1]["state"] == "slow"
    assert seconds(2) > 2 * 1.048 * 8 / 10 * 0.8
    assert command("lab", "heal", "h2", "--json")["hosts"][1]["bandwidth"] == "200mbit"
    eventually(lambda: seconds(2) < 2 * 1.048 * 8 / 10 * 0.8)  # a busy machine may need a second try


@needs_a_lab
@pytest.mark.faults
def test_hosts_die_are_cut_off_and_come_back(lab, command):
    def states(status):
        return [h["state"] for h in status["hosts"]]

    assert states(command("lab", "kill", "h1", "--json")) == ["dead", "up", "up"]
    cluster = LabCluster.attach(lab["lab"])
    cluster.cut("h2")
    assert cluster.hosts()[1].state == "cut"
    assert "state" in command("lab", "status"), "people get a table"
    cluster.heal("h2")
    assert states(command("lab", "heal", "h1", "--json")) == ["up", "up", "up"]
    assert "h1" in command("lab", "cut", "h9", fails=True), "it says which hosts there are"
    assert "20mbit" in command("lab", "slow", "h1", "--to", "fast", fails=True)


@needs_a_lab
def test_a_lab_whose_record_is_in_another_folder_is_left_alone(lab, command, tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_LAB_HOME", str(tmp_path))
    assert lab["lab"] not in command("lab", "down", "--all", "--json")["removed"]
    assert "there is no lab" in command("lab", "down", "--lab", lab["lab"], fails=True)
    monkeypatch.undo()
    assert all(h.state == "up" for h in LabCluster.attach(lab["lab"]).hosts())


@needs_a_lab
@pytest.mark.faults
def test_what_a_killed_program_leaves_behind_is_found_and_removed(lab, home, command):
    owner = "from weir_evaluation.lab import LabCluster; LabCluster(hosts=1).up(lambda text: print(text, flush=True))"
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as program:
        left = program.stdout.readline().split()[1].rstrip(":")  # "lab ID: 1 hosts in …"
        eventually(
            lambda: master_of(left)
        )  # killed before its workers have come, it leaves enough to be found
        program.send_signal(signal.SIGKILL)
    assert len(traces(left)) >= 3, "nobody was there to clean up"
    assert master_of(left)
    assert command("lab", "status", "--lab", left, "--json")["orphan"]
    os.remove(f"{home}/{left}/lab.json")  # not even the record is needed
    assert command("lab", "down", "--lab", left, "--json")["removed"] == [left]
    assert traces(left) == []
    assert not master_of(left)
    assert not os.path.exists(f"{home}/{left}")
    assert all(h.state == "up" for h in LabCluster.attach(lab["lab"]).hosts()), "the other lab is as it was"


@needs_a_lab
def test_racks_are_joined_by_an_uplink_of_their_own(home):
    network = LabNetwork("0000")
    try:
        network.lay("198.19.255.1/24", "198.19.255.2/24", 2, "1mbit")
        for rack, host in ((1, "h1"), (1, "h2"), (2, "h3")):
            network.plug_in(host, f"198.19.255.1{host[1]}/24", rack, "100mbit")
        before = network.traffic()

        def throw(to):
            """700 kB at once, from h1."""
            send = f"socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1400), ('198.19.255.1{to}', 9))"
            throw = f"import socket, time\nfor _ in range(500): {send}; time.sleep(0.0001)"
            inside = ["ip", "netns", "exec", network.namespace("h1"), sys.executable, "-c", throw]
            subprocess.run(inside, check=True)

        def settled():
            """Whether nothing is on its way any more: the uplink has sent nothing for a while."""
            there = network.traffic()["h3"][0]
            time.sleep(0.3)
            return network.traffic()["h3"][0] == there

        throw(2)
        eventually(lambda: network.traffic()["h2"][0] - before["h2"][0] >= 700_000)
        assert network.traffic()["down1"][1] - before["down1"][1] < 5_000, "it did not leave the rack"
        throw(3)
        eventually(lambda: network.traffic()["h3"][0] - before["h3"][0] > 50_000)
        eventually(settled)
        crossed = network.traffic()["h3"][0] - before["h3"][0]
        assert 50_000 < crossed < 600_000, "what the uplink cannot carry is lost"
        assert network.traffic()["down2"][0] - before["down2"][0] > 50_000
    finally:
        network.clear()
    assert traces("0000") == []


def test_what_cannot_be_is_refused_with_the_reason(monkeypatch):
    for wrong, says in (
        ({"hosts": 0}, "1 to 200 hosts"),
        ({"hosts": 2, "racks": 3}, "racks"),
        ({"bandwidth": "fast"}, "1gbit"),
        ({"uplink": "10mbit"}, "racks=2"),
        ({"cores": 0}, "core"),
    ):
        with pytest.raises(LabError, match=says):
            LabCluster(**wrong)
    with pytest.raises(LabError, match="not up"):
        LabCluster().traffic()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(LabError, match=r"iproute2.*root.*local-cluster\[6,1,1024\]"):
        LabCluster(hosts=6).up()
