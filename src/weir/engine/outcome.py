"""What the tasks of a batch report and count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weir.engine.documents import TaskReport, decode_report
from weir.engine.exchange import wire


@dataclass(frozen=True)
class Outcome:
    """What the tasks of a batch reported and counted. Nothing has happened until it is committed."""

    reports: list[TaskReport]
    stats: list[bytes]  # as they came: BatchStats.decode adds them up
    ran_again: str | None = None  # why the batch had to run twice, if it did
    execution: str = "jobs"  # or "live"


def outcome_of(answers: Iterable[tuple[int, bytes]], execution: str = "jobs") -> Outcome:
    """Return the outcome that tasks' answers, kind and payload, amount to."""
    reports, stats = [], []
    for kind, payload in answers:
        if kind == wire.CONTROL:
            reports.append(decode_report(payload))
        elif kind == wire.STATISTICS:
            stats.append(payload)
    return Outcome(reports, stats, execution=execution)
