"""What the tasks of a batch report and count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from weir.engine.documents import TaskReport
from weir.engine.exchange import wire
from weir.locality.stats import BatchStats


@dataclass(frozen=True)
class Outcome:
    """What the tasks of a batch reported and counted. Nothing has happened until it is committed."""

    reports: list[TaskReport]
    stats: list[BatchStats]
    ran_again: str | None = None  # why the batch had to run twice, if it did
    execution: str = "jobs"  # or "live"


def outcome_of(answers: Iterable[tuple[int, bytes]], execution: str = "jobs") -> Outcome:
    """Return the outcome that tasks' answers, kind and payload, amount to."""
    reports, stats = [], []
    for kind, payload in answers:
        if kind == wire.CONTROL:
            reports.append(msgspec.json.decode(payload, type=TaskReport))
        elif kind == wire.STATISTICS:
            stats.append(BatchStats.from_ipc(payload))
    return Outcome(reports, stats, execution=execution)
