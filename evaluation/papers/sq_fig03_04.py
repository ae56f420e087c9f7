"""Squirrel, Figs. 3 and 4: what a word count pays for the distance between its two operators, measured here.

Process: a pointer is passed. Node: another process, over the loopback device. Rack and any: other hosts, which are
network namespaces with links shaped to the bandwidths of the paper's Table 1 (100 MB/s within a rack, 10 MB/s
beyond). The kernel here has no way to delay packets, so latencies beyond the host are those of its switches, below
the paper's 200 and 350 µs. Rack and any need root and iproute2; without them they are left out, and that is said.

Times are those of batches of ten tuples, sent one by one; tuples/s those of larger batches at full rate. The paper
sends tuple by tuple.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from claims import Claim, claim
from lar_common import OUT, console, figure, report
from sq_channel import within_a_process
from weir_evaluation.lab.needs import missing
from weir_evaluation.lab.network import LabNetwork, free_network

CHANNEL = Path(__file__).with_name("sq_channel.py")
NAMES = ["process", "node", "rack", "any"]
# as far as the text says it: within a process, and times over or throughput below that
PAPER: dict[str, dict[str, float]] = {
    "Fig. 3a ms": {"process": 0.47, "node": 3.5, "any": 8.8},
    "Fig. 3b tuples/s": {"process": 33_000, "rack": 2.5, "any": 3.6},
    "Fig. 4a ms": {"process": 0.032, "node": 5.8, "any": 19.5},
    "Fig. 4b tuples/s": {"process": 180_000, "rack": 2.3, "any": 3.8},
}
NEAR = "hosts of the lab are namespaces of one machine: links within a rack have a bandwidth, but no delay"
MEASURED = ["processing_ms", "rows_per_s", "transmission_ms", "channel_rows_per_s"]


@contextmanager
def hosts(rack: str, beyond: str) -> Iterator[tuple[LabNetwork, dict[str, str]]]:
    """Two hosts in one rack and one in another, with their addresses."""
    net = LabNetwork(f"sq{uuid.uuid4().hex[:4]}")
    addresses = [f"{a}" for _, a in zip(range(6), free_network().hosts(), strict=False)]
    try:
        net.lay(f"{addresses[0]}/24", f"{addresses[1]}/24", 2, beyond)
        found = {}
        for host, address, where in zip(("h1", "h2", "h3"), addresses[2:], (1, 1, 2), strict=False):
            net.plug_in(host, f"{address}/24", where, rack)
            found[host] = address
        yield net, found
    finally:
        net.clear()


def between(args: argparse.Namespace, address: str, here: list[str], there: list[str]) -> dict[str, Any]:
    """Both operators as processes, each where its prefix puts it."""
    python = [sys.executable, str(CHANNEL)]
    receiver = subprocess.Popen([*there, *python, "receive", address], stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        terms = [address, port, str(args.seconds), str(args.rows), str(args.bytes)]
        done = subprocess.run([*here, *python, "send", *terms], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return dict(json.loads(done.stdout))
    finally:
        receiver.kill()
        receiver.wait()


def _paper(what: str, paper: dict[str, float], name: str) -> float | None:
    """The paper's value at a distance, if it says one."""
    if name == "process" or name not in paper:
        return paper.get(name)
    return paper["process"] * paper[name] if what.endswith("ms") else paper["process"] / paper[name]


def _cell(what: str, value: float | None, base: float) -> str:
    if value is None:
        return "–"
    text, sign = (f"{value:.3g}", "×") if what.endswith("ms") else (f"{value:,.0f}", "÷")
    return f"{text} ({sign} {_slower(what, value, base):.3g})"


def _slower(what: str, value: float, base: float) -> float:
    """How many times slower than within a process."""
    return value / base if what.endswith("ms") else base / value


def best(measure: Callable[[], dict[str, Any]], times: int) -> dict[str, Any]:
    """The best of several runs: what else the machine does can only make things slower."""
    runs = [measure() for _ in range(times)]
    return {what: (min if what.endswith("ms") else max)(r[what] for r in runs) for what in MEASURED}


def main() -> None:
    """Measures each distance, prints paper's numbers beside ours, and draws four panels."""
    parser = argparse.ArgumentParser(description="Figs. 3 and 4: cost by distance")
    parser.add_argument("--rows", type=int, default=100, help="tuples per batch on the channel")
    parser.add_argument("--bytes", type=int, default=1000, help="padding of a tuple")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each run at full rate")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many runs counts")
    parser.add_argument("--rack", default="800mbit", help="links within a rack (Table 1: 100 MB/s)")
    parser.add_argument(
        "--any", dest="beyond", default="80mbit", help="links between racks (Table 1: 10 MB/s)"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with console.status("process"):
        found["process"] = best(lambda: within_a_process(args.seconds, args.rows, args.bytes), args.repeats)
    with console.status("node"):
        found["node"] = best(lambda: between(args, "127.0.0.1", [], []), args.repeats)
    lacks = [m for m in missing() if not m.startswith("java")]
    if lacks:
        console.print(f"rack and any are left out: this machine lacks {'; '.join(lacks)}", style="yellow")
    else:
        with hosts(args.rack, args.beyond) as (net, address):
            inside = {h: ["ip", "netns", "exec", net.namespace(h)] for h in address}
            for name, other in (("rack", "h2"), ("any", "h3")):
                with console.status(name):
                    way = partial(between, args, address[other], inside["h1"], inside[other])
                    found[name] = best(way, args.repeats)
    names = [n for n in NAMES if n in found]
    rows = []
    for name in names:
        cells = [name]
        for what, paper in zip(MEASURED, PAPER.values(), strict=True):
            base = found["process"][what]
            cells += [
                _cell(what, found[name][what], base),
                _cell(what, _paper(what, paper, name), paper["process"]),
            ]
        rows.append(cells)
    made, axes = figure(6, 2.2, 4)
    for axis, what, (title, paper) in zip(axes, MEASURED, PAPER.items(), strict=True):
        at = range(len(names))
        axis.bar(
            [a - 0.2 for a in at], [found[n][what] for n in names], color="#2471a3", width=0.4, label="here"
        )
        theirs = [_paper(what, paper, n) or float("nan") for n in names]
        axis.bar([a + 0.2 for a in at], theirs, color="#e67e22", width=0.4, label="paper, where it says")
        axis.set_xticks(list(at), names)
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_yscale("log")
    axes[0].legend(frameon=False, fontsize=7)
    report(
        "sq_fig03_04",
        args.out,
        made,
        f"Figs. 3 and 4: batches of {args.rows} tuples of {args.bytes} bytes (ours) against the paper",
        ["distance", *[column for figure_of in PAPER for column in (figure_of, "paper")]],
        rows,
        {"rows": args.rows, "bytes": args.bytes, "rack": args.rack, "any": args.beyond, "measured": found},
        claims(found),
    )


def claims(found: dict[str, dict[str, Any]]) -> list[Claim]:
    """What the paper says of distance: the farther, the slower, and by how much."""
    out = []
    names = [n for n in NAMES if n in found]
    for what, (title, paper) in zip(MEASURED, PAPER.items(), strict=True):
        times = {n: _slower(what, found[n][what], found["process"][what]) for n in names}
        measured = (
            ", ".join(f"{n} {times[n]:,.3g}" for n in names[1:]) + " times slower than within a process"
        )
        label = title.rsplit(" ", 1)[0]
        steps = all(b > a for a, b in pairwise(times.values()))
        out.append(claim(f"{label}: each step away is slower", steps, measured, NEAR))
        said = {n: factor for n, factor in paper.items() if n in times and n != "process"}
        out.append(
            claim(
                f"{label}: {', '.join(f'{n} {factor} times' for n, factor in said.items())} (within a fifth)",
                all(0.8 <= times[n] / factor <= 1.25 for n, factor in said.items()),
                ", ".join(f"{n} {times[n]:,.3g}" for n in said),
                "within a process a reference is handed over here, where Flink copies rows; so give Weighted a profile "
                "of your own, or let it measure one",
            )
        )
    return out


if __name__ == "__main__":
    main()
