"""Process: the user's own Python, called with the rows of a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from weir.columns import column_names, to_schema
from weir.errors import TopologyError, UnknownColumn, did_you_mean
from weir.operators.base import Operator
from weir.operators.initial import checked_rows
from weir.operators.instance import Context, Instance, one_array
from weir.operators.process.parts import (
    PART_COLUMNS,
    decode_part,
    encode_part,
    parts_of,
    restored,
    schema_part,
)
from weir.operators.process.process_instance import STATE, ProcessInstance
from weir.operators.process.state_types import extends, forget_caches, let_clear, properties_of
from weir.operators.process.timed_process import TimedProcess
from weir.operators.process.windowed_process import WindowedProcess
from weir.operators.timers import CLOCKS, Timer, Timers, WindowSpan
from weir.values import to_python

if TYPE_CHECKING:
    from weir.graph.model import Node


class Process(Operator):
    """Your own operator: state per key, rows in a defined order, rows out.

    Either subclass it and write :meth:`process`, or pass a function with the same arguments.

    Parameters
    ----------
    function
        ``function(key, rows, state)``, if not subclassed.
    state
        The type of the state: a dataclass or ``msgspec.Struct`` that can be made without arguments. Change
        the object you are given, in place. Fields that are a :class:`~weir.ListState` or :class:`~weir.MapState` are
        stored element by element. ``state.clear()`` forgets the key: with its next row it begins anew.
    output
        The rows that it emits, as ``{"column": "type"}``; leave out if it emits none.
    order_by
        Columns by which the rows of a key are sorted. All rows of a batch then come in one call. Without it, the
        function may be called several times per key and batch, each time with rows sorted by their content.
    columns
        The columns it reads besides the key; None for all.
    merge
        ``merge(one, other)`` returns the state that has seen what both have seen. With it, the operator may
        stand behind groupings that split keys, and in session windows.
    timers
        The clocks by which it sets timers: ``"event"``, ``"processing"`` or both. ``function`` then takes the key's
        :class:`~weir.operators.Timers` as a fourth argument, and :meth:`on_timer` is called when one goes off.
    on_timer, closed
        ``on_timer(key, timer, state, timers)`` and ``closed(key, window, state)``, if not subclassed. In event-time
        windows there is a state per key and window, and :meth:`closed` is called when a window closes.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Seen:
    ...     rows: int = 0
    >>> class EveryThird(Process):
    ...     state = Seen
    ...     output = {"topic": "string", "rows": "long"}
    ...     def process(self, key, rows, state):
    ...         for row in rows:
    ...             state.rows += 1
    ...             if state.rows % 3 == 0:
    ...                 yield {"topic": key, "rows": state.rows}
    >>> seen = Seen()
    >>> list(EveryThird().process("spark", [None] * 7, seen))
    [{'topic': 'spark', 'rows': 3}, {'topic': 'spark', 'rows': 6}]
    """

    stateful = True
    takes_side = True
    windowed = True
    state: Any = None
    output_columns: pa.Schema
    output: Any = None
    order_by: Sequence[str] = ()
    columns: Sequence[str] | None = None

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        state: Any = None,
        output: Any = None,
        order_by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        timers: str | Sequence[str] | None = None,
        on_timer: Callable[..., Any] | None = None,
        closed: Callable[..., Any] | None = None,
    ) -> None:
        self._configure(function, state, output, order_by, columns, merge)
        self._configure_time(timers, on_timer, closed)

    def _configure(
        self,
        function: Callable[..., Any] | None = None,
        state: Any = None,
        output: Any = None,
        order_by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        who = type(self).__name__
        if function is not None:
            self.process = function  # type: ignore[method-assign]
        elif type(self).process is Process.process:
            raise TopologyError(
                f"{who}: pass a function, or subclass Process and write process(self, key, rows, state)"
            )
        if merge is not None:
            self.merge = merge  # type: ignore[method-assign, assignment]
        if state is not None:
            self.state = state
        declared = output if output is not None else type(self).output
        self.output_columns = pa.schema([]) if declared is None else to_schema(declared)
        order = order_by if order_by is not None else type(self).order_by
        self.order_by = column_names("order_by", order)
        wanted = columns if columns is not None else type(self).columns
        self.columns = None if wanted is None else column_names("columns", wanted)
        kind: Any = self.state
        if kind is not None:
            is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            if not is_struct and not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
                raise TopologyError(f"{who}: state must be a dataclass or msgspec.Struct type, not {kind!r}")
            make: Any = kind
            try:
                data = msgspec.msgpack.encode(make(), enc_hook=encode_part)
                msgspec.msgpack.decode(data, type=kind, dec_hook=decode_part)
            except TypeError as error:
                raise TopologyError(
                    f"{who}: {make.__name__} must be creatable without arguments and hold only data that "
                    f"msgspec can write (numbers, text, bytes, times, lists, dicts, dataclasses): {error}"
                ) from None
            forget_caches(kind)
            let_clear(kind)
            if self.mergeable and parts_of(kind):
                raise TopologyError(
                    f"{who}: a state with a ListState or MapState cannot be merged; use list and dict, or no merge"
                )

    def _configure_time(
        self,
        timers: str | Sequence[str] | None = None,
        on_timer: Callable[..., Any] | None = None,
        closed: Callable[..., Any] | None = None,
    ) -> None:
        who = type(self).__name__
        wanted = type(self).timers if timers is None else timers
        self.timers = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        for clock in self.timers:
            if clock not in CLOCKS:
                raise TopologyError(f'{who}: timers={clock!r}: expected "event", "processing" or both')
        if on_timer is not None:
            self.on_timer = on_timer  # type: ignore[method-assign]
        if closed is not None:
            self.closed = closed  # type: ignore[method-assign]
        self.windowed = not parts_of(self.state)
        if self.timers and not self.windowed:
            raise TopologyError(
                f"{who}: timers and a ListState or MapState cannot go together; use list and dict"
            )
        if self.has("on_timer") != bool(self.timers):
            raise TopologyError(
                f'{who}: timers="event" (or "processing") and on_timer(key, timer, state, timers) belong together'
            )

    def prepare(self) -> None:
        """Complete the description of a subclass whose own ``__init__`` does not call ours."""
        if "output_columns" not in self.__dict__:
            self._configure()
            self._configure_time()

    def has(self, method: str) -> bool:
        """Return whether one of the optional methods was written, in a subclass or as a function."""
        return method in self.__dict__ or getattr(type(self), method) is not getattr(Process, method)

    @property
    def mergeable(self) -> bool:
        return self.has("merge")

    @property
    def emits_early(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        return bool(self.order_by)

    def instance(self, context: Context) -> Instance:
        if context.node.window is not None:
            return WindowedProcess(self, context)
        if self.timers:
            return TimedProcess(self, context)
        return ProcessInstance(self, context)

    def process(self, key: Any, rows: Sequence[Any], state: Any, *side: Any) -> Iterable[Any] | None:
        """Called with a key's rows of a batch, as named tuples; yield or return the rows to emit.

        With ``order_by`` it is called once per key and batch. Without, rows that have to come from another
        server may follow in a second call, and behind :class:`~weir.Consistent` or :class:`~weir.Weighted`, where
        servers work on parts of a key, there may be more: each has the state that the last one has left.
        """
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """Return the state that has seen what both have seen."""
        raise NotImplementedError

    def expired(self, key: Any, state: Any) -> Iterable[Any] | None:
        """Called when an idle key is let go; may return rows to emit."""
        return None

    def closed(self, key: Any, window: WindowSpan, state: Any) -> Iterable[Any] | None:
        """Called once when a window of a key closes, with the window's start and end; may return rows to emit."""
        return None

    def on_timer(self, key: Any, timer: Timer, state: Any, timers: Timers) -> Iterable[Any] | None:
        """Called once for each timer that goes off, before the key's rows of that batch; may return rows to emit.

        Timers go off when the watermark, or the clock of a batch, has reached their time, in the order of their times;
        also while no rows come.
        """
        return None

    def needs(self, schema: pa.Schema) -> set[str] | None:
        if self.columns is None:
            return None
        return {*self.columns, *self.order_by}

    def check(self, schema: pa.Schema, where: str) -> None:
        for column in {*(self.columns or ()), *self.order_by}:
            if column not in schema.names:
                raise UnknownColumn(f"{where}: no column {column!r}; {did_you_mean(column, schema.names)}")

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return self.output_columns

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([(STATE, pa.binary()), *(PART_COLUMNS if parts_of(self.state) else ())])

    def initial(self, node: Node, rows: pa.Table, clock: int) -> pa.Table:
        """Return entries from the fields of states; those that rows do not have, or not know, begin as new."""
        fields = properties_of(self.signature()["state"])
        shown = {name if name not in node.key else f"state.{name}": name for name in fields}
        data = checked_rows(node, rows, dict.fromkeys(shown), shown)
        columns = {shown[c]: to_python(one_array(data[c])) for c in data.column_names if c not in node.key}
        states = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        heads = data.select(list(node.key))
        return restored(node, heads, states or [{}] * data.num_rows, fields, clock)

    def signature(self) -> dict[str, Any]:
        kind = self.state
        fields = None if kind is None else msgspec.json.schema(kind, schema_hook=schema_part)
        forget_caches(kind)
        return {"kind": "Process", "state": fields}

    def accepts(self, saved: dict[str, Any]) -> bool:
        return saved["kind"] == "Process" and extends(saved["state"], self.signature()["state"])
