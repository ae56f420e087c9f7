"""What the lab needs of a machine, and what to say where that is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from weir_evaluation.lab.errors import LabError

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mount": "util-linux"}

TBF = ["tbf", "rate", "1mbit", "burst", "64kb", "latency", "50ms"]


def missing() -> list[str]:
    """What keeps this machine from hosting a lab; nothing if it can.

    The last word has the kernel: a namespace with a shaped link is made and deleted again.
    """
    if not sys.platform.startswith("linux"):
        return ["Linux (the lab is made of network namespaces)"]
    lacks = [f"{tool} (package {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if java() is None:
        lacks.append("java (a Java 17+ runtime, in PATH or JAVA_HOME)")
    if os.geteuid() != 0:
        lacks.append("root (network namespaces are made by root only)")
    return lacks or _kernel()


def java() -> str | None:
    """The Java that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    return shutil.which("java")


def _kernel() -> list[str]:
    name = f"weir-probe-{os.getpid()}"
    trials = [
        (["ip", "netns", "add", name], "the right to make network namespaces (CAP_SYS_ADMIN)"),
        (
            ["ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two"],
            "veth links (CAP_NET_ADMIN and the kernel module veth)",
        ),
        (["ip", "-n", name, "link", "add", "three", "type", "bridge"], "bridges (the kernel module bridge)"),
        (
            ["tc", "-n", name, "qdisc", "add", "dev", "one", "root", *TBF],
            "shaped links (the kernel module sch_tbf)",
        ),
    ]
    try:
        for command, what in trials:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return [f"{what}: {done.stderr.strip() or 'refused'}"]
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return []


def check(hosts: int = 3) -> None:
    """Raises unless this machine can host a lab, and says what to use instead."""
    lacks = missing()
    if lacks:
        raise LabError(
            f"this machine cannot host a lab; missing: {'; '.join(lacks)}. Without a network to measure, "
            f"WEIR_MASTER='local-cluster[{hosts},1,1024]' before a weir command (or .master(\"local-cluster[{hosts},"
            '1,1024]") in a program) runs as many executors on this machine alone.'
        )
