"""Fig. 9: throughput × padding at 80 % locality.

Paper: the gap between locality-aware and hash-based grows with the padding and with the number of servers. By bytes
alone it is bounded by (n − 1)/n ÷ 0.2: 3.75 × for 4 servers, 4.2 × for 6.
"""

from __future__ import annotations

from typing import Any

from claims import Claim, claim
from lar_common import figure, report
from lar_network import COLOUR, MODES, network, options, points, ratios, savings

LOCALITY = 0.8


def main() -> None:
    """Measures on a lab and draws one panel per number of servers."""
    parser = options("Fig. 9: throughput by padding")
    parser.add_argument(
        "--servers", type=int, nargs="+", help="numbers of servers (default 4 6; with --full 2 4 6)"
    )
    parser.add_argument("--padding", type=int, nargs="+", help="bytes (default 0 4000 12000 20000)")
    args = parser.parse_args()
    servers = args.servers or ([2, 4, 6] if args.full else [4, 6])
    paddings = args.padding or (
        [0, 4_000, 8_000, 12_000, 16_000, 20_000] if args.full else [0, 4_000, 12_000, 20_000]
    )
    modes = MODES if args.full else MODES[:2]
    wanted = [
        {"servers": n, "padding": padding, "locality": LOCALITY, "mode": mode}
        for n in servers
        for padding in paddings
        for mode in modes
    ]
    with network(max(servers), args.bandwidth) as net:
        found = points(net, args, wanted)
    speed = {(p["servers"], p["padding"], p["mode"]): p["rows_per_s"] for p in found}
    made, axes = figure(6, 3.2, len(servers))
    for axis, n in zip(axes, servers, strict=True):
        for mode in modes:
            line = [speed[n, padding, mode] for padding in paddings]
            axis.plot([p / 1000 for p in paddings], line, color=COLOUR[mode], marker="o", label=mode)
        axis.set(title=f"{n} servers", xlabel="padding (kB)", ylabel="tuples/s", ylim=(0, None))
    axes[0].legend(frameon=False, fontsize=8)
    rows = []
    for s in savings(found):
        n, padding = s["servers"], s["padding"]
        seen = s["share_seen"]
        rows.append(
            [
                str(n),
                f"{padding / 1000:g} kB",
                *[f"{speed[n, padding, mode]:,.0f}" for mode in modes],
                f"{s['speedup']:.2f} ×",
                f"{(n - 1) / n / (1 - LOCALITY):.2f} ×",
                f"{s['saved_by_account'] / 1e6:,.1f}",
                f"{s['saved_on_wire'] / 1e6:,.1f}",
                f"{seen:.0%}" if seen is not None and padding else "–",
            ]
        )
    columns = [
        "servers",
        "padding",
        *modes,
        "gain",
        "bound by bytes",
        "MB saved (Weir)",
        "MB saved (wire)",
        "seen",
    ]
    title = f"Fig. 9: tuples/s by padding (locality 80 %, {args.bandwidth} links; {ratios(found)})"
    data = {"points": found, "savings": savings(found)}
    report("lar_fig09", args.out, made, title, columns, rows, data, claims(speed, servers, paddings))


def claims(speed: dict[Any, float], servers: list[int], paddings: list[int]) -> list[Claim]:
    """What the paper says; ``speed`` by servers, padding and routing."""
    gain = {n: [speed[n, p, MODES[0]] / speed[n, p, MODES[1]] for p in paddings] for n in servers}
    many, few = max(servers), min(servers)
    return [
        claim(
            "the gap grows with the padding",
            all(g[-1] > g[0] for g in gain.values()),
            "; ".join(f"{n} servers: {', '.join(f'{x:.2f}' for x in g)} ×" for n, g in gain.items()),
        ),
        claim(
            "and with the number of servers",
            gain[many][-1] > gain[few][-1],
            f"{gain[few][-1]:.2f} × on {few}, {gain[many][-1]:.2f} × on {many}",
            "by bytes alone it could be no more than 3.75 and 4.17 ×",
        ),
    ]


if __name__ == "__main__":
    main()
