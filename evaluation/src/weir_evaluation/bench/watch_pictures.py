"""The pictures of the documentation: the page of the demo's application, taken in a browser."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

import weir
import weir.testing
from weir.cli.demo.application import SCHEMA, application
from weir.cli.demo.posts import Posts
from weir.watch.server import PageServer
from weir_evaluation.browser import DRAWN, browser

ROWS = 6000
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
