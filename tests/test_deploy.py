"""What is in deploy/: read by the programs that it is for, as far as they are here, and told what exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from weir.cli.configuration import read
from weir.cli.main import _parser
from weir.durations import microseconds

DEPLOY = Path(__file__).parents[1] / "deploy"
GRACE = microseconds(read(str(DEPLOY / "weir.toml"), {}, []).own("grace")) / 1e6 + 5


def check(words):
    """Read the words of a `weir run`, and what they tell; return the latter."""
    args = _parser(words).parse_args(words)
    assert Path(args.app.rsplit(":")[0]).name == "app.py"
    pairs = [text.split("=", 1) for text in args.set]
    told = read(str(DEPLOY / Path(args.config).name), {}, pairs)
    told.options()
    return told


def test_the_unit_of_systemd(tmp_path):
    unit = (DEPLOY / "weir-posts.service").read_text()
    check(shlex.split(re.search("ExecStart=(.*)", unit)[1])[1:])
    assert "KillMode=mixed" in unit
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > GRACE
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd on this machine, so its unit is not verified by it")
    (tmp_path / "weir-posts.service").write_text(re.sub("ExecStart=\\S+", "ExecStart=/bin/true", unit))
    command = ["systemd-analyze", "verify", str(tmp_path / "weir-posts.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "weir-posts" in line]) == (0, [])


def test_the_manifests_of_kubernetes():
    documents = {d["kind"]: d for d in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    told = check(driver["args"][1:])
    assert told.spark()["spark.driver.host"] == documents["Service"]["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] > GRACE
    ports = {port["name"]: port["port"] for port in documents["Service"]["spec"]["ports"]}
    assert ports["page"] == told.options().watch["port"] == driver["ports"][0]["containerPort"]
    assert ports["driver"] == int(told.spark()["spark.driver.port"])
    probes = {
        name: driver[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert {*probes.values()} == {"/health/live", "/health/ready"}

    spec = yaml.safe_load((DEPLOY / "spark-application.yaml").read_text())["spec"]
    check(["run", *spec["arguments"]])
    assert spec["driver"]["terminationGracePeriodSeconds"] > GRACE
    assert spec["mainApplicationFile"] == "local:///app/main.py"


def test_the_image_and_the_schedulers():
    image = (DEPLOY / "Dockerfile").read_text()
    check(yaml.safe_load(re.search("CMD (.*)", image)[1])[1:])
    for name in re.search("COPY (.*) /app/", image)[1].split():
        assert (DEPLOY / name).exists()
    for name in ("airflow_dag.py", "dagster_job.py", "app.py", "main.py"):
        compile((DEPLOY / name).read_text(), name, "exec")
    run = re.search('RUN = "(.*)"', (DEPLOY / "airflow_dag.py").read_text())[1]
    words = shlex.split(run)
    check([*words[words.index("run") :], "--set", "trigger={availableNow = true}"])
