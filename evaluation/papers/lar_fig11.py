"""Figs. 11a and 11b: locality and load balance week by week; hash, offline, online, and our way.

Paper (173 M associations of places and hashtags, 6 servers, weekly): hash 16.6 %; offline 49 % at first, falling to
about 40 %; online about 50 %; METIS expects 75 % on its own data. Imbalance: hash 1.12, offline about 1.4.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from claims import Claim, claim
from lar_common import COLOURS, console, figure, options, report
from weir_evaluation.bench.locality import METHODS, load, replay

PAPER_LOCALITY = {"hash": 0.166, "static": 0.40, "paper": 0.50, "bound": 0.75}
PAPER_IMBALANCE = {"hash": 1.12, "static": 1.40}
NAMES = {
    "hash": "hash",
    "static": "offline (first week)",
    "paper": "online (the paper's way)",
    "paper_often": "online, every batch",
    "weir": "Weir, one owner",
    "weir_first_seen": "Weir, first seen",
    "weir_look_ahead": "Weir, looking ahead",
    "auto": "Weir, auto",
    "bound": "in-sample bound",
}


def main() -> None:
    """Replays the stream and draws both panels."""
    parser = options("Figs. 11a, 11b: locality and balance over time")
    parser.add_argument("--servers", type=int, default=6)
    parser.add_argument("--period", default="7d")
    parser.add_argument("--batches", type=int, default=28)
    args = parser.parse_args()
    keys = args.keys.split(",")
    stream, begins = load(args.data, keys, args.time, args.period, args.batches, args.limit)
    weeks = [datetime.fromtimestamp(t, UTC) for t in begins]
    made, (upper, lower) = figure(9, 3.6, 2)
    rows, data = [], {}
    for method in METHODS:
        console.print(f"{NAMES[method]} …")
        got = replay(stream, method, args.servers, alpha=1.03, capacity=1_000_000, period=args.batches)
        worst = [max(per_operator) for per_operator in got.imbalance]
        style = {"color": COLOURS[method], "label": NAMES[method], "linewidth": 1.2}
        upper.plot(weeks[1:], smooth(got.locality[1:]), **style)
        if method != "bound":
            lower.plot(weeks[1:], smooth(worst[1:]), **style)
        said = PAPER_LOCALITY.get(method), PAPER_IMBALANCE.get(method)
        second = got.imbalance[1:]
        rows.append(
            [
                NAMES[method],
                f"{said[0]:.1%}" if said[0] else "–",
                f"{np.mean(got.locality[1:]):.1%}",
                f"{np.mean(got.locality[1:9]):.1%}",
                f"{np.mean(got.locality[-8:]):.1%}",
                f"{said[1]:.2f}" if said[1] else "–",
                " / ".join(f"{x:.2f}" for x in np.mean(second, axis=0)),
            ]
        )
        data[method] = {"locality": got.locality, "imbalance": got.imbalance, "moved": got.moved}
    upper.set(ylabel="locality", ylim=(0, 1), title="11a: hops that stay on their server")
    lower.set(ylabel="busiest / average", ylim=(1, None), title="11b: load of the worse balanced operator")
    upper.legend(frameon=False, ncols=3, fontsize=8)
    columns = ["", "paper", "mean", "first 8", "last 8", "paper", " / ".join(keys)]
    title = "Fig. 11: locality (paper, ours: mean, first and last 8 periods) and imbalance (paper, ours)"
    data |= {"weeks": begins, "said": PAPER_LOCALITY}
    report("lar_fig11", args.out, made, title, columns, rows, data, claims(data, args.servers))


def claims(data: dict[str, Any], servers: int) -> list[Claim]:
    """What the paper says of both panels, and what we add."""
    mean = {m: float(np.mean(data[m]["locality"][1:])) for m in METHODS}
    early, late = (
        float(np.mean(data["static"]["locality"][part])) for part in (slice(1, 9), slice(-8, None))
    )
    worst = {m: float(np.mean(np.max(data[m]["imbalance"][1:], axis=1))) for m in METHODS}
    moved, ahead = (float(np.mean(data[m]["moved"][1:])) for m in ("weir", "weir_look_ahead"))
    return [
        claim("hash keeps 1/n local", abs(mean["hash"] - 1 / servers) < 0.02, f"{mean['hash']:.1%}"),
        claim("a table of the first week gets worse with time", late < early, f"{early:.1%} → {late:.1%}"),
        claim(
            "tables made anew every week keep their locality, three times that of hash",
            mean["paper"] >= 3 * mean["hash"],
            f"{mean['paper']:.1%}, {mean['paper'] / mean['hash']:.1f} ×",
            "other tweets: fewer, over six years, and a third of the hashtags of a half were never seen before it",
        ),
        claim("in-sample, 75 % are reached", mean["bound"] >= 0.75, f"{mean['bound']:.1%}", "other tweets"),
        claim(
            "a table of the first week is less balanced than hash",
            worst["static"] > worst["hash"],
            f"busiest over average {worst['static']:.2f} and {worst['hash']:.2f}",
            "56 states over six servers are unbalanced under hash already",
        ),
        claim(
            "(ours) Weir keeps more rows local than the paper's way, with one owner per key",
            mean["weir"] > mean["paper"],
            f"{mean['weir']:.1%}, {moved:.1%} of the state moved per week; new keys where first seen "
            f"{mean['weir_first_seen']:.1%}, looking ahead {mean['weir_look_ahead']:.1%}",
        ),
        claim(
            "(target) .50 of the rows with one owner per key, looking ahead",
            mean["weir_look_ahead"] >= 0.5,
            f"{mean['weir_look_ahead']:.3f}, {ahead:.1%} of the state moved per week; by the past alone "
            f"{mean['weir']:.3f}",
        ),
        claim(
            "(target) .57 where new keys start where first seen",
            mean["weir_first_seen"] >= 0.57,
            f"{mean['weir_first_seen']:.3f}",
            "a twelfth of the rows carry a hashtag seen before that comes once a week, in whatever company",
        ),
    ]


def smooth(values: list[float], width: int = 4) -> np.ndarray:
    """A moving mean, so that hundreds of weeks remain readable."""
    if len(values) < 3 * width:
        return np.array(values)
    kernel = np.ones(width)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


if __name__ == "__main__":
    main()
