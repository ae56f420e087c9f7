"""Fig. 10: one hashtag belongs to one state today and to another tomorrow.

The paper shows #nevertrump, which peaks in Florida on 3 March 2016, in Virginia on the 9th and in Texas on the
11th. Here the hashtag is looked for: the popular one that three states lead in turn most clearly.
"""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from claims import claim
from lar_common import figure, options, report

PAPER = [["Florida", "3 March 2016"], ["Virginia", "9 March 2016"], ["Texas", "11 March 2016"]]
WINDOW = 28
DAY = 86_400_000_000


def main() -> None:
    """Finds the hashtag and draws it."""
    parser = options("Fig. 10: a hashtag's correlation with places drifts")
    parser.add_argument("--hashtag", default=None, help="draw this one instead of looking for one")
    args = parser.parse_args()
    place, tag = args.keys.split(",")
    table = pq.read_table(args.data, columns=[place, tag, args.time])
    if args.limit:
        table = table.slice(0, args.limit)
    moment = table.column(args.time)
    day = moment.cast(pa.timestamp("us", moment.type.tz)).cast(pa.int64()).to_numpy() // DAY
    places = pc.dictionary_encode(table.column(place).combine_chunks())
    where, names = places.indices.to_numpy(), places.dictionary.to_pylist()
    tags = pc.dictionary_encode(table.column(tag).combine_chunks())
    which, words = tags.indices.to_numpy(), tags.dictionary.to_pylist()
    popular = np.argsort(-np.bincount(which))[:300] if args.hashtag is None else [words.index(args.hashtag)]
    best = None
    for t in popular:
        rows = which == t
        days, at = day[rows] - day.min(), where[rows]
        counts = np.zeros((int(days.max()) + WINDOW + 1, len(names)))
        np.add.at(counts, (days, at), 1)
        for first in range(0, len(counts) - WINDOW, 7):
            window = counts[first : first + WINDOW]
            peak = window.argmax(axis=0)
            height = window.max(axis=0)
            top = np.argsort(-height)[:12]
            chosen: list[int] = []
            for s in top:  # the highest peaks that lie on different days
                if all(abs(int(peak[s]) - int(peak[c])) >= 2 for c in chosen):
                    chosen.append(int(s))
                if len(chosen) == 3:
                    break
            if len(chosen) < 3:
                continue
            # how clearly each leads on its own day
            lead = [height[s] - max(window[peak[s], o] for o in chosen if o != s) for s in chosen]
            if best is None or min(lead) > best[0]:
                best = (min(lead), t, first, chosen, window[:, chosen], [int(peak[s]) for s in chosen])
    assert best is not None
    _, t, first, chosen, window, peaks = best
    start = date(1970, 1, 1) + timedelta(days=int(day.min()) + first)
    made, (axis,) = figure()
    dates = [start + timedelta(days=i) for i in range(WINDOW)]
    order = np.argsort(peaks)
    for i in order:
        axis.plot(dates, window[:, i], marker="o", markersize=3, label=names[chosen[i]])
    axis.set(ylabel="occurrences per day", title=f"#{words[t]}: who it belongs to changes within days")
    axis.legend(frameon=False)
    made.autofmt_xdate()
    rows = [
        [
            f"{PAPER[j][0]}: {PAPER[j][1]}",
            f"{names[chosen[i]]}: {dates[peaks[i]]:%d %b %Y}",
            f"{window[peaks[i], i]:.0f}",
        ]
        for j, i in enumerate(order)
    ]
    report(
        "lar_fig10",
        args.out,
        made,
        f"Fig. 10: peaks of one hashtag (paper: #nevertrump, here: #{words[t]})",
        ["paper", "here", "occurrences that day"],
        rows,
        {
            "hashtag": words[t],
            "days": [d.isoformat() for d in dates],
            "occurrences": {names[c]: window[:, i].tolist() for i, c in enumerate(chosen)},
            "paper": PAPER,
        },
        [
            claim(
                "one hashtag is led by three states within days of each other",
                all(peaks[b] - peaks[a] <= 14 for a, b in pairwise(order)),
                f"#{words[t]}: "
                + ", ".join(f"{names[chosen[i]]} on {dates[peaks[i]]:%d %b %Y}" for i in order),
            )
        ],
    )


if __name__ == "__main__":
    main()
