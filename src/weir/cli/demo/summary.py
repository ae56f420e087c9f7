"""What the demo prints at the end, for somebody who sees it for the first time."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from weir.cli.drawing import plural
from weir.extras import install

_OWN_DATA = """
With your own data:
  [bold]weir advise posts.parquet --keys place,topic --servers 4[/]  [dim]# would it help?[/]
  [bold]app = weir.source(df).keyed("place", weir.Count()).keyed("topic", weir.Count())[/]
  [bold]app.start("ckpt", servers=4, routing=weir.Locality(), watch=True).page[/]
"""


def show(result: dict[str, Any], console: Console) -> None:
    """Print what happened: the job, routing by hash, routing by what was learnt, and the check."""
    paragraphs = [
        _job(result),
        *_routing(result),
        *_trending(result),
        _check(result["check"]),
        _times(result),
    ]
    body = Text("\n\n").join(Text.from_markup(paragraph) for paragraph in paragraphs)
    width = min(console.width, 100)
    console.print(Panel(body, title="what you saw", title_align="left", padding=(1, 2), width=width))
    if result["kept"]:
        console.print(
            f"look into it: weir inspect {result['kept']}/checkpoint, weir watch {result['kept']}/checkpoint",
            highlight=False,
            soft_wrap=True,
        )
    console.print(Text.from_markup(_OWN_DATA), soft_wrap=True)
    if importlib.util.find_spec("starlette") is None:
        console.print(f"A page shows streams as they run: {install('watch')}", highlight=False, markup=False)
    if result["page"] and sys.stdin.isatty() and console.is_terminal:
        with contextlib.suppress(EOFError):  # the terminal was closed
            console.input(f"The page stays at {result['page']} until you press Enter.", markup=False)


def _job(result: dict[str, Any]) -> str:
    return (
        f"[bold]{result['rows']:,} posts[/] in {len(result['batches'])} micro-batches went through two operators that "
        f"keep state: [bold]places[/] counts posts per place, [bold]topics[/] finds what trends. Each runs on all "
        f"{result['servers']} servers; every place and every topic has its home on one of them. A post visits the "
        "home of its place, then the home of its topic. If that is the same server it is handed on in memory; if "
        "not, it has to be packed up and sent."
    )


def _routing(result: dict[str, Any]) -> Iterator[str]:
    """Yield what routing by hash kept on its server, what learnt homes did, and the difference."""
    hashed, learnt = result["summary"]["hash"], result["summary"]["learnt"]
    if hashed:
        yield (
            f"[bold]By hash[/] ({plural(hashed['batches'], 'batch', 'batches')}), homes are chosen at random: "
            f"{100 * hashed['locality']:.0f} % of posts stayed on their server "
            f"(1 in {result['servers']} does by chance). {_balance(hashed)}"
        )
    if learnt:
        yield (
            f"[bold]With homes learnt from the stream[/] ({plural(learnt['batches'], 'batch', 'batches')}): "
            f"[bold green]{100 * learnt['locality']:.0f} %[/] stayed, although topics kept moving to other places. "
            f"{_balance(learnt)}"
        )
    if hashed and learnt:
        before, after = hashed["bytes_exchanged_per_row"], learnt["bytes_exchanged_per_row"]
        yield (
            f"Bytes sent between servers per post: {before:.0f} before, {after:.0f} after "
            f"({100 * (1 - after / before):.0f} % less)."
        )


def _balance(mean: dict[str, Any]) -> str:
    return f"The busiest server had {max(mean['imbalance'].values()):.2f} × the average."


def _trending(result: dict[str, Any]) -> Iterator[str]:
    if result["trending"]:
        loudest = max(result["trending"], key=lambda alarm: alarm["posts"])
        yield (
            f"{plural(len(result['trending']), 'alarm', 'alarms')} for trending topics; the loudest: "
            f"[bold]#{loudest['topic']}[/], {loudest['posts']:,} posts in minute {loudest['minute']}."
        )


def _check(check: dict[str, Any]) -> str:
    if not check["equal"]:
        return "[bold red]✗ The counts differ from plain Spark's over the same posts.[/] Please report this."
    return (
        f"[green]✓[/] The counts of all {check['places']:,} places and {check['topics']:,} topics equal plain "
        f"Spark's over the same {check['rows']:,} posts: nothing lost, nothing doubled."
    )


def _times(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    return (
        f"[dim]{seconds['total']:.0f} s in all: {seconds['start']:.0f} s to start Spark, {seconds['stream']:.0f} s of "
        f"streaming; the median batch ran at {result['summary']['rows_per_s']:,.0f} posts/s, embedded on this "
        "machine.[/]"
    )
