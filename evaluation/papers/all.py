"""All figures of the four papers in one table: what they say, what is simulated, what Spark has shown, what holds.

Runs the scripts whose results are old: made by other code than there is now (see ``fingerprint.py``). Figures that need
hosts of the lab are never run from here. Results are kept in ``results.json``, the table in ``README.md``, both beside
this file.

    python evaluation/papers/all.py [--words FILE] [--data FILE] [--messages N] [--only SCRIPT] [--no-run] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from claims import once
from figures import FIGURES, FOLLOW_UPS, Figure
from fingerprint import fingerprint

HERE = Path(__file__).parent
RESULTS, README = HERE / "results.json", HERE / "README.md"
BEGIN, END = "<!-- made by all.py: begin -->", "<!-- made by all.py: end -->"
console = Console(stderr=True)


def command(figure: Figure, args: argparse.Namespace, real: bool) -> list[str]:
    """The script with its arguments; as it is written down, files have no paths."""
    out = [f"evaluation/papers/{figure.script}.py"]
    if figure.needs:
        given = getattr(args, figure.needs)
        out += [f"--{figure.needs}", str(given) if real and given else "FILE"]
    if args.messages and figure.script.startswith("cg_"):
        out += ["--messages", str(args.messages)]
    if args.rows and figure.script.startswith("sq_fig") and not figure.lab:
        out += ["--rows", str(args.rows)]
    return out


def bring(figure: Figure, args: argparse.Namespace, kept: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a figure: kept, lying in the folder of outputs, or made now; None if there is none."""
    now = fingerprint(HERE / f"{figure.script}.py")
    old = kept.get(figure.script)
    if old is not None and old["fingerprint"] == now and not args.again:
        return dict(old)
    lying = args.out / f"{figure.script}.json"
    fresh = _read(lying, None if figure.lab else now)
    runs = not figure.lab and (not figure.needs or getattr(args, figure.needs) is not None)
    if (fresh is None or args.again) and runs and not args.no_run:
        console.print(f"{figure.script} …", highlight=False)
        done = subprocess.run(
            [sys.executable, *command(figure, args, real=True), "--out", str(args.out)],
            cwd=HERE.parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            console.print(
                f"{figure.script} failed: {done.stderr.strip().splitlines()[-1]}",
                style="red",
                highlight=False,
            )
        fresh = _read(lying, now)
        if fresh is not None:
            fresh["command"] = " ".join(command(figure, args, real=False))
    if fresh is None:
        return old
    if not figure.script.startswith("lar_"):
        fresh.pop("rows", None)  # the claims say what counts, and the scripts write the rest again
    else:
        fresh = {k: v for k, v in fresh.items() if len(json.dumps(v)) < 2000}
    return fresh


def _read(path: Path, made_by: str | None) -> dict[str, Any] | None:
    """What lies in the folder of outputs; ``made_by`` None: by whatever code."""
    if not path.exists():
        return None
    data = dict(json.loads(path.read_text()))
    return data if made_by in (None, data.get("fingerprint")) else None


def record(figure: Figure, result: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    found = [] if result is None else result.get("claims", [])
    claims = once(found if isinstance(found, list) else [])
    theirs, ours = ([c for c in claims if c["by"] == by] for by in ("paper", "ours"))
    shown = [c["measured"] for c in theirs or ours if figure.key in c["claim"]]
    failed = [c for c in theirs if not c["holds"]]
    made = argparse.Namespace(**vars(args))
    made.messages = None if result is None else result.get("messages")
    run = " ".join(command(figure, made, real=False)) if figure.script else figure.spark_command
    run = run if result is None else result.get("command", run)
    if result is not None and result.get("quick"):
        run += " --quick"
    return {
        "paper": figure.paper,
        "figure": figure.number,
        "paper_says": figure.says,
        "simulated": None if result is None or figure.lab else "; ".join(shown) or result.get("title"),
        "spark": "; ".join(shown) if figure.lab and shown else figure.spark,
        "command": run,
        "spark_command": figure.spark_command or (run if figure.lab else ""),
        "holds": None if not theirs else f"{sum(c['holds'] for c in theirs)} of {len(theirs)}",
        "ours": None if not ours else f"{sum(c['holds'] for c in ours)} of {len(ours)}",
        "why_not": [
            {"claim": c["claim"], "measured": c["measured"], "why": c.get("why", "")} for c in failed
        ],
        "messages": None if result is None else result.get("messages"),
        "quick": None if result is None else result.get("quick"),
        "seconds": None if result is None else result.get("seconds"),
        "current": None
        if result is None or figure.lab  # whose code is all of Weir, and always newer
        else result.get("fingerprint") == fingerprint(HERE / f"{figure.script}.py"),
    }


def table(records: list[dict[str, Any]]) -> str:
    """The table as Markdown, and below it what does not hold."""
    lines = [
        "| paper | figure | it says | ours, simulated | ours, on Spark | its claims hold | our own | command |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        spark = r["spark"] or (f"never run: `{r['spark_command']}`" if r["spark_command"] else "–")
        size = f" ({r['messages']:,} messages)" if r["messages"] else " (quick)" if r["quick"] else ""
        simulated = "–" if r["simulated"] is None else r["simulated"] + size
        old = " (made by earlier code)" if r["current"] is False else ""
        cells = [
            r["paper"],
            r["figure"],
            r["paper_says"],
            simulated + old,
            spark,
            r["holds"] or "–",
            r["ours"] or "–",
        ]
        lines.append("| " + " | ".join(c.replace("|", "/") for c in cells) + f" | `{r['command']}` |")
    lines += ["", "## What does not hold, and why", ""]
    for r in records:
        for one in r["why_not"]:
            why = f" *{one['why']}.*" if one["why"] else ""
            lines.append(f"- {r['paper']}, {r['figure']}: {one['claim']}. Here: {one['measured']}.{why}")
    later = [r for r in records if r["paper"] == FOLLOW_UPS]
    four = [r for r in records if r["paper"] != FOLLOW_UPS]
    held, said = _count(four, "holds")
    mine, made = _count(records, "ours")
    head = (
        f"{held} of {said} claims of the papers hold, in the simulator or, where a figure needs a network, on hosts of "
        f"the lab; of {made} claims of our own, {mine}."
    )
    if later:
        head += " Of the follow-ups' headlines, {} of {} hold.".format(*_count(later, "holds"))
    return "\n".join([head, "", *lines])


def _count(records: list[dict[str, Any]], what: str) -> tuple[int, int]:
    """How many of the claims hold, and how many there are."""
    found = [r[what].split(" of ") for r in records if r[what]]
    held, said = (sum(int(one[i]) for one in found) for i in (0, 1))
    return held, said


def write(text: str) -> None:
    """Put the table between its marks."""
    page = README.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=Path, help="a Parquet file with columns 'word' and 'time'")
    parser.add_argument("--data", type=Path, help="a Parquet file of rows (state, hashtag, time)")
    parser.add_argument("--messages", type=int, help="so many messages per stream for CG (default: all)")
    parser.add_argument("--rows", type=int, help="so many rows per run for Squirrel (default: two millions)")
    parser.add_argument("--only", action="append", help="run these scripts alone")
    parser.add_argument("--no-run", action="store_true", help="make the table from what is there")
    parser.add_argument("--again", action="store_true", help="run what is up to date, too")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder of the scripts' outputs")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    records = []
    for figure in FIGURES:
        result = None
        if figure.script:
            wanted = not args.only or figure.script in args.only
            result = bring(figure, args, kept) if wanted else kept.get(figure.script)
            if result is not None:
                kept[figure.script] = result
                RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        records.append(record(figure, result, args))
    write(table(records))
    if args.json:
        print(json.dumps(records, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
