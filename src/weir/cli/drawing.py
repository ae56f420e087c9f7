"""What several commands draw with: numbers, sizes, bars and tables."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def number(value: int | None) -> str:
    """Return a number with separators.

    >>> number(1234567), number(None)
    ('1,234,567', '–')
    """
    return "–" if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Return a number of bytes in a fitting unit.

    >>> size(1_234_567), size(12), size(None)
    ('1.2 MB', '12 B', '–')
    """
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def plural(count: int, one: str, many: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "batch", "batches"), plural(3, "batch", "batches")
    ('1 batch', '3 batches')
    """
    return f"{count} {one if count == 1 else many}"


def share_bar(share: float | None, width: int = 20) -> Text:
    """Return a share as a bar with its percentage behind it, green from 60 % and red below 40 %.

    >>> share_bar(0.5, 4).plain
    '██░░  50 %'
    """
    if share is None:
        return Text("–", style="dim")
    filled = round(share * width)
    colour = "green" if share >= 0.6 else "yellow" if share >= 0.4 else "red"
    return Text.assemble(
        ("█" * filled, colour), ("░" * (width - filled), "dim"), (f" {100 * share:3.0f} %", colour)
    )


def table(title: str | None = None, *columns: str) -> Table:
    """Return an empty table in the style of all commands; ``>`` begins a column of numbers, ``=`` one of bars."""
    style: Any = {"title_justify": "left", "title_style": "bold", "padding": (0, 1, 0, 0)}
    drawn = Table(title=title, box=box.SIMPLE_HEAD, **style)
    for column in columns:
        bars: Any = {"no_wrap": True, "min_width": 17} if column[0] == "=" else {"no_wrap": column[0] == ">"}
        drawn.add_column(column.lstrip("=>"), justify="right" if column[0] == ">" else "left", **bars)
    return drawn


def show_table(console: Console, drawn: Table) -> None:
    """Print a table; where the terminal is too narrow, lines run on rather than that numbers are cut off."""
    if drawn.title:  # of its own width, not that of the table
        console.print(drawn.title, style="bold", highlight=False, markup=False, soft_wrap=True)
        drawn.title = None
    natural = console.measure(drawn, options=console.options.update(max_width=1000)).maximum
    if natural <= console.width:
        console.print(drawn)
    else:
        Console(file=console.file, width=natural, no_color=console.no_color).print(drawn)
