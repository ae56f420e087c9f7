"""What the demo prints at the end, for somebody who sees it for the first time."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from weir.cli.drawing import plural
from weir.extras import install

_OWN_DATA = """
With your own data:
  [bold]weir advise posts.parquet --keys place,topic --servers 4[/]  [dim]# would it help?[/]
  [bold]app = weir.source(df).count("place", emit="rows").count("topic")[/]
  [bold]app.start("ckpt", servers=4, routing=weir.Locality(), watch=True).page[/]
"""


def busiest(batch: dict[str, Any]) -> float:
    """Return the load of the busiest server over the average."""
    return max(value for value in batch["imbalance"].values() if value is not None)


def show(result: dict[str, Any], console: Console) -> None:
    """Print what happened: the job, routing by hash, routing by what was learnt, and the check."""
    body = Text("\n\n").join(Text.from_markup(paragraph) for paragraph in _paragraphs(result))
    width = min(console.width, 100)
    console.print(Panel(body, title="what you saw", title_align="left", padding=(1, 2), width=width))
    if result["kept"]:
        checkpoint = f"{result['kept']}/checkpoint"
        about = f"look into it: weir inspect {checkpoint}, weir watch {checkpoint}"
        console.print(about, highlight=False, soft_wrap=True)
    console.print(Text.from_markup(_OWN_DATA), soft_wrap=True)
    if importlib.util.find_spec("starlette") is None:
        console.print(f"A page shows streams as they run: {install('watch')}", highlight=False, markup=False)
    if result["page"] and sys.stdin.isatty() and console.is_terminal:
        with contextlib.suppress(EOFError):  # the terminal was closed
            console.input(f"The page stays at {result['page']} until you press Enter.", markup=False)


def _paragraphs(result: dict[str, Any]) -> list[str]:
    servers, check, seconds = result["servers"], result["check"], result["seconds"]
    hashed, learnt = result["summary"]["hash"], result["summary"]["learnt"]
    said = [
        f"[bold]{result['rows']:,} posts[/] in {len(result['batches'])} micro-batches went through two operators that "
        f"keep state: [bold]places[/] counts posts per place, [bold]topics[/] finds what trends. Each runs on all "
        f"{servers} servers; every place and every topic has its home on one of them. A post visits the home of its "
        "place, then the home of its topic. If that is the same server it is handed on in memory; if not, it has to "
        "be packed up and sent."
    ]
    if hashed:
        said.append(
            f"[bold]By hash[/] ({plural(hashed['batches'], 'batch', 'batches')}), homes are chosen at random: "
            f"{100 * hashed['locality']:.0f} % of posts stayed on their server (1 in {servers} does by chance). "
            f"The busiest server had {busiest(hashed):.2f} × the average."
        )
    if learnt:
        said.append(
            f"[bold]With homes learnt from the stream[/] ({plural(learnt['batches'], 'batch', 'batches')}): "
            f"[bold green]{100 * learnt['locality']:.0f} %[/] stayed, although topics kept moving to other places. "
            f"The busiest server had {busiest(learnt):.2f} × the average."
        )
    if hashed and learnt:
        before, after = hashed["bytes_exchanged_per_row"], learnt["bytes_exchanged_per_row"]
        said.append(
            f"Bytes sent between servers per post: {before:.0f} before, {after:.0f} after "
            f"({100 * (1 - after / before):.0f} % less)."
        )
    if result["trending"]:
        loudest = max(result["trending"], key=lambda alarm: alarm["posts"])
        said.append(
            f"{plural(len(result['trending']), 'alarm', 'alarms')} for trending topics; the loudest: "
            f"[bold]#{loudest['topic']}[/], {loudest['posts']:,} posts in minute {loudest['minute']}."
        )
    said.append(
        f"[green]✓[/] The counts of all {check['places']:,} places and {check['topics']:,} topics equal plain Spark's "
        f"over the same {check['rows']:,} posts: nothing lost, nothing doubled."
        if check["equal"]
        else "[bold red]✗ The counts differ from plain Spark's over the same posts.[/] Please report this."
    )
    said.append(
        f"[dim]{seconds['total']:.0f} s in all: {seconds['start']:.0f} s to start Spark, {seconds['stream']:.0f} s of "
        f"streaming; the median batch ran at {result['summary']['rows_per_s']:,.0f} posts/s, embedded on this "
        "machine.[/]"
    )
    return said
