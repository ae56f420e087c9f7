"""``weir advise``: would locality-aware routing help with this data, and with which table to begin?"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from weir.advise import advise
from weir.errors import WeirError
from weir.extras import install

_PARAMETERS = [name for name in inspect.signature(advise).parameters if name != "progress"]
_PLOTS = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir advise``."""
    add = parser.add_argument
    add("data", metavar="DATA", help="a Parquet file or folder, a CSV file, or table:NAME for a Spark table")
    add("--keys", required=True, help="key columns in the order of the operators: a,b or a+b,c")
    add("--servers", type=int, required=True, help="the number of servers that the query will have")
    add("--time", default=None, help="the column that orders rows (default: the order of the file)")
    add("--operators", default=None, help="names of the keyed operators (default: those of their keys)")
    add("--merges", default=(), help="those of the operators that merge, such as counts")
    add("--out", default=None, metavar="FOLDER", help="write the tables to start with, one file per operator")
    add("--plot", default=None, metavar="FILE.png", help="draw locality over time and the hot keys")
    add("--alpha", type=float, default=1.03, help="load that a server may have, over the average (1.03)")
    add("--sample", type=int, default=None, metavar="ROWS", help="count about so many rows, drawn at random")
    add("--payload", type=float, default=None, metavar="BYTES", help="bytes of a row (default: measured)")
    add("--capacity", type=int, default=5_000_000, help="most pairs and keys to keep (5,000,000)")
    add("--master", default=None, help="count on this Spark, e.g. local[4] or spark://host:7077")
    add("--seed", type=int, default=0, help="fixes what is drawn at random (0)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return the advice, with a progress bar meanwhile; draw the plot if asked to."""
    if args.plot:
        _check_plot(Path(args.plot))
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"counting {escape(args.data)} …", total=None)
        result = advise(
            progress=lambda step, steps: bar.update(task, advance=1, total=steps, description=step),
            **{name: getattr(args, name) for name in _PARAMETERS},
        )
    if args.plot:
        draw(result, args.plot)
        result["plot"] = args.plot
    return result


def _check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is read."""
    if importlib.util.find_spec("matplotlib") is None:
        raise WeirError(f"--plot needs matplotlib: {install('plots')}, or leave --plot out")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise WeirError(f"--plot {path}: can't write to {folder}; name a folder that exists")
    if path.suffix.lower() not in _PLOTS:
        raise WeirError(f"--plot {path}: name a .png, .svg, .pdf or .jpg file")


_COLOURS = {
    "hash": "#7f8c8d",
    "static": "#e67e22",
    "live": "#2471a3",
    "table": "#16a085",
    "bound": "#2c3e50",
    "hot": "#c0392b",
}
_STYLES = {"start": "bold green", "learn": "bold green", "hash": "bold yellow"}


def show(result: dict[str, Any], console: Console) -> None:
    """Print the verdict and its reasons, then the figures."""
    recommendation = result["recommendation"]
    verdict = Text(recommendation["words"], _STYLES[recommendation["verdict"]])
    console.print(Panel(verdict, title="weir advise", expand=False))
    for advice in recommendation["advice"]:
        console.print(Text.assemble(("• ", "bold"), advice["text"]))
    if recommendation["advice"]:
        console.print()
    console.print(_routings(result))
    console.print(_hot_keys(result))
    for line in _lines(result):
        console.print(Text(line))
    if "out" in result:
        console.print(Text(f'  routing=weir.Locality(tables="{result["out"]}")', "bold"))
    elif recommendation["verdict"] == "start":
        console.print(Text("To write the table, add --out FOLDER", "bold"))
    if "plot" in result:
        console.print(Text(f"Plot: {result['plot']}"))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    saved = ", ".join(
        f"{hop['from']} → {hop['to']} {hop['bytes_saved_per_row']:,.1f} bytes per row "
        f"({hop['traffic_saved']:.0%} of the traffic)"
        for hop in result["hops"]
    )
    yield f"Saved by the table, at {result['row_bytes']:,.0f} bytes a row: {saved}"
    new = ", ".join(f"{name} {share:.1%}" for name, share in result["new_rows"].items())
    yield f"Rows of the last tenth with a key never seen before: {new}"
    without = ", ".join(f"{rows:,} without {name}" for name, rows in result["left_out"].items() if rows)
    if without:
        yield f"Rows left out: {without}"
    if "out" in result:
        keys = ", ".join(f"{name} {count:,}" for name, count in result["table_keys"].items())
        yield f"Tables written, keys: {keys}"


def _routings(result: dict[str, Any]) -> Table:
    """Return a table of the ways to route: locality, and the load of the busiest server."""
    names = list(result["operators"])
    title = f"{result['rows']:,} rows, {result['servers']} servers: how the last tenth of the rows would fare"
    figures = [
        Column(head, justify="right") for head in ("stay local", *(f"busiest\n{name}" for name in names))
    ]
    table = Table(Column("routing", no_wrap=True), *figures, title=title)
    routings = [(f"hash (1/{result['servers']} = {result['hash']['expected']:.1%})", result["hash"])]
    if result["drift"]:
        routings.append(("old table (first half)", result["drift"]["late"]))
    routings.append(("table (all rows before)", result["table"]))
    if result["live"]:
        routings.append(("learning as it runs", result["live"]))
    if result["auto"]:
        routings.append(('routing="auto"', result["auto"]))
    routings.append(("bound (having seen them)", result["bound"]))
    for text, score in routings:
        busiest = (f"{score['imbalance'][name]:.2f}×" for name in names)
        table.add_row(text, f"{score['locality']:.1%}", *busiest)
    return table


def _hot_keys(result: dict[str, Any]) -> Table:
    """Return a table of the heaviest keys of each operator."""
    table = Table(
        "operator",
        "keys, share of rows",
        Column("floor", justify="right"),
        title="heaviest keys, and the least load of the busiest server that they force",
    )
    for hot in result["hot_keys"]:
        keys = "  ".join(f"{k['key']} {k['share']:.1%}" for k in hot["keys"])
        table.add_row(hot["operator"], Text(keys), f"{hot['floor']:.2f}×")
    return table


def draw(result: dict[str, Any], path: str) -> None:
    """Plot locality over time, and below it the heaviest keys against a server's fair share."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    hot_keys = result["hot_keys"]
    figure = plt.figure(figsize=(9, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, len(hot_keys), height_ratios=[3, 2])
    _draw_series(figure.add_subplot(grid[0, :]), result)
    for i, hot in enumerate(hot_keys):
        _draw_hot_keys(figure.add_subplot(grid[1, i]), hot, result["servers"])
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_series(axis: Any, result: dict[str, Any]) -> None:
    series = result["series"]
    end = len(series["hash"])
    labels = {"hash": "hash", "static": "table of the first half", "live": "learning as it runs"}
    for name, label in labels.items():
        points = [(i, locality) for i, locality in enumerate(series[name]) if locality is not None]
        if points:
            axis.plot(*zip(*points, strict=True), color=_COLOURS[name], label=label, lw=1.6)
    tenth = [end - max(1, end // 10), end - 1]
    for name, label, style in (("table", "table of all rows before", "-"), ("bound", "bound", ":")):
        axis.plot(tenth, [result[name]["locality"]] * 2, color=_COLOURS[name], ls=style, lw=2, label=label)
    # slices hold equally many rows, not equally much time, so the axis shows their dates
    begins = series["begins"]
    ticks = sorted({round(i * (end - 1) / 6) for i in range(7)})
    axis.set_xticks(ticks, [_date(begins[i]) if begins else f"{i / end:.0%}" for i in ticks])
    axis.set_xlabel("slices of equally many rows" + (", by the time they begin" if begins else ""))
    axis.set_ylim(0, 1)
    axis.set_ylabel("rows that stay local")
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    keys = " → ".join(result["operators"])
    axis.set_title(f"{keys}, {result['servers']} servers", loc="left", fontsize=11)
    axis.legend(frameon=False, ncols=5, fontsize=8.5, loc="upper left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)


def _date(begin: Any) -> str:
    return begin[:16].replace("T", "\n") if isinstance(begin, str) else f"{begin:,}"


def _draw_hot_keys(axis: Any, hot: dict[str, Any], servers: int) -> None:
    keys = hot["keys"][::-1]
    # a $ in a key would begin a formula
    texts = [k["key"][:24].replace("$", r"\$") for k in keys]
    shares = [k["share"] for k in keys]
    colours = [_COLOURS["hot"] if s > 1 / servers else _COLOURS["live"] for s in shares]
    axis.barh(range(len(keys)), shares, color=colours, height=0.7)
    axis.set_yticks(range(len(keys)), texts, fontsize=9)
    axis.axvline(1 / servers, color=_COLOURS["bound"], ls=":", lw=1.2)
    axis.set_xlim(0, max(1.15 / servers, 1.1 * max(shares, default=0)))
    axis.locator_params(axis="x", nbins=5)
    axis.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.3g}%")
    axis.set_title(f"{hot['operator']}: heaviest keys; dotted: a server's share", loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
