"""Whether a source goes on where the last commit ended."""

from __future__ import annotations

from weir.engine.documents import Commit
from weir.errors import CheckpointMismatch


def check_source(root: str, last: Commit | None, source: str) -> None:
    """Refuse batches of another source than the one that the last commit has had: their numbers mean other rows."""
    if last is not None and last.source and source and last.source != source:
        raise CheckpointMismatch(
            f"{root}: the folder 'source', Spark's own record of what it has read, is not the one that the commits "
            "were made with: it was deleted or replaced. Going on would skip rows or count them twice. Restore it "
            "from the same copy as the commits, or start with an empty checkpoint folder."
        )


def check_next(root: str, last: Commit | None, batch: int) -> None:
    """Refuse any batch but the next one."""
    expected = 0 if last is None else last.handed_over + 1
    if batch != expected:
        raise CheckpointMismatch(
            f"{root}: the source hands over batch {batch}, but batch {expected} is next. The folder 'source' and the "
            "commits are not of one run: part of the checkpoint was deleted or replaced. Restore both from the same "
            "copy, or start with an empty checkpoint folder."
        )
