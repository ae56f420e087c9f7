"""What every operator answers about itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from weir.errors import TopologyError

if TYPE_CHECKING:
    from weir.graph.model import Node
    from weir.operators.instance import Context, Instance
    from weir.operators.side_input import SideInput


class Operator:
    """Base of all operators: plain data that says what it needs, what it emits and what it keeps.

    The engine never asks for an operator's class, only for what is written here. So one that you write gets
    everything that ours get: state that is saved, moved and scaled with its keys, replays, metrics.

    * ``stateful``: it keeps state per key and so needs a key.
    * ``mergeable``: partial states of one key, kept on several servers, can be merged into the true one. Only
      such operators may stand behind a grouping that splits keys.
    * ``passes_rows``: operators behind it see the rows that came in (as the papers' counters do), rather than
      rows of its own making.
    * ``emits_early``: rows leave it as they come, before its state is final for the batch.
    * ``waits``: it must see all rows of a batch together.
    * ``windowed``: it can work in event-time windows; ``tells_early``: and tell their values before they close.
    * ``timers``: the clocks by which it sets timers, ``"event"`` and ``"processing"``.
    * ``sides``: it takes so many different streams. Rows of each come with their own columns; where one schema stands
      for all of them, a column ``c`` of side 1 is called ``1:c`` there, unless it belongs to the key.
    * ``outer_sides``: sides whose rows go on even without a key: nothing is kept of them.
    * ``takes_side``: its functions can get a side input with their rows. ``side``: the one they get.
    * ``lateness``: how late rows may be, in µs of event time, if it knows event time without a window; and
      ``time_columns``: the column of each side that it takes event time from.
    * ``takes_watermark``: it gets the watermark where its stream has event time, without dropping late rows.
    * ``reads_source``: what reaches it says what to read, and it emits the rows. ``recurs``: partitions come back with
      new rows, so that something can be learnt about them. ``max_bytes``: of files in a batch.
    """

    stateful: ClassVar[bool] = False
    windowed: bool = False
    tells_early: ClassVar[bool] = False
    timers: Sequence[str] = ()
    sides: ClassVar[int] = 1
    outer_sides: Sequence[int] = ()
    takes_side: ClassVar[bool] = False
    lateness: int | None = None
    time_columns: Sequence[str] = ()
    takes_watermark: ClassVar[bool] = False
    side: SideInput | None = None
    reads_source: ClassVar[bool] = False
    recurs: bool = False
    max_bytes: int | None = None

    @property
    def mergeable(self) -> bool:
        return False

    @property
    def passes_rows(self) -> bool:
        return False

    @property
    def emits_early(self) -> bool:
        return not self.stateful

    @property
    def waits(self) -> bool:
        return False

    def prepare(self) -> None:
        """Complete its own description; called once, when it becomes part of an application."""

    def needs(self, schema: pa.Schema) -> set[str] | None:
        """Return the columns it reads besides its key; None for all of them."""
        return None

    def check(self, schema: pa.Schema, where: str) -> None:
        """Raise a TopologyError if it cannot work on rows of this schema."""

    def check_followed(self, by: str, where: str) -> None:
        """Raise a TopologyError if it does not say what an operator behind it, ``by``, gets."""

    def emits(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows it emits, given that of the rows it gets."""
        raise NotImplementedError

    def updates(self, schema: pa.Schema, heads: Sequence[pa.Field]) -> pa.Schema | None:
        """Return what a sink receives of it, if that is not what it emits.

        ``heads`` are the fields of its key and window.
        """
        return None

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return what it keeps per key, without the key columns."""
        return pa.schema([])

    def initial(self, node: Node, rows: pa.Table, clock: int) -> pa.Table:
        """Return the state entries of keys, from rows with what :func:`weir.read_state` shows of them.

        :mod:`weir.operators.initial` has what most operators need for it. ``clock``: the time, in µs.
        """
        raise TopologyError(
            f"the rows of a {type(self).__name__} do not say what it keeps; give weir.State(checkpoint, operator)"
        )

    def instance(self, context: Context) -> Instance:
        """Return a running copy for one server in one step of one batch."""
        raise NotImplementedError

    def signature(self) -> dict[str, Any]:
        """Return what must stay the same for its saved state to remain valid, as JSON-able data.

        Its ``kind`` names it; :mod:`weir.operators.saved` reads state back by that alone.
        """
        return {"kind": type(self).__name__}

    def accepts(self, saved: dict[str, Any]) -> bool:
        """Return whether it can go on from state that was saved under another signature.

        State columns that it has added since are null in entries from before.
        """
        return saved == self.signature()

    def describe(self) -> str:
        """Return a short text for people."""
        return type(self).__name__


def combined_schema(sides: Sequence[pa.Schema], key: Sequence[str]) -> pa.Schema:
    """Return one schema for the columns of several sides: the key's under their names, others with their side's number.

    >>> one, other = pa.schema([("k", pa.string()), ("n", pa.int64())]), pa.schema([("k", pa.string())])
    >>> combined_schema([one, other], ["k"]).names
    ['k', '0:n']
    """
    fields = [sides[0].field(k) for k in key]
    for number, schema in enumerate(sides):
        fields += [f.with_name(f"{number}:{f.name}") for f in schema if f.name not in key]
    return pa.schema(fields)


def side_schema(schema: pa.Schema, side: int, key: Sequence[str]) -> pa.Schema:
    """Return the columns of one side from the schema of all of them; see :func:`combined_schema`."""
    mark = f"{side}:"
    own = [f.with_name(f.name.removeprefix(mark)) for f in schema if f.name.startswith(mark)]
    return pa.schema([*(schema.field(k) for k in key), *own])
