"""Where instances run, and what sending a row from one to another costs. Independent of Spark and of the engine.

* :mod:`~weir.network.distance`: process, host and rack of an instance; the distance of two of them
* :mod:`~weir.network.profile`: latency, bandwidth and serialisation by distance, and the weights that follow
* :mod:`~weir.network.racks`: the rack of each host
* :mod:`~weir.network.locator`: the process, host and rack of every server of a query, as servers move, and as a tree
"""

from weir.network.profile import PAPER, Profile

__all__ = ["PAPER", "Profile"]
