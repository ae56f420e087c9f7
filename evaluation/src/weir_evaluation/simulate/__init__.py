"""A queueing simulator for what no machine at hand can hold.

It drives the very routers that the engine uses through streams of messages, workers of any strength that may
change, and networks of any distance, and measures what became of balance, memory, queues and latency.

* :mod:`~weir_evaluation.simulate.streams`: who is in the stream (keys), and when it comes (arrivals)
* :mod:`~weir_evaluation.simulate.cluster`: how strong the workers are, and when that changes
* :mod:`~weir_evaluation.simulate.network`: how far sources and workers are from each other
* :mod:`~weir_evaluation.simulate.run`: message by message through one keyed edge
* :mod:`~weir_evaluation.simulate.pipeline`: row by row through a chain of operators, as fast as it goes
* :mod:`~weir_evaluation.simulate.measures`: what is recorded
* :mod:`~weir_evaluation.simulate.dag`: rates through a whole graph of operators
"""

from weir_evaluation.simulate.cluster import SimulatedCluster
from weir_evaluation.simulate.measures import Result, imbalance, memory
from weir_evaluation.simulate.network import SimulatedNetwork
from weir_evaluation.simulate.pipeline import PipelineResult, PipelineStage, saturate
from weir_evaluation.simulate.run import simulate
from weir_evaluation.simulate.streams import Arrivals, SimulatedStream, evolving, page_views, words, zipf

__all__ = [
    "Arrivals",
    "PipelineResult",
    "PipelineStage",
    "Result",
    "SimulatedCluster",
    "SimulatedNetwork",
    "SimulatedStream",
    "evolving",
    "imbalance",
    "memory",
    "page_views",
    "saturate",
    "simulate",
    "words",
    "zipf",
]
