"""Whether a source goes on where the last commit ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weir.engine.documents import Commit
from weir.engine.intake import Feed
from weir.errors import CheckpointMismatch
from weir.graph.declare import LISTED
from weir.operators.file_feed import DONE, FILES, is_half_read


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


def check_names(feeds: Mapping[str, Feed], last: Commit | None, dropped: Collection[str]) -> None:
    """Refuse a source that is gone, where what it was to read next would be forgotten, or read again by a new one."""
    positions = {} if last is None or last.input is None else last.input.positions
    new = [name.removesuffix(LISTED) for name in feeds if name not in positions]
    for name, position in positions.items():
        shown = name.removesuffix(LISTED)
        if name in feeds or shown in dropped:
            continue
        if is_half_read(position):
            raise CheckpointMismatch(
                f"source {shown!r} is gone, of whose last batch {position[DONE]} of {position[FILES]} files have been "
                f"read. Start once more with a source of this name; drop_state=[{shown!r}] passes over the others."
            )
        if new and DONE not in position:
            raise CheckpointMismatch(
                f"source {shown!r}, of which the checkpoint knows how far it was read, is gone, and {new[0]!r} is new. "
                f"Give the same topics the name that they had; pass drop_state=[{shown!r}] if these are others."
            )
