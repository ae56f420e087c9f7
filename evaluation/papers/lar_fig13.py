"""Fig. 13: throughput over time, with a reconfiguration on the way, for several paddings and two bandwidths.

Paper (Flickr tags and countries, 6 servers, reconfiguration at minute 10 of 30): throughput rises at once and stays;
the gain grows with the padding, and is greater at 1 Gb/s than at 10 Gb/s.

Any recorded stream of two keys will do (``--data``, ``--keys``); a stable one is closest to the paper's. Each run has a
control beside it that never reconfigures; the gain is what the run gains over that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from claims import Claim, claim
from lar_common import figure, report
from lar_network import UNCOUNTED, bound, gained, network, options, ratios, sizes, stream_of, with_control

COLOURS = ["#aab7b8", "#5dade2", "#2471a3", "#154360"]


def main() -> None:
    """Runs the stream once per padding and bandwidth."""
    parser = options("Fig. 13: a reconfiguration in mid-run")
    parser.add_argument("--data", required=True, help="a Parquet file of rows in order of time")
    parser.add_argument("--keys", default="origin,destination", help="the two key columns")
    parser.add_argument("--servers", type=int, default=6)
    parser.add_argument("--faster", default="100mbit", help="the other bandwidth (default 100mbit)")
    parser.add_argument("--padding", type=int, nargs="+", help="bytes (default 4000 12000)")
    args = parser.parse_args()
    paddings = args.padding or ([0, 4_000, 8_000, 12_000] if args.full else [4_000, 12_000])
    wanted, turn = sizes(args.rows, args.servers, max(2, args.batches))
    tables = stream_of(args.data, args.keys.split(","), wanted)
    runs = []
    with network(args.servers, args.bandwidth) as net:
        for bandwidth in (args.bandwidth, args.faster):
            net.at(bandwidth)
            for padding in paddings:
                runs.append(with_control(net, tables, servers=args.servers, padding=padding, turn=turn))
    made, axes = figure(7, 3.2, 2)
    for axis, bandwidth in zip(axes, (args.bandwidth, args.faster), strict=True):
        mine = [r for r in runs if r["bandwidth"] == bandwidth]
        for run, colour in zip(mine, COLOURS[-len(mine) :], strict=True):
            parts = [b for phase in run["phases"].values() for b in phase["batches"]]
            when = np.cumsum([b["seconds"] for b in parts])
            label = f"{run['padding'] / 1000:g} kB"
            axis.step(when, [b["rows"] / b["seconds"] for b in parts], where="pre", color=colour, label=label)
            axis.axvline(when[turn - UNCOUNTED - 1], color=colour, linestyle=":", linewidth=1)
            still = [b for phase in run["control"]["phases"].values() for b in phase["batches"]]
            axis.step(
                np.cumsum([b["seconds"] for b in still]),
                [b["rows"] / b["seconds"] for b in still],
                where="pre",
                color=colour,
                linestyle="--",
                linewidth=0.8,
            )
        axis.set(
            title=f"{bandwidth} links (dashed: control)", xlabel="seconds", ylabel="tuples/s", ylim=(0, None)
        )
        axis.legend(frameon=False, fontsize=8, title="padding")
    rows = []
    for run in runs:
        one, two = run["phases"]["before"], run["phases"]["after"]
        rows.append(
            [
                run["bandwidth"],
                f"{run['padding'] / 1000:g} kB",
                f"{one['rows_per_s']:,.0f} ± {one['error']:,.0f}",
                f"{two['rows_per_s']:,.0f} ± {two['error']:,.0f}",
                gained(run),
                f"{bound(run):.2f} ×",
                f"{one['locality']:.0%} → {two['locality']:.0%}",
                "rises, stays",
            ]
        )
    columns = [
        "bandwidth",
        "padding",
        "tuples/s before",
        "after",
        "gain",
        "by bytes, if even",
        "locality",
        "paper",
    ]
    title = (
        f"Fig. 13: a reconfiguration in mid-run, {args.servers} servers, gain over a control; {ratios(runs)}"
    )
    report("lar_fig13", args.out, made, title, columns, rows, {"runs": runs}, claims(runs, args.bandwidth))


def claims(runs: list[dict[str, Any]], slower: str) -> list[Claim]:
    """What the paper says of the gain over a control."""
    slow = [r for r in runs if r["bandwidth"] == slower]
    return [
        claim(
            "throughput rises at once, and stays there (by more than twice the error)",
            all(r["gain"]["times"] - 2 * r["gain"]["error"] > 1 for r in slow),
            ", ".join(f"{gained(r)} at {r['padding'] / 1000:g} kB" for r in slow),
        ),
        claim(
            "the more, the greater the padding",
            slow[-1]["gain"]["times"] > slow[0]["gain"]["times"],
            f"{slow[0]['gain']['times']:.2f} → {slow[-1]['gain']['times']:.2f} ×",
        ),
        claim(
            "on the faster network, too",
            all(r["gain"]["times"] > 1 for r in runs if r["bandwidth"] != slower),
            ", ".join(f"{gained(r)} at {r['padding'] / 1000:g} kB" for r in runs if r["bandwidth"] != slower),
        ),
    ]


if __name__ == "__main__":
    main()
