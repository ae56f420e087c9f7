"""Places where a test may kill the process, to show what survives.

``WEIR_FAULT="commit-written:3"`` kills the process with SIGKILL when it reaches the point ``commit-written`` of
batch 3. Without the variable a fault point is a dictionary look-up and nothing else.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "plan-written",
    "job-done",
    "commit-written",
    "sink-delivered",
    "migration-written",
    "step-started",
)


def reach(point: str, batch: int) -> None:
    """Dies here if the environment says so."""
    wanted = os.environ.get("WEIR_FAULT")
    if wanted == f"{point}:{batch}":
        os.kill(os.getpid(), signal.SIGKILL)
