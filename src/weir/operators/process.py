"""Process: the user's own Python, called once per key and batch."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from weir.columns import to_schema
from weir.errors import TopologyError, UnknownColumn, did_you_mean
from weir.operators.base import Operator

STATE = "state"


class Process(Operator):
    """Your own operator: state per key, rows in a defined order, rows out.

    Either subclass it and write :meth:`process`, or pass a function with the same arguments.

    Parameters
    ----------
    function
        ``function(key, rows, state)``, if not subclassed.
    state
        The type of the state: a dataclass or ``msgspec.Struct`` that can be made without arguments. Change
        the object you are given, in place.
    output
        The rows that it emits, as ``{"column": "type"}``; leave out if it emits none.
    order_by
        Columns by which the rows of a key are sorted. The operator then waits for all rows of the batch.
        Without it, rows that are on the key's server already come first; within each part they are sorted
        by their content, so that a task that Spark runs again sees them in the same order.
    columns
        The columns it reads besides the key; None for all.
    merge
        ``merge(one, other)`` returns the state that has seen what both have seen. With it, the operator may
        stand behind groupings that split keys.

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
    ) -> None:
        self._configure(function, state, output, order_by, columns, merge)

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
        self.order_by = (order,) if isinstance(order, str) else tuple(order)
        wanted = columns if columns is not None else type(self).columns
        self.columns = None if wanted is None else tuple(wanted)
        kind: Any = self.state
        if kind is not None:
            is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            if not is_struct and not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
                raise TopologyError(f"{who}: state must be a dataclass or msgspec.Struct type, not {kind!r}")
            make: Any = kind
            try:
                msgspec.msgpack.decode(msgspec.msgpack.encode(make()), type=kind)
            except TypeError as error:
                raise TopologyError(
                    f"{who}: {make.__name__} must be creatable without arguments and hold only data that "
                    f"msgspec can write (numbers, text, bytes, times, lists, dicts, dataclasses): {error}"
                ) from None
            _forget_caches(kind)

    @property
    def configured(self) -> Process:
        """Itself; a subclass with an own ``__init__`` need not call ours."""
        if "output_columns" not in self.__dict__:
            self._configure()
        return self

    @property
    def mergeable(self) -> bool:
        return "merge" in self.__dict__ or type(self).merge is not Process.merge

    def process(self, key: Any, rows: Sequence[Any], state: Any) -> Iterable[Any] | None:
        """Called with a key's rows of a batch, as named tuples; yield or return the rows to emit.

        With ``order_by`` it is called once per key and batch. Without, rows that have to come from another
        server may follow in a second call.
        """
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """The state that has seen what both have seen."""
        raise NotImplementedError

    def expired(self, key: Any, state: Any) -> Iterable[Any] | None:
        """Called when an idle key is let go; may return rows to emit."""
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
        return pa.schema([(STATE, pa.binary())])

    def signature(self) -> dict[str, Any]:
        kind = self.state
        fields = None if kind is None else msgspec.json.schema(kind)
        _forget_caches(kind)
        return {"kind": "Process", "state": fields}


def _forget_caches(kind: Any, seen: set[int] | None = None) -> None:
    """Removes what msgspec notes on dataclasses that it has met.

    A class defined in a notebook or script travels to the executors by value, and those notes cannot travel.
    """
    seen = set() if seen is None else seen
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for part in typing.get_args(kind):
        _forget_caches(part, seen)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if "__msgspec_cache__" in vars(kind):
            del kind.__msgspec_cache__  # type: ignore[attr-defined]
        try:
            hints = typing.get_type_hints(kind)
        except NameError:
            hints = {}
        for part in hints.values():
            _forget_caches(part, seen)
