"""Lists and maps in the state of a Process, stored element by element.

An object of the user's is saved whole whenever its key has rows. A list or map in it is not: it leaves only its bounds
there, and each element is an entry of its own beside it, found by hash. So a long list is neither read nor written
for one more element, and its entries move with their key like any others.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Load = Callable[[list[bytes]], list[Any]]  # elements by where they are; MISSING for those that are not there
MISSING: Any = object()
_order = msgspec.msgpack.Encoder(order="deterministic")


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
