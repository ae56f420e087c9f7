"""Would locality-aware routing help with this data? Start with :func:`advise`.

===================== ===================================================================
``advice.py``         :func:`advise`: checks, counts, judges, recommends, writes tables to start a query with
``counts.py``         what is to be counted, and the counts
``counting.py``       chooses the reader
``files.py``          the reader for files, with pyarrow (``weir.spark.counting`` is the other)
``trial.py``          learns tables from one part of a stream, and scores them on another
``judge.py``          the figures that advice rests on
``recommendation.py`` the verdict and its reasons
===================== ===================================================================
"""

from weir.advise.advice import advise

__all__ = ["advise"]
