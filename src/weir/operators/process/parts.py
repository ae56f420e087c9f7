"""Lists and maps in the state of a Process that need not be read or written as a whole.

A short one is saved with the rest of its state, like any other field. A long one leaves only its bounds there, and each
element is an entry of its own beside it, found by hash: it is neither read nor written for one more element. Entries of
elements have the first hash of their key, so they move and scale with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import types
import typing
from collections import deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    MutableMapping,
    MutableSequence,
    Sequence,
    ValuesView,
)
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.errors import TopologyError
from weir.operators.initial import keyed_entries
from weir.operators.process.state_types import JSON_TYPES, Fits, StateType, decoder_of, fits_of
from weir.state.segment import H1, H2, completed, entries, tombstones
from weir.state.view import Neighbours, StateView

if TYPE_CHECKING:
    from weir.graph.model import Node

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
U64 = NDArray[np.uint64]
Change = tuple[str, bytes, bytes | None]  # field, where in it, the element; None if it is gone
MISSING: Any = object()
SMALL = 1024  # bytes of elements up to which a list or map is saved with its state
FEW = 32  # elements up to which one is looked at that may have become short again
AHEAD = 256  # elements of a long list that are fetched at once, at most, when it is read in order
STATE, OWNER, PART, AT = "state", "owner", "part", "at"
PART_COLUMNS = ((OWNER, pa.uint64()), (PART, pa.string()), (AT, pa.binary()))
_order = msgspec.msgpack.Encoder(order="deterministic")
# what msgspec reads as it was written, without being told
_AS_READ = (int, str, bytes, bool, type(None), Any)


class ListState(MutableSequence[T], Generic[T]):
    """A list in the state of a :class:`~weir.Process`: of a long one, only what changes is written.

    Appending costs the same however long it is; so does taking from either end. To change an element, assign it: what
    is done to a mutable element in place may not be seen. ``insert`` and ``del`` in the middle move what is behind.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Readings:
    ...     last: ListState[float] = field(default_factory=ListState)
    >>> readings = Readings()
    >>> readings.last.extend([1.0, 2.0, 3.0])
    >>> readings.last.popleft(), list(readings.last), readings.last[-1]
    (1.0, [2.0, 3.0], 3.0)
    """

    __slots__ = ("_left", "_of")

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._of: Any = deque(values)  # or a StoredList
        self._left: StoredList | None = None  # entries of which nothing stays

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self._of[at] if self._of.__class__ is StoredList else list(self._of)[at]
        return self._of[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, slice):
            raise TypeError("a ListState takes one element at a time")
        self._of[at] = value

    def __delitem__(self, at: Any) -> None:
        if isinstance(at, slice):
            raise TypeError("a ListState gives one element at a time; clear() empties it")
        del self._of[at]

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._of))

    def insert(self, at: int, value: T) -> None:
        self._of.insert(at, value)

    def append(self, value: T) -> None:
        self._of.append(value)

    def popleft(self) -> T:
        """Remove and return the first element."""
        return self._of.popleft()

    def clear(self) -> None:
        self._of.clear()

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Iterable) else NotImplemented

    def __repr__(self) -> str:
        return f"ListState({list(self)})"

    def packed(self) -> Any:
        """Return what is saved of it with the rest of its state: its elements, or where they are."""
        of = self._of
        if of.__class__ is StoredList and not of.is_short:
            return [of.start, of.end]
        data = _element.encode(list(of))
        if len(data) > SMALL:
            if of.__class__ is not StoredList:
                self._of = StoredList(0, 0)
                self._of.extend(of)
            return [self._of.start, self._of.end]
        if of.__class__ is StoredList:
            self._of, self._left = deque(of), of
            of.clear()
        return msgspec.Raw(b"\x91" + data)

    @classmethod
    def unpacked(cls, value: Any, kind: Any = None) -> ListState[Any]:
        """Return a list of which that was saved; ``kind`` is that of its elements, if these have to be converted."""
        out: ListState[Any] = cls.__new__(cls)
        out._left = None
        if len(value) == 1:
            out._of = deque(value[0] if kind is None else msgspec.convert(value[0], kind))
        else:
            out._of = StoredList(*value)
        return out


class MapState(MutableMapping[K, V], Generic[K, V]):
    """A map in the state of a :class:`~weir.Process`: of a long one, only what changes is read and written.

    Looking a key up costs the same however large it is; so does setting and deleting one. ``len`` and iteration read
    all of it; keys come in no order. To change a value, assign it: what is done to it in place may not be seen.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Basket:
    ...     amounts: MapState[str, int] = field(default_factory=MapState)
    >>> basket = Basket()
    >>> basket.amounts["tea"] = basket.amounts.get("tea", 0) + 2
    >>> dict(basket.amounts)
    {'tea': 2}
    """

    __slots__ = ("_left", "_of")

    def __init__(self, values: Any = ()) -> None:
        self._of: Any = dict(values)  # or a StoredMap
        self._left: StoredMap | None = None

    def __getitem__(self, key: Any) -> Any:
        return self._of[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._of[key]

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._of))

    def __len__(self) -> int:
        return len(self._of)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._of.get(key, default)

    def keys(self) -> KeysView[Any]:
        return dict(self._of).keys()

    def values(self) -> ValuesView[Any]:
        return dict(self._of).values()

    def items(self) -> ItemsView[Any, Any]:
        return dict(self._of).items()

    def clear(self) -> None:
        self._of.clear()

    def __repr__(self) -> str:
        return f"MapState({dict(self)})"

    def packed(self) -> Any:
        """Return what is saved of it with the rest of its state: its elements, or that they are elsewhere."""
        of = self._of
        if of.__class__ is StoredMap and not of.is_short:
            return None
        data = _element.encode(dict(of) if of.__class__ is StoredMap else of)
        if len(data) > SMALL:
            if of.__class__ is not StoredMap:
                self._of = StoredMap()
                self._of.update(of)
            return None
        if of.__class__ is StoredMap:
            self._of, self._left = dict(of), of
            of.clear()
        return msgspec.Raw(data)

    @classmethod
    def unpacked(cls, value: Any, kind: Any = None) -> MapState[Any, Any]:
        """Return a map of which that was saved; ``kind`` is that of its dict, if it has to be converted."""
        out: MapState[Any, Any] = cls.__new__(cls)
        out._left = None
        if value is None:
            out._of = StoredMap()
        else:
            out._of = value if kind is None else msgspec.convert(value, kind)
        return out


class _Stored:
    """Elements that are entries of their own: those that are known by now, and those that have changed."""

    # elements by where they are, MISSING among them
    get_some: Callable[[list[bytes]], list[Any]] | None = None
    get_all: Callable[[], Iterable[tuple[bytes, Any]]] | None = None
    key_type: Any = Any

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}
        self.changed: set[Any] = set()

    def changes(self) -> Iterator[tuple[bytes, Any]]:
        """Yield where elements have changed, and what they are now; MISSING if they are gone."""
        for at in self.changed:
            yield _order.encode(at), self.known[at]

    def _fetch(self, wanted: Sequence[Any]) -> None:
        unknown = [at for at in wanted if at not in self.known]
        if unknown and self.get_some is not None:
            self.known.update(zip(unknown, self.get_some([_order.encode(at) for at in unknown]), strict=True))

    def _put(self, at: Any, value: Any) -> None:
        self.known[at] = value
        self.changed.add(at)


class StoredList(_Stored, MutableSequence[Any]):
    """A list whose elements are entries, numbered from ``start`` to ``end``."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self.start, self.end = start, end
        # where a reader in order goes on, and how far we look ahead for it
        self._next, self._ahead = start, 1

    @property
    def is_short(self) -> bool:
        """Whether it is known to have few elements, which are all here."""
        return len(self) <= FEW and all(at in self.known for at in range(self.start, self.end))

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, at: Any) -> Any:
        positions = range(self.start, self.end)[at]  # raises as a list does
        if not isinstance(positions, int):
            self._fetch(positions)
            return [self.known[position] for position in positions]
        if positions not in self.known:
            self._ahead = min(2 * self._ahead, AHEAD) if positions == self._next else 1
            self._next = min(positions + self._ahead, self.end)
            self._fetch(range(positions, self._next))
        return self.known[positions]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._put(range(self.start, self.end)[at], value)

    def __delitem__(self, at: Any) -> None:
        position = range(self.start, self.end)[at]
        if position == self.start:
            self.popleft()
            return
        for i in range(position - self.start, len(self) - 1):
            self[i] = self[i + 1]
        self.end -= 1
        self._put(self.end, MISSING)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

    def insert(self, at: int, value: Any) -> None:
        at = max(0, at + len(self)) if at < 0 else min(at, len(self))
        self.append(value)
        for i in range(len(self) - 1, at, -1):
            self[i] = self[i - 1]
        self[at] = value

    def append(self, value: Any) -> None:
        self._put(self.end, value)
        self.end += 1

    def popleft(self) -> Any:
        first = self[0]
        self._put(self.start, MISSING)
        self.start += 1
        return first

    def clear(self) -> None:
        for position in range(self.start, self.end):
            self._put(position, MISSING)
        self.start = self.end

    def _fetch(self, wanted: Sequence[Any]) -> None:
        if len(wanted) > AHEAD and self.get_all is not None:
            for at, value in self.get_all():
                self.known.setdefault(msgspec.msgpack.decode(at), value)
            self.get_all = None
        super()._fetch(wanted)


class StoredMap(_Stored, MutableMapping[Any, Any]):
    """A map whose elements are entries."""

    @property
    def is_short(self) -> bool:
        """Whether it is known to have few elements, which are all here."""
        return self.get_all is None and len(self.known) <= FEW

    def __getitem__(self, key: Any) -> Any:
        self._fetch((key,))
        value = self.known.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._put(key, value)

    def __delitem__(self, key: Any) -> None:
        self[key]
        self._put(key, MISSING)

    def __iter__(self) -> Iterator[Any]:
        if self.get_all is not None:
            for at, value in self.get_all():
                self.known.setdefault(msgspec.msgpack.decode(at, type=self.key_type), value)
            self.get_all = self.get_some = None
        return iter([key for key, value in self.known.items() if value is not MISSING])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        for key in self:
            self._put(key, MISSING)


PARTS: dict[type, str] = {ListState: "list", MapState: "map"}


def parts_of(kind: Any) -> dict[str, tuple[type, Any, Any]]:
    """Return the lists and maps among a state type's fields: their class, the types of their keys and elements."""
    if kind is None:
        return {}
    out = {}
    for name, hint in typing.get_type_hints(kind).items():
        origin = typing.get_origin(hint) or hint
        if origin in PARTS:
            key, *rest = typing.get_args(hint) or (Any, Any)
            out[name] = (origin, key, rest[-1] if rest else key)
    return out


def encode_part(value: Any) -> Any:
    """Return what is saved of a list or map with the rest of its state, for msgspec."""
    kind: Any = value.__class__
    if kind in PARTS:
        return kind.packed(value)
    raise NotImplementedError(f"cannot be saved: {type(value).__name__}")


def decode_part(kind: Any, value: Any, verify: bool = False) -> Any:
    """Return a list or map of which that was saved, for msgspec; with ``verify``, look at every element's type."""
    found = _reading.get(id(kind))
    if found is None:  # by its identity: to hash a type takes longer than all else here
        origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
        if origin not in PARTS:
            raise NotImplementedError(f"cannot be read: {kind}")
        plain: Any = list if origin is ListState else dict
        plain = types.GenericAlias(plain, arguments) if arguments else plain
        found = kind, origin.unpacked, plain, None if all(a in _AS_READ for a in arguments) else plain
        _reading[id(kind)] = found
    return found[1](value, found[2 if verify else 3])


_element = msgspec.msgpack.Encoder(enc_hook=encode_part)
# type's identity → itself, what reads it, its elements' type, the same if these must be converted
_reading: dict[int, tuple[Any, Callable[..., Any], Any, Any]] = {}


def schema_part(kind: Any) -> dict[str, Any]:
    """Return what a checkpoint knows of a list's or map's type, for msgspec."""
    origin = typing.get_origin(kind) or kind
    if origin not in PARTS:
        raise NotImplementedError
    schemas = [{} if a is Any else msgspec.json.schema(a) for a in typing.get_args(kind)]
    return {"type": "null", "part": PARTS[origin], "of": schemas}


def _list_fits(element: Fits | None = lambda values: True) -> Fits | None:
    if element is None:
        return None
    return lambda lists: (
        {ListState}.issuperset(map(type, lists))
        and element(list(chain.from_iterable(one._of for one in lists if one._of.__class__ is deque)))
    )


def _map_fits(
    key: Fits | None = lambda values: True, value: Fits | None = lambda values: True
) -> Fits | None:
    if key is None or value is None:
        return None

    def fit(maps: list[Any]) -> bool:
        if not {MapState}.issuperset(map(type, maps)):
            return False
        dicts = [one._of for one in maps if one._of.__class__ is dict]
        keys, values = chain.from_iterable(dicts), chain.from_iterable(map(dict.values, dicts))
        return key(list(keys)) and value(list(values))

    return fit


_FITS: dict[Any, Callable[..., Fits | None]] = {ListState: _list_fits, MapState: _map_fits}


@lru_cache(maxsize=256)
def state_type(kind: Any, ordered: bool = False) -> StateType:
    """Return what makes, reads and writes states of a type, lists and maps included."""
    return StateType(kind, decode_part, partial(decode_part, verify=True), encode_part, _FITS, ordered)


@lru_cache(maxsize=256)
def _elements_of(kind: Any) -> dict[str, tuple[Any, Any, Fits | None, Any]]:
    """Return of each list or map of a state type: its class, what reads an element, what checks some, its keys' type.

    Every batch asks, of every server.
    """
    return {
        name: (origin, decoder_of(element, _refuse), fits_of(element, _FITS), key)
        for name, (origin, key, element) in parts_of(kind).items()
    }


class PartEntries:
    """The lists and maps in the state of one Process, on one server in one step."""

    def __init__(self, kind: Any, schema: pa.Schema, view: Callable[[], StateView]) -> None:
        self._parts = _elements_of(kind)
        self._schema, self._view = schema, view
        self._keys: tuple[U64, U64] = (np.empty(0, np.uint64), np.empty(0, np.uint64))
        self._bound: dict[int, list[tuple[str, Any]]] = {}  # key's number → long lists and maps that it had
        self._gone: set[int] = set()  # elements of keys that have expired in this very step
        self.seconds = 0.0  # spent on fetching elements

    def __bool__(self) -> bool:
        return bool(self._parts)

    def begin(self, key_hash: U64, key_check: U64) -> None:
        """Turn to the states of these keys."""
        self._keys, self._bound = (key_hash, key_check), {}
        vars(self).pop("_neighbours", None)

    def bind(self, state: Any, number: int) -> None:
        """Let the long lists and maps in the state of one of the keys find their elements."""
        for name, (_, _, _, key_type) in self._parts.items():
            part = getattr(state, name)
            if isinstance(part._of, _Stored):
                part._of.get_some = partial(self._some, name, number)
                part._of.get_all = partial(self._all, name, number)
                part._of.key_type = key_type
                self._bound.setdefault(number, []).append((name, part._of))

    def changes(self, state: Any, number: int) -> list[Change]:
        """Return what has changed in the long lists and maps of a state that has just been saved."""
        stored: dict[int, tuple[str, _Stored]] = {}
        for name, (origin, _, _, _) in self._parts.items():
            part: Any = getattr(state, name)
            if part.__class__ is not origin:
                what = f"weir.{origin.__name__}"
                raise TypeError(f"{name} is a {type(part).__name__}; change it in place, or assign a {what}")
            if part._left is None and part._of.__class__ in (deque, dict):
                continue
            for of in (part._left, part._of):
                if isinstance(of, _Stored):
                    stored[id(of)] = (name, of)
        for name, of in self._bound.get(number, ()):
            if id(of) not in stored:  # the user has put another one in its place
                of.clear()
                stored = {id(of): (name, of), **stored}
        return [change for name, of in stored.values() for change in self._changed(name, of)]

    def _changed(self, name: str, of: _Stored) -> Iterator[Change]:
        _, decoder, fits, _ = self._parts[name]
        fine = fits is not None and fits([of.known[at] for at in of.changed if of.known[at] is not MISSING])
        for at, value in of.changes():
            data = None if value is MISSING else _element.encode(value)
            if data is not None and not fine:
                decoder.decode(data)  # raises if the next batch could not read it
            yield name, at, data

    def written(self, changes: Iterable[tuple[int, Sequence[Change]]]) -> tuple[pa.Table, int]:
        """Return the entries that changes of keys, by their numbers, make, and how many more there are now."""
        # of several changes of one element, the last one counts
        flat = {(number, name, at): value for number, some in changes for name, at, value in some}
        numbers = np.array([number for number, _, _ in flat], np.int64)
        route, owners = self._keys[0][numbers], self._keys[1][numbers]
        own = np.array(
            [identity(o, name, at) for o, (_, name, at) in zip(owners.tolist(), flat, strict=True)], np.uint64
        )
        dead = np.array([value is None for value in flat.values()], np.bool_)
        order = np.lexsort((own, route))  # in which they are, so that those of one key are found faster
        before = np.empty(len(own), np.bool_)
        before[order] = self._state.find(route[order], own[order])[0] >= 0
        before &= ~np.isin(own, np.fromiter(self._gone, np.uint64, len(self._gone)))
        table = pa.table(
            {
                STATE: pa.array(list(flat.values()), pa.binary()),
                OWNER: pa.array(owners),
                PART: pa.array([name for _, name, _ in flat], pa.string()),
                AT: pa.array([at for _, _, at in flat], pa.binary()),
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

    @cached_property
    def _state(self) -> StateView:
        return self._view()

    @cached_property
    def _neighbours(self) -> Neighbours:  # one look at the segments for all keys, when the first of them asks
        return self._state.neighbours(self._keys[0])

    def _some(self, name: str, number: int, wanted: list[bytes]) -> list[Any]:
        began, decoder = time.perf_counter(), self._parts[name][1]
        own = [identity(int(self._keys[1][number]), name, at) for at in wanted]
        found = self._neighbours.find(number, np.array(own, np.uint64), STATE)
        self.seconds += time.perf_counter() - began
        return [
            MISSING if data is None or one in self._gone else decoder.decode(data)
            for one, data in zip(own, found, strict=True)
        ]

    def _all(self, name: str, number: int) -> Iterator[tuple[bytes, Any]]:
        began, decoder, owner = time.perf_counter(), self._parts[name][1], int(self._keys[1][number])
        elements = self._neighbours.all(number, (OWNER, PART, AT, STATE, H2))
        mine = pa.compute.and_(
            pa.compute.equal(elements[OWNER], pa.scalar(owner, pa.uint64())),
            pa.compute.equal(elements[PART], name),
        )
        elements = elements.filter(mine)
        self.seconds += time.perf_counter() - began
        for at, data, own in zip(*(elements[c].to_pylist() for c in (AT, STATE, H2)), strict=True):
            if own not in self._gone:
                yield at, decoder.decode(data)


def _refuse(kind: Any, value: Any) -> Any:
    raise NotImplementedError("a list or map of lists or maps cannot be stored element by element")


def identity(key: int, name: str, at: bytes) -> int:
    """Return the second hash of an element's entry."""
    data = key.to_bytes(8, "little") + name.encode() + b"\0" + at
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


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
            saved, of = state.get(name), elements.get((key_hash, key_check, name), {})
            if kind == "list":
                short = saved is not None and len(saved) == 1
                state[name] = saved[0] if short else [of[at] for at in sorted(of)]
            else:
                state[name] = {str(k): v for k, v in (of if saved is None else saved).items()}
        states.append(msgspec.msgpack.encode(state))
    column = main.column_names.index(STATE)
    return main.set_column(column, main.schema.field(column), pa.array(states, pa.binary()))


def restored(
    node: Node, heads: pa.Table, states: Sequence[dict[str, Any]], fields: dict[str, Any], clock: int
) -> pa.Table:
    """Return the entries of keys with some states, given as the fields of each; simple ones as they are, or as JSON."""
    operator: Any = node.operator
    as_json = [
        name for name, about in fields.items() if about.get("type") not in JSON_TYPES or "format" in about
    ]
    nullable = {name for name, about in fields.items() if {"type": "null"} in about.get("anyOf", ())}
    kind, type_ = operator.state, state_type(operator.state, operator.mergeable)
    made, saved = [], []
    for number, given in enumerate(states):
        values = {name: v for name, v in given.items() if v is not None or name in nullable}
        for name in as_json:
            if isinstance(values.get(name), str):
                with contextlib.suppress(msgspec.DecodeError):  # a text, as it is
                    values[name] = msgspec.json.decode(values[name])
        try:
            state = None if kind is None else msgspec.convert(values, kind, dec_hook=_given_part)
            saved.append(type_.save(state))
            for _, why in type_.wrong([state], saved[-1:]):
                raise why
        except Exception as error:
            key = heads.slice(number, 1).to_pylist()[0]
            raise TopologyError(f"the state of {key} is no {kind.__name__}: {error}") from None
        made.append(state)
    data = completed(heads.append_column(STATE, pa.array(saved, pa.binary())), node.state)
    entries_of_keys = keyed_entries(node, data, clock)
    parts = PartEntries(kind, node.state, partial(StateView, None, (), node.state))  # type: ignore[arg-type]
    if not parts:
        return entries_of_keys
    parts.begin(*(entries_of_keys[c].to_numpy() for c in (H1, H2)))
    elements, _ = parts.written((n, parts.changes(state, n)) for n, state in enumerate(made))
    return pa.concat_tables([entries_of_keys, elements])


def _given_part(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin not in PARTS:
        raise NotImplementedError(f"cannot be read: {kind}")
    plain: Any = list if origin is ListState else dict
    plain = types.GenericAlias(plain, arguments) if arguments else plain
    return origin(msgspec.convert(value, plain))
