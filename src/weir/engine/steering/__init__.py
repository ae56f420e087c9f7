"""Learning and scaling while the stream runs: when to decide, and how a decision comes into force.

The decisions themselves are made in :mod:`weir.locality` and :mod:`weir.elasticity`.
"""
