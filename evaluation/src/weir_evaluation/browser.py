"""A real browser for the page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from weir.errors import EngineError

DRAWN = "html[data-drawn]"  # matches when the page has been drawn for the first time
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """Return where Chromium is, if it is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900, **settings: Any) -> Iterator[Any]:
    """Open a browser without a screen; yields Playwright's context, with a folder of its own that goes with it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise EngineError(
            "no Playwright to drive a browser: pip install 'weir-streams-evaluation[watch]'"
        ) from None
    path = chromium()
    if path is None:
        raise EngineError("no Chromium on this machine: apt-get install chromium")
    terms: dict[str, Any] = {"viewport": {"width": width, "height": height}, **settings}
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        opened = playwright.chromium.launch_persistent_context(
            profile, executable_path=path, args=list(FLAGS), headless=True, **terms
        )
        try:
            yield opened
        finally:
            opened.close()
