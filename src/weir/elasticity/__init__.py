"""Scaling out and in while the stream runs, where it helps most.

* :mod:`~weir.elasticity.rates`: how fast every operator is, and who cannot keep up
* :mod:`~weir.elasticity.etp`: how much of what comes out hangs on an operator
* :mod:`~weir.elasticity.stela`: Stela; :mod:`~weir.elasticity.gain`: ours; :mod:`~weir.elasticity.strategies`: others
* :mod:`~weir.elasticity.keys`: which keys, with their state, move when instances come and go
* :mod:`~weir.elasticity.autoscale`: when to scale at all

Decisions are pure functions from measurements and a placement to a new placement with its explanation:
whoever carries one out does so as a whole, or not at all.
"""

from weir.elasticity.autoscale import Autoscale
from weir.elasticity.decision import Decision, Row, Situation, Step, Strategy
from weir.elasticity.etp import etp
from weir.elasticity.explain import drawing, text
from weir.elasticity.gain import Gain
from weir.elasticity.graph import Graph, Placement
from weir.elasticity.keys import Moved, carried, rescaled, spread, table_for
from weir.elasticity.rates import Meter, Rates, Sample, congested, propagate, samples
from weir.elasticity.stela import Stela
from weir.elasticity.strategies import STRATEGIES

__all__ = [
    "STRATEGIES",
    "Autoscale",
    "Decision",
    "Gain",
    "Graph",
    "Meter",
    "Moved",
    "Placement",
    "Rates",
    "Row",
    "Sample",
    "Situation",
    "Stela",
    "Step",
    "Strategy",
    "carried",
    "congested",
    "drawing",
    "etp",
    "propagate",
    "rescaled",
    "samples",
    "spread",
    "table_for",
    "text",
]
