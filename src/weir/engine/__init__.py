"""Exactly-once batches, without Spark.

* :mod:`~weir.engine.batch`: the driver. :mod:`~weir.engine.batch.driver` is the loop: plan, run, commit, deliver;
  :mod:`~weir.engine.batch.ledger` keeps the checkpoint; :mod:`~weir.engine.batch.handle` is what every query offers
* :mod:`~weir.engine.task`: what runs on servers. :mod:`~weir.engine.task.runtime` runs the operators of a task
* :mod:`~weir.engine.live`: servers that stay for many batches
* :mod:`~weir.engine.steering`: how routing tables and the number of servers change
* :mod:`~weir.engine.exchange`: how rows travel between servers. :mod:`~weir.engine.metrics`: what a batch did
* :mod:`~weir.engine.inspect`: reading checkpoints. :mod:`~weir.engine.documents`: what is written there
* :mod:`~weir.engine.local`: batches in this process; those on Spark are run by :mod:`weir.spark.runner`
"""
