"""Whether a query is alive and ready: for supervisors and load balancers, which ask without a token."""

from __future__ import annotations

from typing import Any

from weir.engine.metrics.progress import Progress
from weir.watch.reader import CheckpointReader

RUNS = ("running", "presumed running")


def health_of(reader: CheckpointReader, lag: float | None = None) -> dict[str, Any]:
    """Return whether a query is ``ready``, its ``state``, the last ``batch``, its ``lag``, and why it is not ready.

    It is ready while a driver holds the checkpoint and takes batches, neither compiling nor stopped, and while the last
    batch was no more than ``lag`` seconds behind, if that is given.
    """
    status, commit = reader.status(), reader.latest
    did = Progress.from_dict(commit.progress) if commit is not None and commit.progress else None
    behind = None if did is None else did.load.lag
    why = ""
    if status["state"] not in RUNS:
        why = f"the query is {status['state']}"
    elif status.get("preparing"):
        why = "the query is being prepared"
    elif lag is not None and behind is not None and behind > lag:
        why = f"the last batch was {behind:.1f} s behind, more than {lag:g} s"
    return {
        "ready": not why,
        "state": status["state"],
        "batch": None if commit is None else commit.batch,
        "lag": behind,
        "why": why,
    }
