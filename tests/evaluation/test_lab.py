"""A lab from the command line: up, run, break, heal, down. Real namespaces, real links, a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from weir_evaluation.lab import LabCluster, missing
from weir_evaluation.lab.errors import LabError
from weir_evaluation.lab.network import LabNetwork, links, namespaces

LACKS = missing()
WEIR = [sys.executable, "-m", "weir.cli.main"]
needs_a_lab = pytest.mark.skipif(bool(LACKS), reason=f"no lab here; missing: {'; '.join(LACKS)}")


def weir(*arguments, env=None, fails=False):
    """Runs a command of ours; its JSON, or what it complains about."""
    command = [*WEIR, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, env={**os.environ, **(env or {})}
    )
    if fails:
        assert done.returncode == 1, done
        return done.stderr
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def traces(lab):
    return [*namespaces(f"weir-{lab}"), *links(f"weir-{lab}")]


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
def test_a_query_survives_the_death_of_a_host_and_equals_plain_spark(lab):
    before = {h["name"]: h for h in weir("lab", "status", "--json")["hosts"]}
    result = weir(
        "lab", "run", "--", *WEIR, "bench", "lab", "--rows", "20000", "--batches", "5", "--at", "2", "--json"
    )
    assert result["in_flight"], "the host died too late to hurt"
    assert all(result["equal"].values())
    assert result["recovery_seconds"] > 0
    # each server was at home on a host of its own, by the host's own name; the dead one's has moved, then come back
    assert sorted(result["homes_before"]) == ["h1", "h2", "h3"]
    assert set(result["homes_after"]) <= {"h1", "h2", "h3"}
    after = {h["name"]: h for h in weir("lab", "status", "--json")["hosts"]}
    for name, host in after.items():
        assert host["state"] == "up", "the benchmark brought it back"
        # twenty thousand rows in each of five batches, most of them from one host to another
        assert host["bytes_in"] - before[name]["bytes_in"] > 50_000
        assert host["bytes_out"] - before[name]["bytes_out"] > 50_000


@needs_a_lab
@pytest.mark.faults
def test_links_carry_what_they_are_allowed_to_and_no_more(lab):
    cluster = LabCluster.attach(lab["lab"])

    def seconds(megabytes):
        """How long h1 takes to send so much to h2."""
        receive = (
            "import socket, sys; s = socket.create_server(('', 9999)); print('ready', flush=True); "
            "c, _ = s.accept()\nwhile c.recv(1 << 16): pass"
        )
        send = (
            f"import socket; c = socket.create_connection(('{cluster.record.hosts[1].address}', 9999)); "
            f"c.sendall(bytes({megabytes} << 20)); c.shutdown(1); c.recv(1)"
        )
        at = [["ip", "netns", "exec", f"weir-{lab['lab']}-{h}", sys.executable, "-c"] for h in ("h2", "h1")]
        with subprocess.Popen([*at[0], receive], stdout=subprocess.PIPE, text=True) as receiver:
            receiver.stdout.readline()
            began = time.monotonic()
            subprocess.run([*at[1], send], timeout=60, check=True)
            return time.monotonic() - began

    before = cluster.traffic()
    assert seconds(8) > 8 * 1.048 * 8 / 200 * 0.8  # 200 Mbit/s
    sent = cluster.traffic()["h1"][1] - before["h1"][1]
    assert 8 << 20 <= sent < (8 << 20) * 1.1, "the counters count what was sent, and its headers"
    assert cluster.traffic()["h3"][0] - before["h3"][0] < 1 << 20, "nobody else got it"
    assert weir("lab", "slow", "h2", "--to", "10mbit", "--json")["hosts"][1]["state"] == "slow"
    assert seconds(2) > 2 * 1.048 * 8 / 10 * 0.8
    assert weir("lab", "heal", "h2", "--json")["hosts"][1]["bandwidth"] == "200mbit"
    assert seconds(2) < 2 * 1.048 * 8 / 10 * 0.8


@needs_a_lab
@pytest.mark.faults
def test_hosts_die_are_cut_off_and_come_back(lab):
    def states(status):
        return [h["state"] for h in status["hosts"]]

    assert states(weir("lab", "kill", "h1", "--json")) == ["dead", "up", "up"]
    cluster = LabCluster.attach(lab["lab"])
    cluster.cut("h2")
    assert cluster.hosts()[1].state == "cut"
    assert "state" in weir("lab", "status"), "people get a table"
    cluster.heal("h2")
    assert states(weir("lab", "heal", "h1", "--json")) == ["up", "up", "up"]
    assert "h1" in weir("lab", "cut", "h9", fails=True), "it says which hosts there are"
    assert "20mbit" in weir("lab", "slow", "h1", "--to", "fast", fails=True)


@needs_a_lab
@pytest.mark.faults
def test_what_a_killed_program_leaves_behind_is_found_and_removed(lab, home):
    owner = (
        "import time; from weir_evaluation.lab import LabCluster; "
        "print(LabCluster(hosts=1).up().id, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as program:
        left = program.stdout.readline().strip()
        assert len(traces(left)) >= 3
        program.send_signal(signal.SIGKILL)
    assert len(traces(left)) >= 3, "nobody was there to clean up"
    assert weir("lab", "status", "--lab", left, "--json")["orphan"]
    os.remove(f"{home}/{left}/lab.json")  # not even the record is needed
    assert weir("lab", "down", "--lab", left, "--json")["removed"] == [left]
    assert traces(left) == []
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
            time.sleep(0.2)

        throw(2)
        assert network.traffic()["h2"][0] - before["h2"][0] >= 700_000
        assert network.traffic()["down1"][1] - before["down1"][1] < 5_000, "it did not leave the rack"
        throw(3)
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
