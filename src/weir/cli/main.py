"""The command line: ``weir demo``, ``weir inspect``, ``weir scale``, ``weir advise``, and what others add.

A command is a module with ``arguments(parser)``, ``run(args, console)`` and ``show(result, console)``: the first
declares its options, the second does the work and returns JSON-able data, reporting progress on standard error,
the third prints that data for people. ``--json`` prints the data instead. A module may have an
``exit_code(result)`` as well.

Another distribution adds a command by an entry point of the group ``weir.commands`` that names such a module; it
has its one-line ``HELP`` as well. A module with ``SUBCOMMANDS`` (names to modules) is a group of commands.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from importlib.metadata import entry_points
from types import ModuleType

from rich.console import Console
from rich.text import Text

import weir
from weir.errors import WeirError

COMMANDS = {
    "demo": ("weir.cli.demo", "the main job: a stream of posts through two keyed operators, on this machine"),
    "inspect": ("weir.cli.inspect", "what a checkpoint holds, and whether it is sound"),
    "scale": ("weir.cli.scale", "add servers to a running query, or let some go"),
    "advise": ("weir.cli.advise", "would locality-aware routing help with this data?"),
}
GROUP = "weir.commands"  # entry points by which other distributions add commands
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
        sub = commands.add_parser(name, help=summary, description=summary)
        if wanted == name:  # the others' imports would only make this one slow
            _declare(sub, importlib.import_module(path))
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        module = entry.load()
        sub = commands.add_parser(entry.name, help=module.HELP, description=module.HELP)
        if wanted == entry.name:
            _declare(sub, module)
    return parser


def _declare(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """Declare a command's options, or those of its subcommands."""
    if hasattr(module, "SUBCOMMANDS"):
        kinds = parser.add_subparsers(dest=module.__name__, required=True, metavar="WHAT")
        for name, path in module.SUBCOMMANDS.items():
            one = importlib.import_module(path)
            _declare(kinds.add_parser(name, help=one.HELP, description=one.HELP), one)
        return
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
