"""``weir lab``: a cluster of several hosts on this machine, from the command line."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from weir_evaluation.lab import record as records
from weir_evaluation.lab.cluster import LabCluster
from weir_evaluation.lab.errors import LabError

HELP = "a cluster of several hosts on this machine: measure its links, break them"
STYLES = {"up": "green", "slow": "yellow", "cut": "red", "dead": "red", "lost": "red"}


def arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        sub = kinds.add_parser(name, help=text, description=text)
        sub.add_argument("--lab", default=None, help="which lab, if there are several")
        if name != "run":
            sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
        return sub

    up = add("up", "start a lab")
    up.add_argument("--hosts", type=int, default=3)
    up.add_argument("--bandwidth", default="1gbit", help="of each host's link, each way (default 1gbit)")
    up.add_argument("--racks", type=int, default=1, help="hosts are dealt out to so many racks")
    up.add_argument("--uplink", default=None, help="bandwidth between racks (default: that of a host)")
    up.add_argument("--cores", type=int, default=1, help="cores that each host offers (default 1)")
    up.add_argument("--memory", default="1g", help="memory that each host offers (default 1g)")
    run = add("run", "run a command on the lab: weir lab run -- python script.py")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    add("status", "every host: address, state, bytes, bandwidth")
    down = add("down", "end the lab, also what a crash left of it")
    down.add_argument("--all", action="store_true", help="every lab on this machine")
    for name, text in (
        ("kill", "a host dies: all its processes are killed"),
        ("cut", "a host's link goes down"),
        ("slow", "a host's link gets another bandwidth"),
        ("heal", "a host is as it was: link, bandwidth, worker"),
    ):
        sub = add(name, text)
        sub.add_argument("host", help="h1, h2, …")
        if name == "slow":
            sub.add_argument("--to", required=True, help="the new bandwidth, for example 10mbit")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.action == "up":
        return _up(args, console)
    if args.action == "down":
        return _down(args)
    lab = LabCluster.attach(args.lab)
    if args.action == "run":
        command = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
        if not command:
            raise LabError("nothing to run; say what, after two dashes: weir lab run -- python script.py")
        return {"exit_code": lab.run(command)}
    if args.action == "slow":
        lab.slow(args.host, args.to)
    elif args.action != "status":
        with console.status(f"{args.action} {args.host}"):
            getattr(lab, args.action)(args.host)
    return lab.status()


def _up(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    lab = LabCluster(
        args.hosts,
        args.bandwidth,
        racks=args.racks,
        uplink=args.uplink,
        cores=args.cores,
        memory=args.memory,
        keep=True,
    )
    with console.status("starting the lab") as status:
        lab.up(status.update)
    return {**lab.status(), "new": True}


def _down(args: argparse.Namespace) -> dict[str, Any]:
    found = records.labs()
    if args.lab is not None:
        if args.lab not in found:
            raise LabError(f"there is no lab {args.lab!r} here; known: {', '.join(found) or 'none'}")
        found = {args.lab: found[args.lab]}
    elif not args.all:
        # what nobody owns any more can go without being named
        gone = {i: r for i, r in found.items() if r is None or r.orphan}
        rest = {i: r for i, r in found.items() if i not in gone}
        if len(rest) > 1:
            raise LabError(
                f"there are several labs here ({', '.join(rest)}); say which (--lab {next(iter(rest))}), or --all"
            )
        found = gone | rest
    for lab in found:
        records.remove(lab)
    return {"removed": list(found)}


def show(result: dict[str, Any], console: Console) -> None:
    if "removed" in result:
        gone = ", ".join(result["removed"])
        console.print(f"gone: {gone}" if gone else "there was no lab to end")
        return
    if "exit_code" in result:
        return
    racks = f", {result['racks']} racks joined at {result['uplink']}" if result["racks"] > 1 else ""
    owner = ", left behind by a program that is gone" if result["orphan"] else ""
    table = Table(title=f"lab {result['lab']}: {result['master']}{racks}{owner}")
    for column in ("host", "address", "rack", "state", "MB in", "MB out", "bandwidth"):
        table.add_column(column, justify="left" if column in ("host", "address", "state") else "right")
    for host in result["hosts"]:
        style = STYLES[host["state"]]
        table.add_row(
            host["name"],
            host["address"],
            str(host["rack"]),
            f"[{style}]{host['state']}[/]",
            f"{host['bytes_in'] / 1e6:,.1f}",
            f"{host['bytes_out'] / 1e6:,.1f}",
            host["bandwidth"],
        )
    for name, (received, sent) in result["traffic"].items():
        if name == "driver" or name.startswith("rack"):
            table.add_row(name, "", "", "", f"{received / 1e6:,.1f}", f"{sent / 1e6:,.1f}", "")
    console.print(table)
    if result.get("new"):
        console.print("weir lab run -- python script.py    runs a PySpark program on it", style="dim")
        console.print("weir lab down                       ends it", style="dim")


def exit_code(result: dict[str, Any]) -> int:
    return int(result.get("exit_code", 0))
