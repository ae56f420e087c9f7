"""Keyed state: immutable segments in a checkpoint, found by the hash of their keys."""

from weir.state.index import group_rows
from weir.state.merge import merge_segments
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.storage import Storage
from weir.state.view import StateView

__all__ = ["H1", "H2", "StateView", "Storage", "entries", "group_rows", "merge_segments", "tombstones"]
