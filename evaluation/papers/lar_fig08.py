"""Fig. 8: throughput × locality, with 12 kB of padding.

Paper: hash-based does not depend on locality; locality-aware rises with it, and flattens above 90 %, where the network
is no longer what limits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from claims import Claim, claim
from lar_common import figure, report
from lar_network import COLOUR, MODES, network, options, points, ratios, savings

PADDING = 12_000


def main() -> None:
    """Measures on a lab and draws one panel per number of servers."""
    args = options("Fig. 8: throughput by locality").parse_args()
    servers = [2, 4, 6] if args.full else [6]
    localities = [x / 100 for x in (range(60, 101, 5) if args.full else (60, 80, 90, 100))]
    modes = MODES if args.full else MODES[:2]
    wanted = [
        {"servers": n, "padding": PADDING, "locality": locality, "mode": mode}
        for n in servers
        for locality in localities
        for mode in modes
    ]
    with network(servers[-1], args.bandwidth) as net:
        found = points(net, args, wanted)
    speed = {(p["servers"], p["locality"], p["mode"]): p["rows_per_s"] for p in found}
    made, axes = figure(6, 3.2, len(servers))
    for axis, n in zip(axes, servers, strict=True):
        for mode in modes:
            line = [speed[n, locality, mode] for locality in localities]
            axis.plot([100 * x for x in localities], line, color=COLOUR[mode], marker="o", label=mode)
        axis.set(title=f"{n} servers", xlabel="locality (%)", ylabel="tuples/s", ylim=(0, None))
    axes[0].legend(frameon=False, fontsize=8)
    rows = [
        [
            str(n),
            mode,
            *[f"{speed[n, x, mode]:,.0f}" for x in localities],
            "flat" if mode == "hash-based" else "rises",
        ]
        for n in servers
        for mode in modes
    ]
    for n in servers:
        gain = [speed[n, x, "locality-aware"] / speed[n, x, "hash-based"] for x in localities]
        rows.append([str(n), "aware / hash", *[f"{x:.2f} ×" for x in gain], ""])
    title = f"Fig. 8: tuples/s by locality ({PADDING / 1000:g} kB, {args.bandwidth} links; {ratios(found)})"
    data = {"points": found, "savings": savings(found)}
    columns = ["servers", "routing", *[f"{x:.0%}" for x in localities], "paper"]
    report("lar_fig08", args.out, made, title, columns, rows, data, claims(speed, servers[-1], localities))


def claims(speed: dict[Any, float], n: int, localities: list[float]) -> list[Claim]:
    """What the paper says; ``speed`` by servers, locality and routing."""
    aware, hashed = (np.array([speed[n, x, m] for x in localities]) for m in MODES[:2])
    middle = localities.index(0.9)
    steep = (aware[middle] - aware[0]) / (localities[middle] - localities[0])
    after = (aware[-1] - aware[middle]) / (localities[-1] - localities[middle])
    return [
        claim(
            "hashing does not depend on locality (a tenth)",
            hashed.max() <= 1.1 * hashed.min(),
            f"{hashed.min():,.0f} … {hashed.max():,.0f} tuples/s",
        ),
        claim(
            "locality-aware routing rises with it",
            bool((np.diff(aware) > 0).all()),
            ", ".join(f"{x:.0%}: {a / h:.1f} ×" for x, a, h in zip(localities, aware, hashed, strict=True))
            + " hashing",
        ),
        claim(
            "and flattens above 90 %",
            after < steep,
            f"{steep / 100:,.0f} tuples/s per point up to 90 %, {after / 100:,.0f} after",
            "a link is far slower here, in proportion to a core, than the paper's: it limits up to the end",
        ),
    ]


if __name__ == "__main__":
    main()
