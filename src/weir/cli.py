"""The command line: ``weir demo``, ``weir inspect``, ``weir bench``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any

from rich.console import Console

from weir.errors import WeirError

BENCHES = ["engine", "groupings", "locality", "partition"]


def main(argv: list[str] | None = None) -> int:
    """Entry point; errors that we raise on purpose become one line, not a traceback."""
    parser = argparse.ArgumentParser(prog="weir", description="Steers keyed streams on Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    bench = commands.add_parser("bench", help="measurements that anyone can repeat")
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    for name in BENCHES:
        try:
            module = importlib.import_module(f"weir.bench.{name}")
        except ModuleNotFoundError:
            continue
        sub = kinds.add_parser(name, help=module.HELP)
        module.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.set_defaults(module=module)
    args = parser.parse_args(argv)
    try:
        return _bench(args)
    except WeirError as error:
        Console(stderr=True).print(f"[bold red]weir:[/] {error}", highlight=False)
        return 1


def _bench(args: argparse.Namespace) -> int:
    result: Any = args.module.run(args, Console(stderr=True))
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        args.module.show(result, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
