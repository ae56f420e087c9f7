"""Whether saved state fits an application that has changed: as it is, laid out anew, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weir.errors import CheckpointMismatch
from weir.graph.model import Topology


def compare(saved: dict[str, Any], topology: Topology, where: str, drop_state: Iterable[str] = ()) -> bool:
    """Return whether saved state must be laid out anew for this topology; raise if it can't be.

    State that an operator has only added to (see :meth:`~weir.operators.base.Operator.accepts`) stays as it is: entries
    that were saved before are completed when they are read.
    """
    now = topology.signature()
    dropped = set(drop_state)
    for name, before in saved["operators"].items():
        after = now["operators"].get(name)
        if after is None:
            if name in dropped:
                continue
            raise CheckpointMismatch(
                f"{where}: holds the state of operator {name!r}, which the application no longer has. Put it "
                f"back, pass drop_state=[{name!r}] to give its state up, or use another checkpoint folder."
            )
        for aspect, what in (
            ("key", "key"),
            ("operator", "definition"),
            ("window", "window"),
            ("state", "state columns"),
        ):
            if before[aspect] != after[aspect] and not _grown(aspect, topology, name, before, after):
                raise CheckpointMismatch(
                    f"{where}: operator {name!r} has another {what} now ({before[aspect]} → {after[aspect]}), "
                    "so its saved state does not fit. Give the changed operator a new name, or use another "
                    "checkpoint folder."
                )
    if saved["servers"] != now["servers"] or not set(saved["operators"]) <= set(now["operators"]):
        return True
    return any(
        before[aspect] != now["operators"][name][aspect]
        for name, before in saved["operators"].items()
        for aspect in ("placement", "grouping", "held")
    )


def _grown(aspect: str, topology: Topology, name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether what has changed is only more than before, in a way that the operator can go on with."""
    if aspect not in ("operator", "state") or not topology.by_name[name].operator.accepts(before["operator"]):
        return False
    columns = dict(after["state"])
    return all(columns.get(column) == kind for column, kind in before["state"])
