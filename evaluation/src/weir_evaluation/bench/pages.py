"""The page of applications of all shapes: each is drawn, run in this process and opened in a browser."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from typing import Any

from rich.console import Console

from weir.errors import WeirError
from weir.testing import start
from weir.watch.page_server import PageServer
from weir_evaluation.bench.chaos import outside
from weir_evaluation.bench.chaos.draw import Drawn, draw, rows
from weir_evaluation.browser import DRAWN, browser

HELP = "the page of applications that are drawn at random, in a browser: no error, no empty panel"
BATCHES = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apps", type=int, default=100, help="applications to draw (default 100)")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    broken: list[dict[str, Any]] = []
    opened = 0
    with browser() as chrome, outside.reachable(), console.status("opening pages") as status:
        for seed in range(args.seed, args.seed + args.apps):
            drawn = draw(random.Random(seed))
            status.update(f"{seed - args.seed} of {args.apps} pages, {len(broken)} broken")
            wrong = look_at(chrome, drawn, seed)
            opened += 1
            if wrong:
                broken.append({"seed": seed, "application": drawn.describe(), "wrong": wrong})
                console.print(f"seed {seed}: {wrong}", highlight=False)
    return {"apps": opened, "broken": broken}


def look_at(chrome: Any, drawn: Drawn, seed: int) -> list[str]:
    """Run an application, open its page, and return what is wrong with it."""
    folder = tempfile.mkdtemp(prefix="weir-pages-")
    page, wrong = chrome.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    try:
        with start(drawn.application(), folder, **drawn.settings()) as query:
            for batch in range(BATCHES):
                query.feed(rows(seed, batch, 60))
            with PageServer(folder, port=0) as server:
                page.goto(server.url)
                page.wait_for_selector(DRAWN, timeout=20_000)
                if not page.locator("#graph svg .node").count():
                    wrong.append("the flow is empty")
                wrong += page.locator(".broken").all_inner_texts()
                page.goto("about:blank")
    except WeirError as error:
        wrong.append(f"{type(error).__name__}: {error}")
    finally:
        page.close()
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def show(result: dict[str, Any], console: Console) -> None:
    console.print(f"{result['apps']} pages opened, {len(result['broken'])} broken", highlight=False)


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if a page is broken."""
    return 1 if result["broken"] else 0
