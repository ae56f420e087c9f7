"""The table of all figures: what counts as changed, and whose claims are counted where."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "evaluation" / "papers"


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(PAPERS))
    return PAPERS


def test_only_what_may_change_a_result_makes_it_old(papers, tmp_path, monkeypatch) -> None:
    import fingerprint

    monkeypatch.setattr(fingerprint, "ROOTS", (tmp_path,))
    script, module = tmp_path / "fig.py", tmp_path / "room" / "part.py"
    module.parent.mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    script.write_text("from room.part import x\n")
    module.write_text('"""What it is."""\nx = 1\n')
    first = fingerprint.fingerprint(script)
    module.write_text('"""Said otherwise."""\n\nx  =  1  # one\n')
    assert fingerprint.fingerprint(script) == first
    module.write_text("x = 2\n")
    assert fingerprint.fingerprint(script) != first


def test_every_script_of_a_figure_is_in_the_table_and_exists(papers) -> None:
    from figures import FIGURES

    named = {f.script for f in FIGURES if f.script}
    assert named == {p.stem for pattern in ("*_fig*.py", "followup_*.py") for p in papers.glob(pattern)} | {
        "sq_batches"
    }


def test_claims_of_our_own_are_counted_apart_and_failures_explained(papers, tmp_path, monkeypatch) -> None:
    import all as every
    from figures import Figure

    shutil.copy(papers / "README.md", tmp_path / "README.md")
    monkeypatch.setattr(every, "README", tmp_path / "README.md")
    figure = Figure("CG", "Fig. 0", "1 × 2", "cg_fig05", key="fast", needs="words")
    claims = [
        {"claim": "fast", "by": "paper", "holds": True, "measured": "3 ×"},
        {"claim": "small", "by": "paper", "holds": False, "measured": "4", "why": "too few rows"},
        {"claim": "(ours) better", "by": "ours", "holds": True, "measured": "5"},
    ]
    args = argparse.Namespace(words=None, data=None, messages=None, rows=None)
    made = every.record(figure, {"claims": claims, "fingerprint": "old", "messages": 7}, args)
    assert (made["holds"], made["ours"], made["spark"], made["current"]) == ("1 of 2", "1 of 1", None, False)
    never = every.record(Figure("CG", "Fig. 14", "x", "", spark_command="weir bench x"), None, args)
    every.write(every.table([made, never]))
    page = (tmp_path / "README.md").read_text()
    assert "1 of 2 claims of the papers hold" in page
    assert "small. Here: 4. *too few rows.*" in page
    assert "never run: `weir bench x`" in page
    every.write(every.table([never]))
    assert "too few rows" not in (tmp_path / "README.md").read_text(), "the table replaces the one before"


def test_results_of_the_code_there_is_are_not_made_again(papers, tmp_path) -> None:
    import all as every
    from figures import Figure
    from fingerprint import fingerprint

    figure = Figure("CG", "Fig. 5", "x", "cg_fig05", needs="words")
    now = fingerprint(papers / "cg_fig05.py")
    args = argparse.Namespace(words=None, out=tmp_path, no_run=False, again=False, messages=None, rows=None)
    kept = {"cg_fig05": {"fingerprint": now, "claims": []}}
    assert every.bring(figure, args, kept) == kept["cg_fig05"]
    assert every.bring(figure, args, {}) is None, "without its data there is nothing to run"
    (tmp_path / "cg_fig05.json").write_text(json.dumps({"fingerprint": now, "claims": [], "rows": [1]}))
    assert every.bring(figure, args, {}) == {"fingerprint": now, "claims": []}


def test_the_documentation_counts_as_the_table_does(papers) -> None:
    held = re.search(r"(\d+ of \d+) claims of the papers hold", (papers / "README.md").read_text())
    assert held is not None
    assert f"{held[1]} claims of the papers hold" in (papers.parents[1] / "docs" / "papers.md").read_text()
