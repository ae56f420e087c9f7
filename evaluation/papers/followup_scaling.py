"""DS2 and Flink's autoscaler: how many decisions they need, and whether they take more instances than they must.

The six applications of Stela's evaluation. The sources keep their instances; all other operators begin with one, or
with 40. The rule decides, the application runs on, and so forth until nothing changes. Instances have a core each. In
one series their rates stay as they are; in the other each further instance slows all of its operator by 1 %, as
coordination does.

python evaluation/papers/followup_scaling.py [--quick]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import matplotlib.pyplot as plt

from cg_common import Report, options
from weir.elasticity.graph import Graph
from weir.elasticity.rates import Meter, Rates, Sample
from weir_evaluation.simulate.dag import Deployment, DeploymentPhase, SimulatedFlow, flow
from weir_evaluation.stela.targets import FlinkAutoscaler, Instances, ds2
from weir_evaluation.stela.topologies import CASES, Case

Rule = Callable[[Graph, Mapping[str, Rates], Mapping[str, float]], Instances]
RULES: dict[str, Rule] = {"DS2": ds2, "Flink's autoscaler": FlinkAutoscaler().decide}
SECONDS, STEP, MOST_DECISIONS = 120.0, 0.5, 20


def run(case: Case, instances: Instances, slowdown: float) -> SimulatedFlow:
    """Run a case with a core for every instance; each further one slows its operator by ``slowdown``."""
    operators = tuple(
        replace(o, rate=o.rate / (1 + slowdown * (instances[o.name] - 1)), cpu=1.0) for o in case.operators
    )
    machines = iter(range(sum(instances.values())))
    placement = {name: [next(machines) for _ in range(k)] for name, k in instances.items()}
    deployment = Deployment(operators, case.edges, placement, [1.0] * sum(instances.values()))
    return flow([DeploymentPhase(0, deployment)], SECONDS, step=STEP, timeout=30.0)


def rates(case: Case, ran: SimulatedFlow, instances: Instances) -> Mapping[str, Rates]:
    """What a meter sees of the second half of a run."""
    late = ran.time > SECONDS / 2
    meter, seconds = Meter(), SECONDS / 2
    samples = {}
    for o in case.operators:
        rows, came = (
            float(series[o.name][late].mean()) * seconds for series in (ran.processed, ran.arriving)
        )
        busy = float(ran.busy[o.name][late].mean()) * seconds
        samples[o.name] = Sample(rows, rows * o.selectivity, busy, instances[o.name], arrived=came or rows)
    meter.observe(seconds, samples)
    return meter.rates()


def decided(case: Case, rule: Rule, start: int, slowdown: float) -> tuple[list[Instances], bool, bool]:
    """The instances of each step; whether all rows come out at the end; whether one instance less would do, too."""
    names, sources = [o.name for o in case.operators], set(case.deployment(case.placement()).sources())
    fixed = dict.fromkeys(sources, case.parallelism)
    offered = {
        o.name: o.rate * case.parallelism / (1 + slowdown * (case.parallelism - 1)) for o in case.operators
    }
    offered = {name: offered[name] for name in sources}
    steps: list[Instances] = [dict.fromkeys(names, start) | fixed]
    while len(steps) <= MOST_DECISIONS:
        now = rates(case, run(case, steps[-1], slowdown), steps[-1])
        then = rule(case.graph, now, offered) | fixed
        if then == steps[-1]:
            break
        steps.append(then)

    def keeps_up(instances: Instances) -> bool:
        seen = rates(case, run(case, instances, slowdown), instances)
        return all(seen[name].input <= seen[name].processing * 1.001 for name in names)

    fewer = any(
        keeps_up(steps[-1] | {name: steps[-1][name] - 1})
        for name in names
        if name not in sources and steps[-1][name] > 1
    )
    return steps, keeps_up(steps[-1]), fewer


def main() -> None:
    args = options(__doc__)
    report = Report(
        "followup_scaling", "DS2 and Flink's autoscaler: decisions until nothing changes (simulated)", args
    )
    cases = list(CASES.values())[: 2 if args.quick else None]
    figure, axes = plt.subplots(1, len(RULES), figsize=(11, 4), sharey=True, squeeze=False)
    needed: dict[str, list[int]] = {}
    held: dict[str, list[bool]] = {}
    spare: dict[str, list[bool]] = {}
    size: dict[str, list[int]] = {}
    for axis, (name, rule) in zip(axes[0], RULES.items(), strict=True):
        for case in cases:
            for start in (1, 40):
                for slowdown in (0.0, 0.01):
                    steps, keeps_up, fewer = decided(case, rule, start, slowdown)
                    needed.setdefault(name, []).append(len(steps) - 1)
                    held.setdefault(name, []).append(keeps_up)
                    spare.setdefault(name, []).append(fewer)
                    size.setdefault(name, []).append(sum(steps[-1].values()))
                    report.rows.append(
                        {
                            "topology": case.name,
                            "rule": name,
                            "begins with": start,
                            "slower per instance": f"{slowdown:.0%}",
                            "decisions": len(steps) - 1,
                            "instances": " → ".join(str(sum(s.values())) for s in steps),
                            "keeps up": str(keeps_up),
                            "fewer would do": str(fewer),
                        }
                    )
                    if slowdown:
                        style = "-" if start == 1 else "--"
                        axis.plot(
                            [sum(s.values()) for s in steps], style, marker="o", markersize=3, label=case.name
                        )
        axis.set(title=name, xlabel="decisions", ylabel="instances, all operators")
        axis.grid(alpha=0.25)
    axes[0][0].legend(*axes[0][0].get_legend_handles_labels(), frameon=False, fontsize=7)
    ours, flink = needed["DS2"], needed["Flink's autoscaler"]
    report.claim(
        "DS2: at most three decisions, from too few instances and from too many",
        max(ours) <= 3,
        f"{', '.join(map(str, sorted(set(ours))))} decisions in {len(ours)} cases",
    )
    report.claim(
        "DS2: every operator keeps up then", all(held["DS2"]), f"in {sum(held['DS2'])} of {len(ours)} cases"
    )
    report.claim(
        "DS2: with one instance less some operator would not",
        not any(spare["DS2"]),
        f"one less would do in {sum(spare['DS2'])} of {len(ours)} cases",
        "where each instance slows the others, coming from above it stops at the first number that its measured rates "
        "call for, and with one less they would be higher",
    )
    times = [a / b for a, b in zip(size["Flink's autoscaler"], size["DS2"], strict=True)]
    report.claim(
        "Flink's autoscaler: (ours) keeps up as well, with a reserve of instances",
        all(held["Flink's autoscaler"]) and min(times) > 1,
        f"{min(times):.2f} to {max(times):.2f} × the instances, {min(flink)} to {max(flink)} decisions",
    )
    report.close(figure)


if __name__ == "__main__":
    main()
