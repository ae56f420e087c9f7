"""Where instances run and what the way between them costs. Spark-free.

* :mod:`~weir.network.distance`: process, host and rack of an instance; how far two of them are apart
* :mod:`~weir.network.profile`: latency, bandwidth and serialisation by distance, and the weights that follow
"""
