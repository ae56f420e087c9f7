"""Exactly-once batches, without Spark.

* :mod:`~weir.engine.driver`: the loop: plan, run, commit, deliver. :mod:`~weir.engine.ledger`: its book-keeping in the
  checkpoint; :mod:`~weir.engine.documents`: what is written down
* :mod:`~weir.engine.server`: one server in one step; :mod:`~weir.engine.exchange`: how rows travel between servers
* :mod:`~weir.engine.learning`, :mod:`~weir.engine.rescale`: how routing tables and servers change
* :mod:`~weir.engine.metrics`: what a batch did
* :mod:`~weir.engine.handle`: what every query offers its user
* :mod:`~weir.engine.in_process`: batches in this process; those on Spark are run by :mod:`weir.spark.runner`
"""
