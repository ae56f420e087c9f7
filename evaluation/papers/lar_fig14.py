"""Fig. 14: throughput with and without reconfiguration × number of servers, padding 4 kB, the slower network.

Paper: the gap grows with the number of servers, since the hash keeps 1/n of the rows local.
"""

from __future__ import annotations

from lar_common import figure, report
from lar_network import bound, network, options, reconfigured, stream_of, tell


def main() -> None:
    """Runs the stream once per number of servers."""
    parser = options("Fig. 14: with and without reconfiguration, by parallelism", rows=3000)
    parser.add_argument("--data", required=True, help="a Parquet file of rows in order of time")
    parser.add_argument("--keys", default="origin,destination", help="the two key columns")
    parser.add_argument("--padding", type=int, default=4_000)
    args = parser.parse_args()
    servers = [2, 3, 4, 5, 6] if args.full else [2, 4, 6]
    half = max(2, args.batches)
    runs = []
    with network(servers[-1], args.bandwidth) as net:
        for n in servers:
            sizes = [50 * n, *[args.rows * n] * (2 * half + 1)]
            tables = stream_of(args.data, args.keys.split(","), sizes)
            runs.append(reconfigured(net, tables, servers=n, padding=args.padding, turn=half + 1))
            tell(runs[-1])
    made, (axis,) = figure(6, 3.4)
    for phase, colour, label in (
        ("before", "#7f8c8d", "without reconfiguration"),
        ("after", "#2471a3", "with reconfiguration"),
    ):
        line = [r["phases"][phase]["rows_per_s"] for r in runs]
        axis.plot(servers, line, color=colour, marker="o", label=label)
    axis.set(xlabel="servers", ylabel="tuples/s", ylim=(0, None), xticks=servers)
    axis.legend(frameon=False, fontsize=8)
    rows = [
        [
            str(r["servers"]),
            f"{r['phases']['before']['rows_per_s']:,.0f}",
            f"{r['phases']['after']['rows_per_s']:,.0f}",
            f"{r['phases']['after']['rows_per_s'] - r['phases']['before']['rows_per_s']:,.0f}",
            f"{r['gain']:.2f} ×",
            f"{bound(r):.2f} ×",
            f"{r['phases']['before']['locality']:.0%} → {r['phases']['after']['locality']:.0%}",
            "gap grows",
        ]
        for r in runs
    ]
    columns = ["servers", "tuples/s without", "with", "gap", "gain", "by bytes, if even", "locality", "paper"]
    title = f"Fig. 14: padding {args.padding / 1000:g} kB, {args.bandwidth} links"
    report("lar_fig14", args.out, made, title, columns, rows, {"runs": runs})


if __name__ == "__main__":
    main()
