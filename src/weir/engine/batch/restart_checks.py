"""Whether a query may go on from a checkpoint: whether its source and its saved state fit what is started now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from weir.engine.batch.source_batching import SplittableSource
from weir.engine.documents import Commit
from weir.errors import CheckpointMismatch
from weir.graph.declare import LISTED
from weir.graph.model import OperatorSignature, Signature, Topology
from weir.operators.base import Operator
from weir.operators.read import DONE, FILES, is_half_read

ASPECTS = {"key": "key", "operator": "definition", "window": "window", "state": "state columns"}


def check_source(root: str, last: Commit | None, source: str) -> None:
    """Refuse batches of another source than that of the last commit: their numbers mean other rows."""
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


def check_names(feeds: Mapping[str, SplittableSource], last: Commit | None, forget: Collection[str]) -> None:
    """Refuse a source that is gone, where what it was to read next would be forgotten, or read again by a new one."""
    positions = {} if last is None or last.input is None else last.input.positions
    new = [name.removesuffix(LISTED) for name in feeds if name not in positions]
    for name, position in positions.items():
        shown = name.removesuffix(LISTED)
        if name in feeds or shown in forget:
            continue
        if is_half_read(position):
            raise CheckpointMismatch(
                f"source {shown!r} is gone, of whose last batch {position[DONE]} of {position[FILES]} files have been "
                "read. Start once more with a source of this name, or pass over the others: "
                f'forget={{"positions": [{shown!r}]}}.'
            )
        if new and DONE not in position:
            raise CheckpointMismatch(
                f"source {shown!r}, of which the checkpoint knows how far it was read, is gone, and {new[0]!r} is new. "
                "Give the same topics the name that they had. If these are others, pass "
                f'forget={{"positions": [{shown!r}]}}.'
            )


def compare(saved: Signature, topology: Topology, where: str, drop_state: Iterable[str] = ()) -> bool:
    """Return whether saved state must be laid out anew for this topology; raise if it can't be.

    State that an operator has only added to (see :meth:`~weir.operators.base.Operator.accepts`) stays as it is: entries
    that were saved before are completed when they are read.
    """
    now, dropped = topology.signature(), set(drop_state)
    for name in sorted(dropped & {*now.operators}):
        raise CheckpointMismatch(
            f"drop_state=[{name!r}]: the application has this operator, and its state is kept. Leave it out; for an "
            "operator that starts anew, use another name."
        )
    for name, before in saved.operators.items():
        after = now.operators.get(name)
        if after is None:
            if name in dropped:
                continue
            raise CheckpointMismatch(
                f"{where}: holds the state of operator {name!r}, which the application no longer has. Put it "
                f"back, pass drop_state=[{name!r}] to give its state up, or use another checkpoint folder."
            )
        for aspect, what in ASPECTS.items():
            old, new = getattr(before, aspect), getattr(after, aspect)
            grown = aspect in ("operator", "state") and _grown(topology.by_name[name].operator, before, after)
            if old != new and not grown:
                raise CheckpointMismatch(
                    f"{where}: operator {name!r} has another {what} now ({old} → {new}), "
                    "so its saved state does not fit. Give the changed operator a new name, or use another "
                    "checkpoint folder."
                )
    if saved.servers != now.servers or not set(saved.operators) <= set(now.operators):
        return True
    after_all = now.operators
    return any(
        (before.placement, before.grouping) != (after_all[name].placement, after_all[name].grouping)
        for name, before in saved.operators.items()
    )


def _grown(operator: Operator, before: OperatorSignature, after: OperatorSignature) -> bool:
    """Return whether what has changed is only more than before, in a way that the operator can go on with."""
    columns = dict(after.state)
    return operator.accepts(before.operator) and all(columns.get(name) == kind for name, kind in before.state)
