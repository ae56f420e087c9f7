"""What the page costs: until it is painted, in bytes, and in CPU time of the process that serves it.

A checkpoint is made from the commit of a real batch on many servers: so many batches of history through the engine's
own code, and its last commits. While a page is timed and CPU time is measured, a commit is added every second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console

import weir
import weir.testing
from weir.cli.drawing import size, table
from weir.engine.batch.history import add
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.progress import Seconds
from weir.state.local_files import without_flushing
from weir.state.storage import Storage
from weir_evaluation.bench.watch_pictures import record, take_pictures
from weir_evaluation.browser import DRAWN, browser

HELP = "what the page of `weir watch` costs: first paint, bytes, CPU time"
TOKEN = "bench"
RETAIN = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_option = parser.add_argument
    add_option("--batches", type=int, default=10_000, help="batches of history (default 10,000)")
    add_option("--servers", type=int, default=200, help="servers (default 200)")
    add_option("--seconds", type=float, default=20, help="how long CPU time is measured, each (default 20)")
    add_option("--pages", type=int, default=3, help="pages open at once (default 3)")
    add_option("--repeat", type=int, default=5, help="first paints, of which the median counts (default 5)")
    add_option("--screenshots", metavar="DIR", help="instead, take the pictures of the documentation")
    add_option("--film", metavar="FILE.gif", help="instead, record the moving picture of the README")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Make the checkpoint, serve it and measure; or take pictures."""
    if args.screenshots:
        return {"screenshots": take_pictures(Path(args.screenshots), console)}
    if args.film:
        return {"screenshots": record(Path(args.film), console)}
    with tempfile.TemporaryDirectory(prefix="weir-bench-watch-") as folder, without_flushing():
        with console.status(f"making {args.batches:,} batches of history on {args.servers} servers"):
            storage, commit = _checkpoint(folder, args.batches, args.servers)
        with _Serving(folder) as serving, _Growing(storage, commit):
            with console.status("opening the page"):
                paints = [_paint(serving.url) for _ in range(args.repeat)]
            with console.status("measuring CPU time with nobody looking"):
                idle = serving.share(args.seconds)
            with console.status(f"measuring CPU time with {args.pages} pages open"), browser() as opened:
                pages = [opened.new_page() for _ in range(args.pages)]
                for page in pages:
                    page.goto(serving.url)
                    page.wait_for_selector("#tile-rows")
                looked_at = serving.share(args.seconds)
    return {
        "first_paint_s": statistics.median(p["first_paint_s"] for p in paints),
        "drawn_s": statistics.median(p["drawn_s"] for p in paints),
        "bytes": round(statistics.median(p["bytes"] for p in paints)),
        "core_share": {"0": round(idle, 4), str(args.pages): round(looked_at, 4)},
        "batches": args.batches,
        "servers": args.servers,
        "cores": os.cpu_count(),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the figures."""
    if "screenshots" in result:
        for path in result["screenshots"]:
            console.print(path, highlight=False)
        return
    title = f"the page with {result['batches']:,} batches of history and {result['servers']} servers"
    drawn = table(title, "what", ">value")
    drawn.add_row("first paint", f"{result['first_paint_s']:.2f} s")
    drawn.add_row("everything drawn", f"{result['drawn_s']:.2f} s")
    drawn.add_row("sent to the browser until then", size(result["bytes"]))
    for pages, share in result["core_share"].items():
        drawn.add_row(f"share of a core, {pages} pages open", f"{100 * share:.1f} %")
    console.print(drawn)


def _checkpoint(folder: str, batches: int, servers: int) -> tuple[Storage, Commit]:
    """Write a checkpoint that looks as if a query on so many servers had run for so many batches."""
    rng = np.random.default_rng(0)
    posts = weir.source("place string, topic string")
    app = posts.keyed("place", weir.Count(emit="rows"), name="places").keyed(
        "topic", weir.Count(), name="topics"
    )
    hosts = [f"host-{i:02d}" for i in range(max(1, servers // 8))]
    racks = {host: f"rack-{i % 4}" for i, host in enumerate(hosts)}
    place = rng.integers(0, 5 * servers, 20 * servers)
    rows = pa.table({"place": [f"place {p}" for p in place], "topic": [f"topic {p * 3}" for p in place]})
    options: Any = {"servers": servers, "hosts": hosts, "racks": racks, "retain": RETAIN}
    with weir.testing.start(app, folder, **options) as query:
        query.feed(rows)
    storage = Storage(folder)
    commit = CheckpointLayout(storage).latest_commit()
    assert commit is not None
    begin = time.time() - batches
    for first in range(1, batches - RETAIN, RETAIN):
        commits = [_numbered(commit, batch, begin, rng) for batch in range(first, first + RETAIN)]
        add(storage, commits, _numbered(commit, first + RETAIN, begin, rng))
    for batch in range(batches - RETAIN, batches):
        _write(storage, _numbered(commit, batch, begin, rng))
    return storage, _numbered(commit, batches, begin, rng)


def _numbered(commit: Commit, batch: int, begin: float, rng: np.random.Generator) -> Commit:
    """Return a commit as that of another batch, with other numbers."""
    did, factor = commit.progress, float(rng.uniform(0.8, 1.2))
    assert did is not None
    seconds = Seconds(waiting=0.1, plan=0.05, job=0.7 * factor)
    before = msgspec.structs.replace(seconds, commit=0.02, deliver=0.01)
    numbers = {"batch": batch, "time": begin + batch, "rows": round(did.rows * factor)}
    progress = msgspec.structs.replace(did, **numbers, seconds=seconds, before=before)
    return msgspec.structs.replace(commit, batch=batch, progress=progress)


def _write(storage: Storage, commit: Commit) -> None:
    storage.write_document(CheckpointLayout.commit(commit.batch, commit.epoch), "commit", commit)


def _paint(url: str) -> dict[str, float]:
    """Open the page in a new browser, and return how long it took and what was sent."""
    with browser() as opened:
        page = opened.pages[0] if opened.pages else opened.new_page()
        page.goto("about:blank")
        session, sent = opened.new_cdp_session(page), [0]
        session.send("Network.enable")
        session.on("Network.dataReceived", lambda e: sent.append(e["encodedDataLength"] or e["dataLength"]))
        page.goto(url)
        page.wait_for_selector(DRAWN)
        painted = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
        return {
            "first_paint_s": page.evaluate(painted),
            "drawn_s": float(page.locator("html").get_attribute("data-drawn")),
            "bytes": sum(sent),
        }


class _Serving:
    """``weir watch`` in a process of its own, and its CPU time."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-m", "weir.cli.main", "watch", folder, "--port", "0", "--token", TOKEN]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> _Serving:
        assert self._process.stderr is not None
        self.url = next(line for line in self._process.stderr if "http://" in line).split()[-1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)

    def share(self, seconds: float) -> float:
        """Return the share of a core that it takes while so many seconds pass."""
        before, began = self._cpu(), time.perf_counter()
        time.sleep(seconds)
        return (self._cpu() - before) / (time.perf_counter() - began)

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Growing:
    """Adds a commit every second, as a running query does."""

    def __init__(self, storage: Storage, commit: Commit) -> None:
        self._storage, self._commit = storage, commit
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._grow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _grow(self) -> None:
        batch, rng = self._commit.batch, np.random.default_rng(1)
        while not self._end.wait(1.0):
            _write(self._storage, _numbered(self._commit, batch, time.time() - batch, rng))
            batch += 1
