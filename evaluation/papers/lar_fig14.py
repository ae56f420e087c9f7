"""Fig. 14: throughput with and without reconfiguration × number of servers, padding 4 kB, the slower network.

Paper: the gap grows with the number of servers, since the hash keeps 1/n of the rows local. On a recorded stream
(``--data``) the locality that tables can reach falls with the number of servers, too. Without ``--data`` the stream is
made up, and it hardly does. "Without" is a control of its own, over the same batches.
"""

from __future__ import annotations

from typing import Any

from claims import Claim, claim
from lar_common import figure, report
from lar_network import bound, gained, network, options, ratios, sizes, steady_stream, stream_of, with_control


def main() -> None:
    """Runs the stream once per number of servers."""
    parser = options("Fig. 14: with and without reconfiguration, by parallelism", rows=3000)
    parser.add_argument("--data", help="a Parquet file of rows in order of time; made-up rows if not given")
    parser.add_argument("--locality", type=float, default=0.8, help="of the made-up rows")
    parser.add_argument("--keys", default="origin,destination", help="the two key columns")
    parser.add_argument("--padding", type=int, default=4_000)
    args = parser.parse_args()
    servers = [2, 3, 4, 5, 6] if args.full else [2, 4, 6]
    runs = []
    with network(servers[-1], args.bandwidth) as net:
        for n in servers:
            wanted, turn = sizes(args.rows, n, max(2, args.batches))
            if args.data:
                tables = stream_of(args.data, args.keys.split(","), wanted)
            else:
                tables = steady_stream(wanted, args.locality)
            runs.append(with_control(net, tables, servers=n, padding=args.padding, turn=turn))
    made, (axis,) = figure(6, 3.4)
    after = [r["phases"]["after"] for r in runs]
    without = [r["control"]["phases"]["after"] for r in runs]
    for line, colour, label in (
        (without, "#7f8c8d", "without reconfiguration"),
        (after, "#2471a3", "with reconfiguration"),
    ):
        speed, error = ([p[what] for p in line] for what in ("rows_per_s", "error"))
        axis.errorbar(servers, speed, error, color=colour, marker="o", capsize=3, label=label)
    axis.set(xlabel="servers", ylabel="tuples/s", ylim=(0, None), xticks=servers)
    axis.legend(frameon=False, fontsize=8)
    rows = [
        [
            str(r["servers"]),
            f"{off['rows_per_s']:,.0f} ± {off['error']:,.0f}",
            f"{on['rows_per_s']:,.0f} ± {on['error']:,.0f}",
            f"{on['rows_per_s'] - off['rows_per_s']:,.0f}",
            gained(r),
            f"{bound(r):.2f} ×",
            f"{r['phases']['before']['locality']:.0%} → {r['phases']['after']['locality']:.0%}",
            "gap grows",
        ]
        for r, on, off in zip(runs, after, without, strict=True)
    ]
    columns = ["servers", "tuples/s without", "with", "gap", "gain", "by bytes, if even", "locality", "paper"]
    title = f"Fig. 14: padding {args.padding / 1000:g} kB, {args.bandwidth} links; {ratios(runs)}"
    report("lar_fig14", args.out, made, title, columns, rows, {"runs": runs}, claims(runs))


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """What the paper says of the gap to a control."""
    gaps = [r["phases"]["after"]["rows_per_s"] - r["control"]["phases"]["after"]["rows_per_s"] for r in runs]
    return [
        claim(
            "the gap in throughput grows with the number of servers",
            gaps[-1] > gaps[0],
            "; ".join(
                f"{r['servers']}: {gap:,.0f} tuples/s, {gained(r)}" for r, gap in zip(runs, gaps, strict=True)
            ),
            "the locality that tables reach on a recorded stream falls with the number of servers; on made-up rows, "
            "where it hardly does, it holds",
        )
    ]


if __name__ == "__main__":
    main()
