"""Fig. 5: messages per hour of the two streams, and what the simulated days of the other figures assume.

The paper draws the rates of a day of page views and of a month of tweets, without numbers. Words of tweets come with
their times here (``--words PATH``); the hours of the page views are made up, so they are drawn as the other figures
assume them: a sine, ``SWING`` above the mean at the busiest hour.

python evaluation/papers/cg_fig05.py [--words PATH]
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cg_common import SWING, Report, console, options
from weir_evaluation.simulate import Arrivals

HOUR = 3_600_000_000


def hourly(path: str, limit: int | None) -> np.ndarray:
    """Messages in each hour from the first to the last one of a Parquet file with a column ``time``."""
    column = pq.read_table(path, columns=["time"])["time"]
    moment = column if limit is None else column.slice(0, limit)
    hour = moment.cast(pa.timestamp("us", moment.type.tz)).cast(pa.int64()).to_numpy() // HOUR
    return np.bincount(hour - hour.min())


def row(stream: str, rates: np.ndarray) -> dict[str, object]:
    """Mean, busiest and quietest hour of the day, over all days."""
    whole = rates[: len(rates) // 24 * 24].reshape(-1, 24).mean(axis=0)
    return {
        "stream": stream,
        "hours": len(rates),
        "mean_per_hour": float(rates.mean()),
        "busiest_hour_of_day": float(whole.max() / whole.mean()),
        "quietest_hour_of_day": float(whole.min() / whole.mean()),
        "busiest_hour": float(rates.max() / rates.mean()),
    }


def main() -> None:
    args = options(__doc__)
    report = Report("cg_fig05", "CG Fig. 5: messages per hour", args)
    messages = 2_200_000 if args.quick else args.messages or 22_000_000
    made_up = np.diff(Arrivals.day(messages, SWING).before(np.arange(25) * 3600.0))
    report.rows.append(row("page-views, as assumed", made_up))
    figure, axes = plt.subplots(1, 2 if args.words else 1, figsize=(11, 3.6), squeeze=False)
    axes[0, 0].step(np.arange(24), made_up, where="post", color="#2471a3")
    axes[0, 0].set(
        title="page views, as the other figures assume", xlabel="hour", ylabel="messages/hour", ylim=(0, None)
    )
    if args.words:
        real = hourly(args.words, args.messages)
        report.rows.append(row("words", real))
        axes[0, 1].plot(np.arange(len(real)) / 24, real, color="#c0392b", linewidth=0.6)
        axes[0, 1].set(title="words", xlabel="day", ylabel="messages/hour", ylim=(0, None))
        swing = float(report.rows[1]["busiest_hour_of_day"]) - 1  # type: ignore[arg-type]
        report.claim(
            "(ours) the day's swing that Figs. 9 to 13 assume is that of the words",
            abs(swing - SWING) < 0.05,
            f"busiest hour of the day {swing:.0%} above the mean, assumed {SWING:.0%}",
            f"at 80 % load a swing of {swing:.0%} would overload the whole cluster for hours, whatever the "
            "grouping; Fig. 13 shows what other swings do",
        )
    else:
        console.print("no --words PATH given: real words are left out", style="yellow")
    report.close(figure)


if __name__ == "__main__":
    main()
