"""Fig. 7: throughput × number of servers, for several paddings and localities.

Paper: locality-aware is the only way that goes on scaling beyond 2 servers; with 20 kB, going from 1 to 2 servers
lowers hash-based throughput; at 100 % locality padding makes no difference to locality-aware routing; without any
padding routing through the network costs 22 % of the throughput.

Here the servers share two cores, so that what doesn't wait for the network doesn't scale with their number.
"""

from __future__ import annotations

from typing import Any

from lar_common import figure, report
from lar_network import COLOUR, MODES, network, options, points, ratios, savings


def main() -> None:
    """Measures on a lab and draws one panel per padding."""
    parser = options("Fig. 7: throughput by parallelism")
    parser.add_argument(
        "--servers", type=int, nargs="+", help="beside 1 and 2 (default 4 6; with --full 3 4 5 6)"
    )
    args = parser.parse_args()
    servers = sorted({1, 2, *(args.servers or ([3, 4, 5, 6] if args.full else [4, 6]))})
    paddings = [0, 8_000, 20_000] if args.full else [0, 20_000]
    localities = [0.6, 0.8, 1.0] if args.full else [0.8, 1.0]
    wanted: list[dict[str, Any]] = []
    for padding in paddings:
        wanted.append({"servers": 1, "padding": padding, "locality": 1.0, "mode": "locality-aware"})
        for locality in localities:
            # the hash does not care about locality, so once is enough unless all points are wanted
            modes = MODES if args.full or locality < 1 else MODES[:1]
            for n in servers[1:]:
                for mode in modes:
                    wanted.append({"servers": n, "padding": padding, "locality": locality, "mode": mode})
    with network(servers[-1], args.bandwidth) as net:
        found = points(net, args, wanted)
    speed = {(p["servers"], p["padding"], p["locality"], p["mode"]): p["rows_per_s"] for p in found}
    made, axes = figure(6, 3.2, len(paddings))
    for axis, padding in zip(axes, paddings, strict=True):
        alone = speed[1, padding, 1.0, "locality-aware"]
        for locality, style in zip(localities, ("-", "--", ":")[-len(localities) :], strict=True):
            for mode in MODES:
                line = [speed.get((n, padding, locality, mode)) for n in servers[1:]]
                if all(line):
                    label = f"{mode}, {locality:.0%}"
                    axis.plot(servers, [alone, *line], style, color=COLOUR[mode], marker="o", label=label)
        axis.set(title=f"padding {padding / 1000:g} kB", xlabel="servers", ylabel="tuples/s", ylim=(0, None))
    axes[0].legend(frameon=False, fontsize=7)
    rows = [
        [
            f"{padding / 1000:g} kB",
            f"{locality:.0%}",
            mode,
            f"{speed[1, padding, 1.0, 'locality-aware']:,.0f}",
            *[f"{speed[n, padding, locality, mode]:,.0f}" for n in servers[1:]],
        ]
        for padding in paddings
        for locality in localities
        for mode in MODES
        if (servers[-1], padding, locality, mode) in speed
    ]
    big, top, low = paddings[-1], servers[-1], localities[0]
    claims = {
        f"no padding: hash / aware at 100 %, {top} servers": (
            "0.78",
            speed[top, 0, low, "hash-based"] / speed[top, 0, 1.0, "locality-aware"],
        ),
        f"aware at 100 %, 20 kB: {top} servers / 2": (
            f"{top / 2:g}",
            speed[top, big, 1.0, "locality-aware"] / speed[2, big, 1.0, "locality-aware"],
        ),
        f"hash, 20 kB: {top} servers / 2": (
            f"< {top / 2:g}",
            speed[top, big, low, "hash-based"] / speed[2, big, low, "hash-based"],
        ),
        "hash, 20 kB: 2 servers / 1": (
            "< 1",
            speed[2, big, low, "hash-based"] / speed[1, big, 1.0, "locality-aware"],
        ),
        "aware at 100 %: 20 kB / 0 kB": (
            "1",
            speed[top, big, 1.0, "locality-aware"] / speed[top, 0, 1.0, "locality-aware"],
        ),
        f"aware / hash at {low:.0%}, 20 kB, {top} servers": (
            "> 1",
            speed[top, big, low, "locality-aware"] / speed[top, big, low, "hash-based"],
        ),
    }
    rows += [
        [what, "", f"paper: {paper}", f"ours: {ours:.2f}", *[""] * (len(servers) - 1)]
        for what, (paper, ours) in claims.items()
    ]
    title = f"Fig. 7: tuples/s by number of servers ({args.bandwidth} links; {ratios(found)})"
    data = {"points": found, "savings": savings(found), "claims": {k: v[1] for k, v in claims.items()}}
    report(
        "lar_fig07", args.out, made, title, ["padding", "locality", "routing", *map(str, servers)], rows, data
    )


if __name__ == "__main__":
    main()
