"""Fig. 9: queues, latency and utilisation over a day on ten equal workers, at 80 % load.

python evaluation/papers/cg_fig09.py [--quick] [--words PATH]
"""

from __future__ import annotations

import numpy as np

from cg_common import (
    COLOURS,
    Report,
    a_day,
    capacity_for,
    hours,
    options,
    over_a_day,
    streams,
    three_series,
)
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.shuffle import Shuffle
from weir_evaluation.simulate import SimulatedCluster


def main() -> None:
    args = options(__doc__)
    report = Report(
        "cg_fig09", "CG Fig. 9: worst worker less best worker, 10 equal workers at 80 % load", args
    )
    figure = None
    for stream in streams(args):
        cluster = SimulatedCluster.equal(10, capacity_for(stream))
        runs = {g.name: a_day(stream, g, cluster) for g in (Hash(), Consistent.of_the_paper(10), Shuffle())}
        for name, run in runs.items():
            report.rows.append({"stream": stream.name, "grouping": name} | over_a_day(run))
        if figure is None:
            figure, axes = three_series(runs, COLOURS)
            axes[0].set_title(stream.name, fontsize=10)
        kg, cg = runs["KG"], runs["CG"]
        queue = kg.spread("queue")[hours(kg, 1)]
        report.claim(
            f"{stream.name}: with KG the gaps in queue length and latency grow over time",
            queue[-1] > 2 * queue[len(queue) // 3] and kg.spread("latency")[-2] > 600,
            f"queue gap {queue[len(queue) // 3]:,.0f} after a third of the day, {queue[-1]:,.0f} at its end; "
            f"latency gap {kg.spread('latency')[-2]:,.0f} s",
        )
        report.claim(
            f"{stream.name}: CG keeps both very low (under 1 % of KG's)",
            np.nanmax(cg.spread("queue")[:-1]) < 0.01 * queue[-1]
            and np.nanmax(cg.spread("latency")[:-1]) < 0.01 * kg.spread("latency")[-2],
            f"largest queue gap {np.nanmax(cg.spread('queue')[:-1]):,.1f}, "
            f"largest latency gap {np.nanmax(cg.spread('latency')[:-1]):,.2f} s",
        )
        late = hours(cg, 1)
        high, low = (np.nanmean(run.spread("utilisation")[late]) for run in (kg, cg))
        report.claim(
            f"{stream.name}: imbalance is high for KG and close to zero for CG (under 0.1)",
            high > 0.3 and low < 0.1,
            f"mean utilisation gap {high:.2f} for KG, {low:.3f} for CG",
        )
    assert figure is not None
    report.close(figure)


if __name__ == "__main__":
    main()
