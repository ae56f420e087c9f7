"""Scaling out and in while the stream runs: which operators get instances, which machines leave, which keys move.

* :mod:`~weir.elasticity.graph`: the operators, their edges, the machines of their instances, and effective throughput
  percentage, the share of the output that depends on an operator
* :mod:`~weir.elasticity.rates`: input and processing rates of every operator, and which operators are congested
* :mod:`~weir.elasticity.decision`: the input and output of scaling strategies, and a decision in plain text
* :mod:`~weir.elasticity.stela`: Stela; rivals are in ``weir_evaluation.stela.rivals``
* :mod:`~weir.elasticity.keys`: which keys move when an operator gets more or fewer instances
* :mod:`~weir.elasticity.autoscale`: when to scale

Strategies are pure functions from measurements and a placement to a new placement with its explanation; the engine
carries a decision out as a whole, or not at all. Nothing here depends on Spark, the engine or the application model.

Reference: L. Xu, B. Peng, I. Gupta, "Stela: Enabling Stream Processing Systems to Scale-in and Scale-out On-demand",
IC2E 2016.
"""

from weir.elasticity.decision import Decision, Situation, Step, Strategy
from weir.elasticity.graph import Graph, Placement
from weir.elasticity.rates import Rates
from weir.elasticity.stela import Stela

__all__ = ["Decision", "Graph", "Placement", "Rates", "Situation", "Stela", "Step", "Strategy"]
