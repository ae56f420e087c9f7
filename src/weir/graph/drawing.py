"""The DAG of an application, as text and as inline SVG."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from statistics import mean

from weir.graph.declare import LISTED, Assembly
from weir.graph.model import DEAD, LATE

COLUMN, ROW, WIDTH, HEIGHT = 230, 64, 170, 44
COLOURS = {"source": "#2e9e6b", "operator": "#3b7dd8", "sink": "#b7791f"}


def outline(parts: Assembly) -> str:
    """Return the sources, operators and sinks of an application, one per line."""
    boxes, edges = _graph(parts)
    before = {name: ", ".join(a for a, b in edges if b == name) for name in boxes}
    return "\n".join(
        f"{before[name]} → {title}: {text}" if before[name] else f"source {title}"
        for name, (title, text, _) in boxes.items()
    )


def svg(parts: Assembly) -> str:
    """Return a drawing of an application: sources on the left, sinks on the right, in the colours of the page.

    A part stands in the column behind its last input. Edges that pass a column have a place of their own there, so that
    they cross no box.
    """
    boxes, edges = _graph(parts)
    level = dict.fromkeys(boxes, 0)
    for _ in boxes:  # as often as the longest way may be long
        for a, b in edges:
            level[b] = max(level[b], level[a] + 1)
    columns: list[list[str]] = [[n for n in boxes if level[n] == i] for i in range(max(level.values()) + 1)]
    ways = []
    for a, b in edges:
        way = [a, *(f"{a}\n{b}\n{i}" for i in range(level[a] + 1, level[b])), b]
        for i, between in enumerate(way[1:-1], level[a] + 1):
            columns[i].append(between)
        ways.append(way)
    place = {name: (i, j) for i, column in enumerate(columns) for j, name in enumerate(column)}
    for i, column in enumerate(columns[1:], 1):  # each near to what comes before it
        near = {n: mean(place[w[w.index(n) - 1]][1] for w in ways if n in w[1:]) for n in column}
        for j, name in enumerate(sorted(column, key=lambda n: (near[n], place[n][1]))):
            place[name] = (i, j)
    tallest = max(map(len, columns))
    centre = {
        name: (
            i * COLUMN + WIDTH // 2 + 4,
            int((j + (tallest - len(columns[i])) / 2) * ROW) + HEIGHT // 2 + 4,
        )
        for name, (i, j) in place.items()
    }
    lines = [_curve([centre[name] for name in way]) for way in ways]
    lines += [_box(*centre[name], *about) for name, about in boxes.items()]
    wide, high = (len(columns) - 1) * COLUMN + WIDTH + 8, tallest * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
        f'style="max-width:100%;font:12px system-ui,sans-serif;color:inherit" role="img">{"".join(lines)}</svg>'
    )


def _graph(parts: Assembly) -> tuple[dict[str, tuple[str, str, str]], list[tuple[str, str]]]:
    """Return boxes (title, text below, kind) and edges; what lists files is a part of the source that reads them."""
    boxes = {name: (name, "source", "source") for name in parts.sources if not name.endswith(LISTED)}
    edges = []
    for d in parts.declared:
        key = f" by {', '.join(d.key)}" if d.operator.stateful else ""
        reads = d.operator.reads_source
        boxes[d.name] = (
            d.name,
            "source" if reads else d.operator.describe() + key,
            "source" if reads else "operator",
        )
        edges += [(name, d.name) for name in dict.fromkeys(d.inputs) if not name.endswith(LISTED)]
    for name, sinks in parts.sinks.items():
        operator = name.removesuffix(LATE).removesuffix(DEAD)
        title = {LATE: "late rows", DEAD: "dead letters"}.get(name.removeprefix(operator), "sink")
        text = ", ".join(getattr(sink, "__name__", None) or repr(sink) for sink in sinks)
        boxes[f"{name}\n"] = (title, text, "sink")
        edges.append((operator, f"{name}\n"))
    return boxes, edges


def _curve(points: list[tuple[int, int]]) -> str:
    path = f"M{points[0][0] + WIDTH // 2},{points[0][1]}"
    for (x1, y1), (x2, y2) in pairwise(points):
        start, end = x1 + WIDTH // 2, x2 - WIDTH // 2
        path += f"L{start},{y1}C{start + 30},{y1} {end - 30},{y2} {end},{y2}"
    x, y = points[-1][0] - WIDTH // 2, points[-1][1]
    arrow = f'<path d="M{x - 7},{y - 4}L{x},{y}L{x - 7},{y + 4}Z" fill="currentColor" fill-opacity=".6"/>'
    return (
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".45" stroke-width="1.5"/>{arrow}'
    )


def _box(x: int, y: int, title: str, text: str, kind: str) -> str:
    colour = COLOURS[kind]
    shape = (
        f'<rect x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{colour}" '
        f'fill-opacity=".14" stroke="{colour}"/>'
    )
    full = f"<title>{escape(f'{title}: {text}')}</title>"
    place = f'x="{x}" text-anchor="middle" fill="currentColor"'
    return (
        f'<g>{full}{shape}<text {place} y="{y - 3}" font-weight="600">{escape(_short(title, 23))}</text>'
        f'<text {place} y="{y + 13}" fill-opacity=".7" font-size="10.5">{escape(_short(text, 28))}</text></g>'
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
