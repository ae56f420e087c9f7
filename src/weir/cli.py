"""The command line: ``weir demo``, ``weir inspect``, ``weir bench``.

Each command is a module with ``arguments(parser)``, ``run(args, console)`` and ``show(result, console)``: the
first declares its options, the second does the work and returns JSON-able data, telling of its progress on
standard error, the third shows that data to people. ``--json`` prints the data instead. A module may have an
``exit_code(result)`` as well.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from types import ModuleType

from rich.console import Console
from rich.text import Text

import weir
from weir.errors import WeirError

COMMANDS = {
    "demo": ("weir.demo", "the main job: a stream of posts through two keyed operators, on this machine"),
    "inspect": ("weir.inspection", "what a checkpoint holds, and whether it is sound"),
    "scale": ("weir.scaling", "adds servers to a running query, or lets some go"),
    "lab": ("weir.lab.command", "a cluster of several hosts on this machine: measure its links, break them"),
    "advise": ("weir.locality.advise", "would locality-aware routing help with this data?"),
}
BENCHES = [
    "engine",
    "peers",
    "groupings",
    "locality",
    "partition",
    "reconfigure",
    "source",
    "consistent",
    "squirrel",
    "stela",
    "lab",
]
INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


def main(argv: list[str] | None = None) -> int:
    """Entry point; errors that we raise on purpose become one line, not a traceback."""
    args = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    try:
        return _run(args)
    except WeirError as error:
        line = Text.assemble(("weir: ", "bold red"), " ".join(str(error).split()))
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("weir: stopped", highlight=False)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output (head, a pager) has gone; what Python still holds back has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir", description="Steers keyed streams on Spark.")
    parser.add_argument("--version", action="version", version=f"weir {weir.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((a for a in argv if not a.startswith("-")), None)
    for name, (path, summary) in COMMANDS.items():
        if importlib.util.find_spec(path) is None:
            continue
        sub = commands.add_parser(name, help=summary, description=summary)
        if wanted == name:  # the others' imports would only make this one slow
            _declare(sub, importlib.import_module(path))
    bench = commands.add_parser("bench", help="measurements that anyone can repeat")
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    for name in BENCHES if wanted == "bench" else []:
        if importlib.util.find_spec(f"weir.bench.{name}") is not None:
            module = importlib.import_module(f"weir.bench.{name}")
            _declare(kinds.add_parser(name, help=module.HELP, description=module.HELP), module)
    return parser


def _declare(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    module.arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(module=module)


def _run(args: argparse.Namespace) -> int:
    module = args.module
    result = module.run(args, Console(stderr=True))
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        module.show(result, Console())
    sys.stdout.flush()
    return int(module.exit_code(result)) if hasattr(module, "exit_code") else 0


if __name__ == "__main__":
    sys.exit(main())
