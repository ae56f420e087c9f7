"""The command line as a whole: commands, versions, errors, interruptions."""

from __future__ import annotations

import json
import types

import pytest

import weir
from weir.cli import main as cli
from weir.cli.main import main


def test_commands_and_version(capsys):
    for arguments, says in (
        (["--help"], "inspect"),
        (["bench", "--help"], "engine"),
        (["--version"], weir.__version__),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert says in capsys.readouterr().out
    for arguments in ([], ["inspct"], ["bench"], ["inspect"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


def command(monkeypatch, run):
    """Puts a command in the place of ``weir demo``."""
    module = types.ModuleType("a_command")
    module.arguments = lambda parser: None
    module.run = run
    module.show = lambda result, console: console.print("shown", result["x"])
    monkeypatch.setattr(cli.importlib, "import_module", lambda path: module)
    return module


def test_results_are_shown_or_printed_as_json_and_may_set_the_exit_code(monkeypatch, capsys):
    module = command(monkeypatch, lambda args, console: {"x": 7})
    assert main(["demo"]) == 0
    assert "shown 7" in capsys.readouterr().out
    assert main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"x": 7}
    module.exit_code = lambda result: 3
    assert main(["demo"]) == 3


def test_our_errors_are_one_line_and_ctrl_c_is_quiet(monkeypatch, capsys):
    def fail(args, console):
        raise weir.EngineError("cannot [bold]\ndo this")

    command(monkeypatch, fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "weir: cannot [bold] do this\n"

    def interrupted(args, console):
        raise KeyboardInterrupt

    command(monkeypatch, interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "weir: stopped\n"
