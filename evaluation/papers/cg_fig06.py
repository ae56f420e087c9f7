"""Fig. 6: what ε trades: imbalance against memory. 10 workers with 10 virtual workers each.

python evaluation/papers/cg_fig06.py [--quick] [--words PATH]
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from cg_common import COLOURS, Report, line, log_axes, options, spread_out, streams
from weir.routing.consistent import Consistent
from weir.routing.hash import Hash
from weir.routing.shuffle import Shuffle

EPSILONS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]


def main() -> None:
    args = options(__doc__)
    report = Report("cg_fig06", "CG Fig. 6: ε trades imbalance for memory (10 workers × 10 virtual)", args)
    data = streams(args)
    figure, axes = plt.subplots(2, len(data), figsize=(5.5 * len(data), 6.4), sharex=True, squeeze=False)
    for column, stream in enumerate(data):
        ends = {g.name: spread_out(stream, g, 10) for g in (Hash(), Shuffle())}
        rows = [
            {"epsilon": e} | spread_out(stream, Consistent(e, 10, growth=1, light=0), 10) for e in EPSILONS
        ]
        report.rows += rows + [{"epsilon": float("nan")} | end for end in ends.values()]
        for axis, what in zip(axes[:, column], ("imbalance", "memory"), strict=True):
            line(axis, EPSILONS, [max(row[what], 1e-7) for row in rows], "CG")
            for name, end in ends.items():
                axis.axhline(max(end[what], 1e-7), color=COLOURS[name], linestyle="--", label=name)
            axis.set_xscale("log")
            log_axes(axis)
            axis.set_ylabel(what if what == "imbalance" else "memory (worker-key pairs)")
        axes[0, column].set_title(stream.name, fontsize=10)
        axes[0, column].legend(frameon=False, fontsize=8)
        axes[1, column].set_xlabel("ε")

        off, mem = (np.array([row[what] for row in rows]) for what in ("imbalance", "memory"))
        bound = np.array(EPSILONS) + 100 / len(stream)
        report.claim(
            f"{stream.name}: a small ε gives a low imbalance (never above ε plus rounding)",
            bool((off <= bound).all()),
            f"{off[0]:.5f} at ε = {EPSILONS[0]}, {off[4]:.4f} at 0.01, {off[-1]:.3f} at 1",
        )
        report.claim(
            f"{stream.name}: a large ε gives a small memory (falling all the way)",
            bool((np.diff(mem) <= 0.01 * mem[:-1]).all()),
            f"{mem[0]:,} → {mem[4]:,} → {mem[-1]:,} at ε = {EPSILONS[0]}, 0.01, 1",
        )
        kg, sg = ends["KG"], ends["SG"]
        report.claim(
            f"{stream.name}: CG lies between KG (memory) and SG (imbalance) for every ε",
            bool((mem >= kg["memory"]).all() and (mem <= sg["memory"]).all())
            and bool((off >= sg["imbalance"] - 1e-9).all() and (off <= kg["imbalance"] + 1e-9).all()),
            f"memory KG {kg['memory']:,}, SG {sg['memory']:,}; imbalance KG {kg['imbalance']:.3f}, "
            f"SG {sg['imbalance']:.1e}",
        )
    report.close(figure)


if __name__ == "__main__":
    main()
