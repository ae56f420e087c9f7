"""Namespaces, bridges and shaped links, by ``ip`` and ``tc``.

A lab's network lives in namespaces whose names begin with the lab's own prefix. The switches are in a namespace of
their own, so that of all this the machine sees one interface, with which the driver is plugged in. Deleting the
namespaces deletes everything.

::

    driver ─ weir-ab12 ═╗
                      core ═ (uplink) ═ rack 1 ═ h1, h2, h3
    master ─────────────╝ ╚═ (uplink) ═ rack 2 ═ h4, h5, h6

With one rack, the hosts are plugged into the core.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import subprocess

from weir_evaluation.lab.errors import LabError

PREFIX = "weir-"
CORE = "core"
# set aside for measuring networks (RFC 2544): nobody's home, nobody's office
RANGE = ipaddress.ip_network("198.18.0.0/15")
_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits(rate: str) -> int:
    """A bandwidth as bits per second.

    >>> bits("100mbit"), bits("1.5gbit")
    (100000000, 1500000000)
    >>> bits("fast")
    Traceback (most recent call last):
    weir_evaluation.lab.errors.LabError: 'fast' is no bandwidth; write it as tc does, for example 20mbit or 1gbit
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)", rate.strip().lower())
    value = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 8_000 <= value <= 400 * 10**9:
        raise LabError(f"{rate!r} is no bandwidth; write it as tc does, for example 20mbit or 1gbit")
    return value


def call(*command: str, check: bool = True) -> str:
    """Runs a command; what it says when it fails becomes the error."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and check:
        raise LabError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def free_network() -> ipaddress.IPv4Network:
    """A network of 254 addresses that nothing on this machine uses or routes to."""
    taken = []
    for link in json.loads(call("ip", "-j", "-4", "addr") or "[]"):
        for address in link.get("addr_info", ()):
            taken.append(ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False))
    for route in json.loads(call("ip", "-j", "-4", "route", "show", "table", "all") or "[]"):
        with contextlib.suppress(ValueError):  # "default" leads everywhere and takes nothing
            taken.append(ipaddress.ip_network(route["dst"], strict=False))
    taken = [t for t in taken if t.prefixlen > 0]
    for candidate in RANGE.subnets(new_prefix=24):
        if not any(candidate.overlaps(t) for t in taken):
            return candidate  # type: ignore[return-value]
    raise LabError(f"all of {RANGE} is in use or routed on this machine; a lab needs 254 addresses there")


def namespaces(prefix: str = PREFIX) -> list[str]:
    """The namespaces whose names begin so."""
    lines = call("ip", "netns", "list", check=False).splitlines()
    return [line.split()[0] for line in lines if line.startswith(prefix)]


def links(prefix: str = PREFIX) -> list[str]:
    """The machine's own interfaces whose names begin so."""
    found = json.loads(call("ip", "-j", "link", check=False) or "[]")
    return [link["ifname"] for link in found if link["ifname"].startswith(prefix)]


def pids(namespace: str) -> list[int]:
    """Every process inside a namespace, whoever started it."""
    return [int(p) for p in call("ip", "netns", "pids", namespace, check=False).split()]


class LabNetwork:
    """The network of one lab."""

    def __init__(self, lab: str) -> None:
        self.lab = lab
        self.switch = f"{PREFIX}{lab}-switch"
        self.plug = f"{PREFIX}{lab}"

    def namespace(self, host: str) -> str:
        return f"{PREFIX}{self.lab}-{host}"

    def lay(self, driver: str, master: str, racks: int, uplink: str) -> None:
        """The switches, the driver's plug and the master's address."""
        self._add(self.switch)
        inside = ["ip", "-n", self.switch]
        call(*inside, "link", "add", CORE, "type", "bridge")
        call(*inside, "addr", "add", master, "dev", CORE)
        call(*inside, "link", "set", CORE, "up")
        call("ip", "link", "add", self.plug, "type", "veth", "peer", "name", "driver", "netns", self.switch)
        call(*inside, "link", "set", "driver", "master", CORE, "up")
        call("ip", "addr", "add", driver, "dev", self.plug)
        call("ip", "link", "set", self.plug, "up")
        for rack in range(1, racks + 1) if racks > 1 else ():
            call(*inside, "link", "add", f"rack{rack}", "type", "bridge")
            call(*inside, "link", "set", f"rack{rack}", "up")
            up, down = f"up{rack}", f"down{rack}"
            call(*inside, "link", "add", up, "type", "veth", "peer", "name", down)
            call(*inside, "link", "set", up, "master", f"rack{rack}", "up")
            call(*inside, "link", "set", down, "master", CORE, "up")
            self._shape(self.switch, up, uplink)
            self._shape(self.switch, down, uplink)

    def plug_in(self, host: str, address: str, rack: int, bandwidth: str) -> None:
        """A host: its namespace, its link, its bandwidth."""
        namespace = self.namespace(host)
        self._add(namespace)
        far = ["peer", "name", host, "netns", self.switch]
        call("ip", "-n", namespace, "link", "add", "eth0", "type", "veth", *far)
        bridge = f"rack{rack}" if rack else CORE
        call("ip", "-n", self.switch, "link", "set", host, "master", bridge, "up")
        call("ip", "-n", namespace, "addr", "add", address, "dev", "eth0")
        call("ip", "-n", namespace, "link", "set", "eth0", "up")
        self.shape(host, bandwidth)

    def shape(self, host: str, bandwidth: str) -> None:
        """The bandwidth of a host's link, in each direction."""
        self._shape(self.namespace(host), "eth0", bandwidth)
        self._shape(self.switch, host, bandwidth)

    def connect(self, host: str, on: bool) -> None:
        """Pulls the plug of a host, or puts it back."""
        call("ip", "-n", self.switch, "link", "set", host, "up" if on else "down")

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes to and from whoever is behind each port of the switches, since it was plugged in.

        A port's name is the host's; ``driver``; or ``down1`` for the uplink of rack 1. Counted by the kernel: bytes
        that got through, with their headers.
        """
        found = json.loads(call("ip", "-n", self.switch, "-s", "-j", "link"))
        return {
            link["ifname"]: (int(link["stats64"]["tx"]["bytes"]), int(link["stats64"]["rx"]["bytes"]))
            for link in found
            if link["ifname"] != "lo"
        }

    def down(self) -> set[str]:
        """The ports that have been switched off."""
        found = json.loads(call("ip", "-n", self.switch, "-j", "link"))
        return {link["ifname"] for link in found if "UP" not in link["flags"]}

    def clear(self) -> None:
        """Deletes every namespace and interface of this lab."""
        for name in namespaces(f"{PREFIX}{self.lab}-"):
            call("ip", "netns", "del", name, check=False)
        if self.plug in links(self.plug):
            call("ip", "link", "del", self.plug, check=False)

    def _add(self, namespace: str) -> None:
        call("ip", "netns", "add", namespace)
        # neighbours' chatter would only blur the counters
        quiet = "for which in all default; do echo 1 > /proc/sys/net/ipv6/conf/$which/disable_ipv6; done"
        call("ip", "netns", "exec", namespace, "sh", "-c", quiet, check=False)
        call("ip", "-n", namespace, "link", "set", "lo", "up")

    def _shape(self, namespace: str, device: str, bandwidth: str) -> None:
        rate = bits(bandwidth)
        burst = max(65_536, rate // 8 // 250)  # four milliseconds; less than one large packet would stall
        # a queue that a few connections can share without starving each other
        queue = burst + max(131_072, rate // 8 // 5 if rate < 100 * 10**6 else rate // 8 // 20)
        call(
            *("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{rate}bit", "burst", f"{burst}b", "limit", f"{queue}b"),
        )
