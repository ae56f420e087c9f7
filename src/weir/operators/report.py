"""What one operator reports of one task."""

from __future__ import annotations

import msgspec


class OperatorReport(msgspec.Struct):
    """What one operator did in one task."""

    rows_in: int = 0
    rows_out: int = 0
    null_keys: int = 0
    late: int = 0
    diverted: int = 0
    busy: float = 0.0
    waited: float = 0.0  # over all rows: seconds from the task's start to the row's turn
    ages: dict[int, int] = {}  # rows by their time since the source, see weir.engine.metrics.latency
    pairs: int = 0  # distinct keys that this instance worked on: its share of the (server, key) pairs
    max_event_time: int | None = None
    keys_delta: int = 0  # keys that came into being minus keys that went
