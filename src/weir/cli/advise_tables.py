"""Advice for the eye: a verdict, a few tables, a plot."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

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
    """Prints the verdict first, then what it rests on."""
    told = result["recommendation"]
    console.print(Panel(Text(told["words"], _STYLES[told["verdict"]]), title="weir advise", expand=False))
    for piece in told["advice"]:
        console.print(Text.assemble(("• ", "bold"), piece["text"]))
    if told["advice"]:
        console.print()
    console.print(_ways(result))
    console.print(_hot(result))
    saved = ", ".join(
        f"{h['from']} → {h['to']} {h['bytes_saved_per_row']:,.1f} bytes per row "
        f"({h['traffic_saved']:.0%} of the traffic)"
        for h in result["hops"]
    )
    console.print(f"Saved by the table, at {result['row_bytes']:,.0f} bytes a row: {saved}", highlight=False)
    new = ", ".join(f"{name} {share:.1%}" for name, share in result["new_rows"].items())
    console.print(f"Rows of the last tenth with a key never seen before: {new}", highlight=False)
    left = {name: n for name, n in result["left_out"].items() if n}
    if left:
        gone = ", ".join(f"{n:,} without {name}" for name, n in left.items())
        console.print(f"Rows left out: {gone}", highlight=False)
    if "out" in result:
        keys = ", ".join(f"{name} {n:,}" for name, n in result["table_keys"].items())
        console.print(f"Tables written, keys: {keys}", highlight=False)
        console.print(f'  routing=weir.Locality(start="{result["out"]}")', style="bold", highlight=False)
    if "plot" in result:
        console.print(f"Plot: {result['plot']}", highlight=False)


def _ways(result: dict[str, Any]) -> Table:
    names = list(result["operators"])
    table = Table(
        title=f"{result['rows']:,} rows, {result['servers']} servers: how the last tenth of the rows would fare"
    )
    table.add_column("routing", no_wrap=True)
    table.add_column("stay local", justify="right")
    for name in names:
        table.add_column(f"busiest\n{name}", justify="right")
    ways = [(f"hash (1/{result['servers']} = {result['hash']['expected']:.1%})", result["hash"])]
    if result["drift"]:
        ways.append(("old table (first half)", result["drift"]["late"]))
    ways.append(("table (all rows before)", result["table"]))
    if result["live"]:
        ways.append(("learning as it runs", result["live"]))
    ways.append(("bound (having seen them)", result["bound"]))
    for text, way in ways:
        table.add_row(text, f"{way['locality']:.1%}", *(f"{way['imbalance'][n]:.2f}×" for n in names))
    return table


def _hot(result: dict[str, Any]) -> Table:
    table = Table(title="heaviest keys, and the least load of the busiest server that they force")
    table.add_column("operator")
    table.add_column("keys, share of rows")
    table.add_column("floor", justify="right")
    for hot in result["hot_keys"]:
        keys = "  ".join(f"{k['key']} {k['share']:.1%}" for k in hot["keys"])
        table.add_row(hot["operator"], Text(keys), f"{hot['floor']:.2f}×")
    return table


def draw(result: dict[str, Any], path: str) -> None:
    """Draws locality over time, and below it the heaviest keys against a server's fair share."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    hot = result["hot_keys"]
    made = plt.figure(figsize=(9, 6.4), layout="constrained")
    grid = made.add_gridspec(2, len(hot), height_ratios=[3, 2])
    over = made.add_subplot(grid[0, :])
    _draw_series(over, result)
    for i, operator in enumerate(hot):
        _draw_hot(made.add_subplot(grid[1, i]), operator, result["servers"])
    made.savefig(path, dpi=120)
    plt.close(made)


def _draw_series(axis: Any, result: dict[str, Any]) -> None:
    series = result["series"]
    end = len(series["hash"])
    at = list(range(end))
    labels = {"hash": "hash", "static": "table of the first half", "live": "learning as it runs"}
    for name, label in labels.items():
        points = [(x, y) for x, y in zip(at, series[name], strict=False) if y is not None]
        if points:
            axis.plot(*zip(*points, strict=True), color=_COLOURS[name], label=label, lw=1.6)
    tenth = [end - max(1, end // 10), end - 1]
    for name, label, style in (("table", "table of all rows before", "-"), ("bound", "bound", ":")):
        axis.plot(tenth, [result[name]["locality"]] * 2, color=_COLOURS[name], ls=style, lw=2, label=label)
    # slices hold equally many rows, not equally much time: their dates say where they are
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


def _draw_hot(axis: Any, hot: dict[str, Any], servers: int) -> None:
    keys = hot["keys"][::-1]
    # keys are data: a $ in one is not mathematics
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
