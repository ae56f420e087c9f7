"""Process: a user's own Python with state per key, its lists and maps, timers and windows."""

from weir.operators.process.parts import ListState, MapState
from weir.operators.process.process import Process
from weir.operators.process.process_batch import KeyedBatch, ProcessBatch

__all__ = ["KeyedBatch", "ListState", "MapState", "Process", "ProcessBatch"]
