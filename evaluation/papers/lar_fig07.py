"""Fig. 7: throughput × number of servers, for several paddings and localities.

Paper: locality-aware is the only way that goes on scaling beyond 2 servers; with 20 kB, going from 1 to 2 servers
lowers hash-based throughput; at 100 % locality padding makes no difference to locality-aware routing; without any
padding routing through the network costs 22 % of the throughput.

Here the servers share two cores, so that what doesn't wait for the network doesn't scale with their number.
"""

from __future__ import annotations

from typing import Any

from claims import Claim, claim
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
    title = f"Fig. 7: tuples/s by number of servers ({args.bandwidth} links; {ratios(found)})"
    data = {"points": found, "savings": savings(found)}
    columns = ["padding", "locality", "routing", *map(str, servers)]
    said = claims(speed, paddings[-1], servers, localities[0])
    report("lar_fig07", args.out, made, title, columns, rows, data, said)


def claims(speed: dict[Any, float], big: int, servers: list[int], low: float) -> list[Claim]:
    """What the paper says; ``speed`` by servers, padding, locality and routing, ``low`` the least locality."""
    top, aware, hashed = servers[-1], "locality-aware", "hash-based"
    ours = {n: speed[n, big, 1.0, aware] for n in servers}
    theirs = {n: speed[n, big, low, hashed] for n in servers[1:]}
    share = speed[top, 0, low, hashed] / speed[top, 0, 1.0, aware]
    flat = speed[top, big, 1.0, aware] / speed[top, 0, 1.0, aware]
    return [
        claim(
            "with 20 kB, hashing is slower on two servers than on one",
            theirs[2] < ours[1],
            f"{ours[1]:,.0f} → {theirs[2]:,.0f} tuples/s",
        ),
        claim(
            f"beyond two servers, locality-aware routing goes on scaling: {top / 2:g} × from 2 to {top}",
            ours[top] / ours[2] >= 0.8 * top / 2,
            f"{ours[top] / ours[2]:.2f} × at 100 % locality; hashing {theirs[top] / theirs[2]:.2f} ×",
            "all servers share two cores here: what does not wait for the network does not scale with their number",
        ),
        claim(
            f"and is faster than hashing on {top}, at {low:.0%} locality",
            speed[top, big, low, aware] > theirs[top],
            ", ".join(f"{speed[n, big, low, aware] / theirs[n]:.2f} × on {n}" for n in servers[1:]),
        ),
        claim(
            "without padding, the network costs hashing 22 % of the throughput (10 to 40)",
            0.6 <= share <= 0.9,
            f"{1 - share:.0%}",
        ),
        claim(
            "at 100 % locality padding makes no difference (a fifth)",
            flat >= 0.8,
            f"{flat:.2f} × with {big / 1000:g} kB",
            "making and copying the padding takes CPU time, and servers share two cores",
        ),
    ]


if __name__ == "__main__":
    main()
