"""Lists and maps in the state of a Process, stored element by element.

An object of the user's is saved whole whenever its key has rows. A list or map in it is not: it leaves only its bounds
there, and each element is an entry of its own beside it, found by hash. So a long list is neither read nor written
for one more element, and its entries move with their key like any others.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.operators.process.state_types import decoder_of
from weir.state.columns import completed
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.view import StateView

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Load = Callable[[list[bytes]], list[Any]]  # elements by where they are; MISSING for those that are not there
MISSING: Any = object()
_order = msgspec.msgpack.Encoder(order="deterministic")
STATE, OWNER, PART, AT = "state", "owner", "part", "at"
PART_COLUMNS = ((OWNER, pa.uint64()), (PART, pa.string()), (AT, pa.binary()))
U64 = NDArray[np.uint64]
Change = tuple[str, bytes, bytes | None]  # field, where in it, the element; None if it is gone


class Part:
    """What lists and maps have in common: elements that are known by now, and those that have changed."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._changed: set[Any] = set()
        self._load: Load | None = None
        self._load_all: Callable[[], Iterable[tuple[bytes, Any]]] | None = None
        self._key_type: Any = Any

    def bind(
        self, load: Load, load_all: Callable[[], Iterable[tuple[bytes, Any]]], key_type: Any = Any
    ) -> None:
        """Say where elements come from that are not known yet, and what the keys of a map are."""
        self._load, self._load_all, self._key_type = load, load_all, key_type

    def changes(self) -> Iterator[tuple[bytes, Any]]:
        """Yield where elements have changed, and what they are now; MISSING if they are gone."""
        for at in self._changed:
            yield _order.encode(at), self._known.get(at, MISSING)

    def _get(self, wanted: list[Any]) -> list[Any]:
        unknown = [at for at in wanted if at not in self._known]
        if unknown and self._load is not None:
            values = self._load([_order.encode(at) for at in unknown])
            self._known.update(zip(unknown, values, strict=True))
        return [self._known.get(at, MISSING) for at in wanted]

    def _set(self, at: Any, value: Any) -> None:
        self._known[at] = value
        self._changed.add(at)


class ListState(Part, MutableSequence[T], Generic[T]):
    """A list in the state of a :class:`~weir.Process` of which only what changes is written.

    Appending costs the same however long it is; so does taking from either end. To change an element, assign it: what
    is done to a mutable element in place is not seen. ``insert`` and ``del`` in the middle move what is behind.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Readings:
    ...     last: ListState[float] = field(default_factory=ListState)
    >>> readings = Readings()
    >>> readings.last.extend([1.0, 2.0, 3.0])
    >>> readings.last.popleft(), list(readings.last), readings.last[-1]
    (1.0, [2.0, 3.0], 3.0)
    """

    def __init__(self, values: Iterable[T] = ()) -> None:
        super().__init__()
        self._start = self._end = 0
        self.extend(values)

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, at: Any) -> Any:
        positions = range(self._start, self._end)[at]  # raises as a list does
        return self._get([positions])[0] if isinstance(positions, int) else self._get(list(positions))

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, slice):
            raise TypeError("a ListState takes one element at a time")
        self._set(range(self._start, self._end)[at], value)

    def __delitem__(self, at: Any) -> None:
        if isinstance(at, slice):
            raise TypeError("a ListState gives one element at a time; clear() empties it")
        position = range(self._start, self._end)[at]
        if position == self._start:
            self.popleft()
            return
        for i in range(position - self._start, len(self) - 1):
            self[i] = self[i + 1]
        self._end -= 1
        self._set(self._end, MISSING)

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    def insert(self, at: int, value: T) -> None:
        at = max(0, at + len(self)) if at < 0 else min(at, len(self))
        self.append(value)
        for i in range(len(self) - 1, at, -1):
            self[i] = self[i - 1]
        self[at] = value

    def append(self, value: T) -> None:
        self._set(self._end, value)
        self._end += 1

    def popleft(self) -> T:
        """Remove and return the first element."""
        first: T = self[0]
        self._set(self._start, MISSING)
        self._start += 1
        return first

    def clear(self) -> None:
        for position in range(self._start, self._end):
            self._set(position, MISSING)
        self._start = self._end

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Iterable) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ListState({list(self)})"

    def bounds(self) -> list[int]:
        """Return what the state's own entry remembers of it."""
        return [self._start, self._end]

    @classmethod
    def within(cls, bounds: list[int]) -> ListState[Any]:
        """Return a list whose elements are to be loaded."""
        out: ListState[Any] = cls()
        out._start, out._end = bounds
        return out


class MapState(Part, MutableMapping[K, V], Generic[K, V]):
    """A map in the state of a :class:`~weir.Process` of which only what changes is read and written.

    Looking a key up costs the same however large it is; so does setting and deleting one. ``len`` and iteration read
    all of it; keys come in no order. To change a value, assign it: what is done to it in place is not seen.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Basket:
    ...     amounts: MapState[str, int] = field(default_factory=MapState)
    >>> basket = Basket()
    >>> basket.amounts["tea"] = basket.amounts.get("tea", 0) + 2
    >>> dict(basket.amounts)
    {'tea': 2}
    """

    def __init__(self, values: Any = ()) -> None:
        super().__init__()
        self.update(values)

    def __getitem__(self, key: Any) -> Any:
        (value,) = self._get([key])
        if value is MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set(key, value)

    def __delitem__(self, key: Any) -> None:
        self[key]
        self._set(key, MISSING)

    def __iter__(self) -> Iterator[Any]:
        self._read_all()
        return iter([key for key, value in self._known.items() if value is not MISSING])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, typing.Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MapState({dict(self)})"

    def _read_all(self) -> None:
        if self._load_all is not None:
            for at, value in self._load_all():
                self._known.setdefault(msgspec.msgpack.decode(at, type=self._key_type), value)
            self._load_all = None


PARTS: dict[type, str] = {ListState: "list", MapState: "map"}


def parts_of(kind: Any) -> dict[str, tuple[type, Any, Any]]:
    """Return the lists and maps among a state type's fields: their class, the types of their keys and elements."""
    if kind is None:
        return {}
    out = {}
    for name, hint in typing.get_type_hints(kind).items():
        origin = typing.get_origin(hint) or hint
        if isinstance(origin, type) and issubclass(origin, Part):
            key, *rest = typing.get_args(hint) or (Any, Any)
            out[name] = (origin, key, rest[-1] if rest else key)
    return out


def encode_part(value: Any) -> Any:
    """Return what is saved of a list or map with the rest of its state, for msgspec."""
    if isinstance(value, ListState):
        return value.bounds()
    if isinstance(value, MapState):
        return None
    raise NotImplementedError(f"cannot be saved: {type(value).__name__}")


def decode_part(kind: Any, value: Any) -> Any:
    """Return a list or map of which only that was saved, for msgspec."""
    origin = typing.get_origin(kind) or kind
    if origin is ListState:
        return ListState.within(value)
    if origin is MapState:
        return MapState()
    raise NotImplementedError(f"cannot be read: {kind}")


def schema_part(kind: Any) -> dict[str, Any]:
    """Return what a checkpoint knows of a list's or map's type, for msgspec."""
    origin = typing.get_origin(kind) or kind
    if origin not in PARTS:
        raise NotImplementedError
    schemas = [{} if a is Any else msgspec.json.schema(a) for a in typing.get_args(kind)]
    return {"type": "null", "part": PARTS[origin], "of": schemas}


def identity(key: int, name: str, at: bytes) -> int:
    """Return the second hash of an element's entry."""
    data = key.to_bytes(8, "little") + name.encode() + b"\0" + at
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class PartEntries:
    """The lists and maps in the state of one Process, on one server in one step."""

    def __init__(self, kind: Any, schema: pa.Schema, view: Callable[[], StateView]) -> None:
        self._parts = {
            name: (decoder_of(element, _refuse), key) for name, (_, key, element) in parts_of(kind).items()
        }
        self._schema, self._view = schema, view
        self._encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=encode_part)
        self._open: StateView | None = None
        self._gone: set[int] = set()  # elements of keys that have expired in this very step

    def __bool__(self) -> bool:
        return bool(self._parts)

    def bind(self, state: Any, key_hash: int, key_check: int) -> None:
        """Let the lists and maps of a key's state find their elements."""
        for name, (decoder, key) in self._parts.items():
            part: Part = getattr(state, name)
            part.bind(
                partial(self._load, name, decoder, key_hash, key_check),
                partial(self._all, name, decoder, key_hash, key_check),
                key,
            )

    def changes(self, state: Any) -> list[Change]:
        """Return what has changed in a state's lists and maps."""
        return [
            (name, at, None if value is MISSING else self._encode.encode(value))
            for name in self._parts
            for at, value in getattr(state, name).changes()
        ]

    def written(
        self, key_hash: U64, key_check: U64, changes: Sequence[Sequence[Change]]
    ) -> tuple[pa.Table, int]:
        """Return the entries that changes of some keys make, and how many more there are now."""
        flat = [(number, *change) for number, some in enumerate(changes) for change in some]
        numbers = np.array([number for number, *_ in flat], np.int64)
        owners = key_check[numbers]
        route = key_hash[numbers]
        own = np.array(
            [identity(int(o), n, at) for o, (_, n, at, _) in zip(owners, flat, strict=True)], np.uint64
        )
        dead = np.array([value is None for *_, value in flat], np.bool_)
        before = self._state.find(route, own)[0] >= 0
        before &= ~np.isin(own, np.fromiter(self._gone, np.uint64, len(self._gone)))
        table = pa.table(
            {
                STATE: pa.array([value for *_, value in flat], pa.binary()),
                OWNER: pa.array(owners),
                PART: pa.array([name for _, name, _, _ in flat], pa.string()),
                AT: pa.array([at for _, _, at, _ in flat], pa.binary()),
            }
        )
        written = entries(completed(table, self._schema), route, own, dead=dead)
        added, gone = int((~dead & ~before).sum()), int((dead & before).sum())
        return written.filter(pa.array(~dead | before)), added - gone

    def gone(self, key_hash: U64, key_check: U64) -> pa.Table:
        """Return what marks all elements of some keys as gone."""
        elements = self._state.all_of(np.unique(key_hash))
        elements = elements.filter(pa.compute.is_in(elements[OWNER], pa.array(key_check)))
        self._gone.update(elements[H2].to_pylist())
        return tombstones(elements[H1].to_numpy(), elements[H2].to_numpy(), self._schema)

    @property
    def _state(self) -> StateView:
        if self._open is None:
            self._open = self._view()
        return self._open

    def _load(
        self, name: str, decoder: Any, key_hash: int, key_check: int, wanted: Iterable[bytes]
    ) -> list[Any]:
        own = np.array([identity(key_check, name, at) for at in wanted], np.uint64)
        table, positions = self._state.take(*self._state.find(np.full(len(own), key_hash, np.uint64), own))
        out = [MISSING] * len(own)
        for position, data in zip(positions.tolist(), table[STATE].to_pylist(), strict=True):
            if int(own[position]) not in self._gone:
                out[position] = decoder.decode(data)
        return out

    def _all(self, name: str, decoder: Any, key_hash: int, key_check: int) -> Iterator[tuple[bytes, Any]]:
        elements = self._state.all_of(np.array([key_hash], np.uint64))
        columns = (elements[c].to_pylist() for c in (OWNER, PART, AT, STATE, H2))
        for owner, part, at, data, own in zip(*columns, strict=True):
            if owner == key_check and part == name and own not in self._gone:
                yield at, decoder.decode(data)


def _refuse(kind: Any, value: Any) -> Any:
    raise NotImplementedError("a list or map of lists or maps cannot be stored element by element")


def whole_states(table: pa.Table, parts: dict[str, str]) -> pa.Table:
    """Return the entries of keys alone, with the elements of their lists and maps put back, for people to read.

    ``parts`` has the names of these fields, and whether each is a "list" or a "map".
    """
    if H1 not in table.column_names:
        return table
    main = table.filter(pa.compute.is_null(table[PART]))
    elements: dict[tuple[int, int, str], dict[Any, Any]] = {}
    rest = table.filter(pa.compute.is_valid(table[PART]))
    columns = (rest[c].to_pylist() for c in (H1, OWNER, PART, AT, STATE))
    for key_hash, owner, part, at, data in zip(*columns, strict=True):
        of = elements.setdefault((key_hash, owner, part), {})
        of[msgspec.msgpack.decode(at)] = msgspec.msgpack.decode(data)
    states = []
    for key_hash, key_check, data in zip(*(main[c].to_pylist() for c in (H1, H2, STATE)), strict=True):
        state = msgspec.msgpack.decode(data)
        for name, kind in parts.items():
            of = elements.get((key_hash, key_check, name), {})
            state[name] = (
                [of[at] for at in sorted(of)] if kind == "list" else {str(k): v for k, v in of.items()}
            )
        states.append(msgspec.msgpack.encode(state))
    column = main.column_names.index(STATE)
    return main.set_column(column, main.schema.field(column), pa.array(states, pa.binary()))
