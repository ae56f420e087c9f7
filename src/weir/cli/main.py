"""The command ``weir``: ``demo``, ``inspect``, ``scale``, ``watch`` …, and what other distributions add.

A command is a module with ``arguments(parser)``, ``run(args, console)`` and ``show(result, console)``: the first
declares its options, the second does the work, reports progress on standard error and returns data that JSON can
hold, the third prints that data for people. ``--json`` prints the data instead. If the module has an
``exit_code(result)``, that decides the exit code, and ``failure_code(error)`` that of an error of ours.

Another distribution adds a command with an entry point of the group ``weir.commands`` that names such a module; the
module's ``HELP`` is the command's line in ``weir --help``. A module with ``SUBCOMMANDS`` (names to modules) is a group
of commands. A command that cannot be loaded fails alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.text import Text

import weir
from weir.errors import WeirError
from weir.extras import DISTRIBUTION

COMMANDS = {
    "demo": (
        "weir.cli.demo",
        "the main job: a stream of posts through two keyed operators, on this machine",
    ),
    "run": ("weir.cli.run", "run an application as a service, told by a configuration"),
    "inspect": ("weir.cli.inspect", "what a checkpoint holds, and whether it is sound"),
    "state": ("weir.cli.state", "what an operator keeps: all keys, one key, or those that meet a condition"),
    "state migrate": ("weir.cli.migrate", "turn saved state into what a changed application keeps"),
    "fork": (
        "weir.cli.fork",
        "a copy by reference, from which a changed program starts while the old one runs",
    ),
    "scale": ("weir.cli.scale", "add servers to a running query, or remove some"),
    "watch": ("weir.cli.watch", "a page that shows a query as it runs, from its checkpoint"),
    "compile": ("weir.cli.compile", "compile everything once, so that no query has to"),
    "advise": ("weir.cli.advise", "would locality-aware routing help with this data?"),
}
GROUP = "weir.commands"  # of the entry points by which other distributions add commands
INTERRUPTED = 130  # the exit code that shells report for a program ended by Ctrl-C


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; a :class:`WeirError` becomes one line, not a traceback."""
    argv = sys.argv[1:] if argv is None else argv
    module: Any = None
    try:
        args = _parser(argv).parse_args(argv)
        module = args.module
        return _run(args)
    except WeirError as error:
        line = Text.assemble(("weir: ", "bold red"), " ".join(str(error).split()))
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)
        return int(module.failure_code(error)) if hasattr(module, "failure_code") else 1
    except KeyboardInterrupt:
        Console(stderr=True).print("weir: stopped", highlight=False)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output (head, a pager) has ended; drop what Python still has in its buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    """Return the parser; it imports only the module of the command that ``argv`` names, as imports are slow."""
    parser = argparse.ArgumentParser(prog="weir", description="Steers keyed streams on Spark.")
    parser.add_argument("--version", action="version", version=f"weir {weir.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words = [word for word in argv if not word.startswith("-")]
    name, both = next(iter(words), None), " ".join(words[:2])
    for command, (path, summary) in COMMANDS.items():
        if " " in command:
            continue
        more = [
            f"weir {other}: {COMMANDS[other][1]}" for other in COMMANDS if other.startswith(f"{command} ")
        ]
        sub = commands.add_parser(command, help=summary, description=summary, epilog="; ".join(more) or None)
        if command == name and " " in both and both in COMMANDS:
            path, sub.description = COMMANDS[both]
            sub.add_argument("what", choices=words[1:2], metavar=words[1], help=sub.description)
        if command == name:
            _declare(sub, importlib.import_module(path))
    added = {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in COMMANDS}
    for command, entry in sorted(added.items()):
        if command == name:
            _declare_added(commands, entry)
        elif name is None:
            commands.add_parser(command, help=_summary(entry))
        else:
            commands.add_parser(command)
    if name in ("bench", "lab") and name not in added:
        raise WeirError(
            f"weir {name} comes with {DISTRIBUTION}-evaluation; in a clone of Weir: pip install . ./evaluation"
        )
    return parser


def _declare(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """Declare a command's options, or those of its subcommands."""
    if hasattr(module, "SUBCOMMANDS"):
        subcommands = parser.add_subparsers(dest=module.__name__, required=True, metavar="WHAT")
        for name, path in module.SUBCOMMANDS.items():
            sub = importlib.import_module(path)
            _declare(subcommands.add_parser(name, help=sub.HELP, description=sub.HELP), sub)
        return
    module.arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(module=module)


def _declare_added(commands: argparse._SubParsersAction[argparse.ArgumentParser], entry: EntryPoint) -> None:
    """Declare the command of another distribution; name that distribution if this fails."""
    try:
        module = entry.load()
        _declare(commands.add_parser(entry.name, help=module.HELP, description=module.HELP), module)
    except Exception as error:
        owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        raise WeirError(
            f"the command {entry.name!r} of {owner} cannot be loaded ({type(error).__name__}: {error}); "
            "install that distribution again, or remove it"
        ) from error


def _summary(entry: EntryPoint) -> str:
    """Return the line of another distribution's command in ``weir --help``."""
    try:
        return str(entry.load().HELP)
    except Exception as error:
        return f"cannot be loaded ({type(error).__name__})"


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
