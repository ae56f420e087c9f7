"""What the tasks of a batch report and count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weir.engine.documents import TaskReport, decode_report
from weir.engine.exchange import wire
from weir.errors import EngineError, revived


@dataclass(frozen=True)
class Outcome:
    """What the tasks of a batch reported and counted. Nothing has happened until it is committed."""

    reports: list[TaskReport]
    stats: list[bytes]  # as they came: BatchStats.decode adds them up
    ran_again: str | None = None  # why the batch had to run twice, if it did
    execution: str = "jobs"  # or "live"


def outcome_of(answers: Iterable[tuple[int, bytes]], execution: str = "jobs") -> Outcome:
    """Return the outcome that tasks' answers, kind and payload, amount to; raise what a user's function raised."""
    reports, stats = [], []
    for kind, payload in answers:
        if kind == wire.CONTROL:
            report = decode_report(payload)
            if report.error is not None:
                raise revived(*report.error) or EngineError(report.error[1])
            reports.append(report)
        elif kind == wire.STATISTICS:
            stats.append(payload)
    return Outcome(reports, stats, execution=execution)
