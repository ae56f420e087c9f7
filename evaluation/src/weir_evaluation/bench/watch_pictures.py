"""The pictures of the documentation: the page of the demo's application, taken in a browser."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

import weir
import weir.testing
from weir.cli.demo import SCHEMA, Posts, application
from weir.watch.page_server import PageServer
from weir_evaluation.browser import DRAWN, browser

ROWS = 40_000
FILM_ROWS = 60_000
BY_HASH, STEERED, SCALED = 10, 16, 10  # batches


def demo_query(folder: str) -> weir.testing.LocalQuery:
    """Return a query that has gone through all that a page can show: hash, steering, scaling."""
    posts = Posts(ROWS, seed=3)
    app = application(SCHEMA)
    racks = {"ams-1": "ams", "ams-2": "ams", "fra-1": "fra", "fra-2": "fra"}
    options: Any = {"hosts": list(racks), "racks": racks, "retain": 5}
    query = weir.testing.start(app, folder, servers=6, **options)
    for _ in range(BY_HASH):
        query.feed(posts.next())
    query.restart(routing=weir.Locality(period=4))
    for batch in range(STEERED):
        query.feed(posts.next())
        if batch % 4 == 3:
            query.reconfigure(wait=True)
    query.scale_out(2)
    for batch in range(SCALED):
        query.feed(posts.next())
        if batch % 4 == 1:
            query.reconfigure(wait=True)
    return query


def take_pictures(folder: Path, console: Console) -> list[str]:
    """Write the pictures to a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-pictures-") as work:
        with console.status("running the demo's application"):
            query = demo_query(f"{work}/trending")
        page = PageServer(f"{work}/trending", port=0, control=True)
        with query, page, console.status("taking pictures"):
            return _take(folder, page.url)


def record(path: Path, console: Console) -> list[str]:
    """Write a moving picture of the page while ``weir demo`` runs on Spark: by hash, then with learnt homes."""
    command = [sys.executable, "-m", "weir.cli.main", "demo", "--rows", f"{FILM_ROWS}", "--by-hash", "8"]
    demo = subprocess.Popen([*command, "--seconds", "150"], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    url = next(line for line in demo.stdout if "watch it:" in line).split()[-1]
    frames: dict[str, Image.Image] = {}  # by what the page says of the batch
    with (
        browser(1120, 790, color_scheme="light") as opened,
        console.status("recording the page of weir demo"),
    ):
        page = _open(opened, url)
        lines = threading.Thread(target=demo.stdout.read, daemon=True)  # or the demo would wait for a reader
        lines.start()
        while demo.poll() is None:
            with contextlib.suppress(Exception):  # the page goes with the demo
                batch = page.locator("header").inner_text(timeout=1000)
                picture = Image.open(io.BytesIO(page.screenshot(timeout=3000))).convert("RGB")
                if "running" in batch and page.locator("#tile-rows").count():
                    frames[batch] = picture
            time.sleep(0.2)
    shown = list(frames.values())
    # one palette for all, or colours flicker
    palette = shown[-1].quantize(128)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in shown]
    seconds = [8_000 // len(drawn)] * (len(drawn) - 1) + [2_000]
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=seconds, loop=0, optimize=True)
    return [str(path)]


def _take(folder: Path, url: str) -> list[str]:
    taken = []
    for theme in ("light", "dark"):
        with browser(1280, 860, color_scheme=theme) as opened:
            page = _open(opened, url)
            taken.append(_shot(page, folder / f"watch-{theme}.png"))
            if theme == "light":
                for part in ("lines", "servers", "decisions"):
                    taken.append(_shot(page.locator(f"#{part}"), folder / f"watch-{part}.png"))
                page.locator("#keys").scroll_into_view_if_needed()
                page.wait_for_selector(".hot button.link")
                page.locator(".hot button.link").first.click()
                page.wait_for_selector(".home")
                taken.append(_shot(page.locator("#keys"), folder / "watch-keys.png"))
    with browser(390, 844, color_scheme="light", device_scale_factor=2) as opened:
        taken.append(_shot(_open(opened, url), folder / "watch-narrow.png"))
    return taken


def _open(opened: Any, url: str) -> Any:
    page = opened.pages[0] if opened.pages else opened.new_page()
    page.goto(url)
    page.wait_for_selector(DRAWN)
    return page


def _shot(what: Any, path: Path) -> str:
    what.screenshot(path=str(path))
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)  # a third of the size
    return str(path)
