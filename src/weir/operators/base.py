"""What every operator tells the planner about itself."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa

WINDOW_START, WINDOW_END = "window_start", "window_end"


class Operator:
    """Base of all operators: plain data that says what it needs, what it emits and what it keeps.

    * ``stateful``: it keeps state per key and so needs a key.
    * ``mergeable``: partial states of one key, kept on several servers, can be merged into the true one. Only
      such operators may stand behind a grouping that splits keys.
    * ``passes_rows``: operators behind it see the rows that came in (as the papers' counters do), rather than
      rows of its own making.
    """

    stateful: ClassVar[bool] = False

    @property
    def mergeable(self) -> bool:
        return False

    @property
    def passes_rows(self) -> bool:
        return False

    def needs(self, schema: pa.Schema) -> set[str] | None:
        """The columns it reads besides its key; None for all of them."""
        return None

    def check(self, schema: pa.Schema, where: str) -> None:
        """Raises a TopologyError if it cannot work on rows of this schema."""

    def emits(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the rows it emits, given that of the rows it gets (after its key columns)."""
        raise NotImplementedError

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """What it keeps per key, without the key columns."""
        return pa.schema([])

    def signature(self) -> dict[str, Any]:
        """What must stay the same for its saved state to remain valid, as JSON-able data."""
        return {"kind": type(self).__name__}
