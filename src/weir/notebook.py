"""HTML for notebooks: small tables that take the colours of the page they are on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Cell = object  # shown as text; a pair of texts is a link


def table(rows: Iterable[Sequence[Cell]], heads: Sequence[str] = ()) -> str:
    """Return a table; without ``heads``, the first cell of each row is one.

    >>> table([["rows", 5_000], ["locality", None]])
    '<table><tr><th>rows</th><td>5,000</td></tr><tr><th>locality</th><td>–</td></tr></table>'
    """
    lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"] if heads else []
    for first, *others in rows:
        kind = "td" if heads else "th"
        lines.append(
            f"<tr><{kind}>{_cell(first)}</{kind}>{''.join(f'<td>{_cell(c)}</td>' for c in others)}</tr>"
        )
    return f"<table>{''.join(lines)}</table>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, tuple):
        text, url = cell
        return f'<a href="{escape(url)}" target="_blank">{escape(text)}</a>'
    if isinstance(cell, float):
        return f"{cell:,.3g}"
    return "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else escape(str(cell))


def share(part: float | None) -> str | None:
    """Return a share of a whole in per cent."""
    return None if part is None else f"{part:.0%}"
