"""The command line as a whole: commands, versions, errors, interruptions."""

from __future__ import annotations

import json
import subprocess
import sys
import types

import pytest

import weir
import weir.testing
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
        raise weir.errors.EngineError("cannot [bold]\ndo this")

    command(monkeypatch, fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "weir: cannot [bold] do this\n"

    def interrupted(args, console):
        raise KeyboardInterrupt

    command(monkeypatch, interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "weir: stopped\n"


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Another distribution with four commands, of which one works."""
    (tmp_path / "others-1.2.dist-info").mkdir()
    (tmp_path / "others-1.2.dist-info" / "METADATA").write_text("Name: others\nVersion: 1.2\n")
    (tmp_path / "others-1.2.dist-info" / "entry_points.txt").write_text(
        "[weir.commands]\ndemo = others_sound\nsound = others_sound\n"
        "gone = others_nowhere\nfails = others_fails\nbare = others_bare\n"
    )
    (tmp_path / "others_sound.py").write_text(
        "HELP = 'a sound command'\narguments = lambda parser: None\nrun = lambda args, console: {}\n"
        "show = lambda result, console: print('it runs')\n"
    )
    (tmp_path / "others_fails.py").write_text("raise RuntimeError('not\\ntoday')\n")
    (tmp_path / "others_bare.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)


def test_commands_that_cannot_be_loaded_fail_alone_and_in_one_line(added, capsys):
    for name, says in (
        ("gone", "ModuleNotFoundError: No module named 'others_nowhere'"),
        ("fails", "RuntimeError: not today"),
        ("bare", "AttributeError"),
    ):
        assert main([name, "--help"]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"weir: the command '{name}' of others 1.2 cannot be loaded ({says}")
        assert shown.err.endswith("install that distribution again, or remove it\n")
        assert shown.err.count("\n") == 1
    assert main(["sound"]) == 0
    assert capsys.readouterr().out == "it runs\n"
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "--help"])
    assert ended.value.code == 0
    assert "the folder or URI" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "a sound command" in shown
    assert shown.count("cannot be loaded") == 3
    assert "measurements that anyone can repeat" in shown


def test_nobody_takes_the_place_of_our_own_commands(added, capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert "--by-hash" in capsys.readouterr().out


def test_commands_of_the_evaluation(capsys):
    for arguments, says in ((["bench", "--help"], "reconfigure"), (["lab", "--help"], "status")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert says in capsys.readouterr().out


def test_commands_of_a_distribution_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(cli, "entry_points", lambda group: ())
    for name in ("bench", "lab"):
        assert main([name, "up"]) == 1
        assert f"weir {name} comes with weir-streams-evaluation" in capsys.readouterr().err


def test_a_query_that_has_stopped_is_not_waited_for(tmp_path, capsys):
    app = weir.source("place string").keyed("place", weir.Count(), name="places")
    weir.testing.run(app, [[{"place": "FR"}]], str(tmp_path), servers=2)
    assert main(["scale", str(tmp_path), "--add", "1", "--dry-run"]) == 0
    assert main(["scale", str(tmp_path), "--add", "1"]) == 1
    assert "no query runs there (finished)" in capsys.readouterr().err
    assert main(["scale", str(tmp_path), "--in", "1"]) == 1
    assert "--in is called --remove now" in capsys.readouterr().err


def test_only_the_command_that_is_named_is_imported_and_none_needs_spark_to_be_parsed():
    script = (
        "import sys\nfrom weir.cli.main import main\n"
        "for command in ('inspect', 'scale', 'advise', 'demo'):\n"
        "    try: main([command, '--help'])\n    except SystemExit: pass\n"
        "assert not any(m.split('.')[0] in ('pyspark', 'matplotlib', 'weir_evaluation') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
