"""Which sink is whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weir.engine.documents import DEAD_LETTERS
from weir.errors import TopologyError


def check_sinks(
    leaves: Sequence[str], diverting: Sequence[str], sink: Any, dead_letters: Any
) -> dict[str, Any]:
    """Return the sink of each operator; refuse one sink for several ends, and diverted rows that nobody takes."""
    sinks: dict[str, Any] = {}
    if isinstance(sink, Mapping):
        sinks.update(sink)
    elif sink is not None:
        if len(leaves) != 1:
            raise TopologyError(
                f"the application ends in {len(leaves)} operators ({', '.join(leaves)}); "
                "say which sink is whose: sink={'name': …}"
            )
        sinks[leaves[0]] = sink
    if dead_letters is not None:
        sinks[DEAD_LETTERS] = dead_letters
    if diverting and dead_letters is None:
        raise TopologyError(
            f"operator {diverting[0]!r} diverts failing rows, but there is no dead_letters= sink for them"
        )
    return sinks
