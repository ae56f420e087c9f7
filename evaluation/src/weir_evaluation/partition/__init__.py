"""Partitioners that Weir's own is compared with; ``weir.Locality(partitioner=Metis())`` takes them as any other.

>>> import weir
>>> from weir_evaluation.partition import Metis
>>> weir.Locality(partitioner=Metis()).partitioner
Metis()
"""

from weir.locality.partition import Partitioner
from weir_evaluation.partition.metis import Metis
from weir_evaluation.partition.mtkahypar import MtKaHyPar, available

# by the names that benchmarks give them; None is Weir's own
PARTITIONERS: dict[str, Partitioner | None] = {"multilevel": None, "metis": Metis()}
if available():
    PARTITIONERS["mtkahypar"] = MtKaHyPar()

__all__ = ["PARTITIONERS", "Metis", "MtKaHyPar", "available"]
