"""The user's own types for state, as msgspec sees them: made, read, written, and checked before they are saved."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import threading
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

Fits = Callable[[list[Any]], bool]  # whether all of some values are surely of a type
_noting = threading.Lock()
_ATOMS = (int, str, bytes, bool, type(None), uuid.UUID, decimal.Decimal)
_TIMES = (datetime.datetime, datetime.date, datetime.timedelta)
_SIMPLE: dict[Any, set[type]] = {kind: {kind} for kind in (*_ATOMS, *_TIMES)} | {float: {float, int}}


class Cleared(threading.local):
    """The states that calls of this thread have cleared, each with a copy from then; None while nobody asks."""

    states: list[tuple[Any, Any]] | None = None


cleared = Cleared()


def clear(state: Any) -> None:
    """Forget the key that this state is of, with the end of the call, unless something is assigned to it afterwards."""
    kind = type(state)
    fresh, fields = kind(), getattr(kind, "__struct_fields__", None)
    for name in [f.name for f in dataclasses.fields(kind)] if fields is None else fields:
        setattr(state, name, getattr(fresh, name))
    if cleared.states is not None:
        cleared.states.append((state, copy.deepcopy(state)))


def let_clear(kind: Any) -> None:
    """Give a type of states the method ``clear()``, unless it has something of that name."""
    if not hasattr(kind, "clear"):
        kind.clear = clear


def decoder_of(kind: Any, hook: Callable[[type, Any], Any]) -> msgspec.msgpack.Decoder[Any]:
    """Return what reads states of a type.

    msgspec notes on a dataclass what it has found out about it, and two threads that do so at once disturb each other.
    """
    with _noting:
        return msgspec.msgpack.Decoder(kind, dec_hook=hook)


class StateType:
    """Makes, reads, writes and checks the states of a Process.

    ``decode``, ``verify`` and ``encode`` are msgspec's hooks for types that it does not know: to read, to read with an
    eye on every type, and to write. ``others`` is what :func:`fits_of` takes for them. With ``ordered``, equal states
    are equal bytes, unless a dict has other keys than texts.
    """

    def __init__(
        self,
        kind: Any,
        decode: Callable[[type, Any], Any],
        verify: Callable[[type, Any], Any],
        encode: Callable[[Any], Any],
        others: Mapping[Any, Callable[..., Fits | None]],
        ordered: bool,
    ) -> None:
        self.new: Callable[[], Any] = lambda: None
        self.load: Callable[[bytes], Any] = lambda data: None
        self.save: Callable[[Any], bytes] = lambda state: b""
        self._fits: Fits | None = lambda states: True
        if kind is not None:
            let_clear(kind)
            kinds = _types_in(kind)
            by_order = (ordered or any(map(_is_set, kinds))) and not any(map(_has_other_keys, kinds))
            encoder = msgspec.msgpack.Encoder(order="deterministic" if by_order else None, enc_hook=encode)
            self.new, self.load, self.save = kind, decoder_of(kind, decode).decode, encoder.encode
            self._fits, self._check = fits_of(kind, others), attributes_check(kind)
            self._verify = decoder_of(kind, verify).decode

    def wrong(self, states: list[Any], saved: list[bytes]) -> Iterator[tuple[int, Exception]]:
        """Yield which states can't be read back as they are, and why: with the next batch it would be too late."""
        if self._fits is not None and self._fits(states):
            return
        for number, (state, data) in enumerate(zip(states, saved, strict=True)):
            try:
                self._check(state)
                self._verify(data)
            except Exception as error:
                yield number, error


def fits_of(
    kind: Any, others: Mapping[Any, Callable[..., Fits | None]], within: tuple[Any, ...] = ()
) -> Fits | None:
    """Return what tells, for many values at once, that all are of a type as msgspec takes them; None if nothing can.

    A False is no proof of the contrary. ``others`` make such functions for types that msgspec does not know, from what
    these are of.

    >>> fits = fits_of(dict[str, list[int]], {})
    >>> fits([{"a": [1, 2]}, {}]), fits([{"a": [1, 2.5]}]), fits([{1: []}])
    (True, False, False)
    """
    if kind is Any or kind is object:
        return lambda values: True
    if kind in _SIMPLE:
        return _of(_SIMPLE[kind])
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind in within or len(within) > 8:
        return None
    inner = [None if one is ... else fits_of(one, others, (*within, kind)) for one in arguments]
    if origin in others:
        return others[origin](*inner)
    if origin in (typing.Union, types.UnionType) and all(one in _SIMPLE for one in arguments):
        return _of(set().union(*(_SIMPLE[one] for one in arguments)))
    if origin is dict and not (arguments and None in inner):
        key, value = inner or (_anything, _anything)
        return lambda values: (
            {dict}.issuperset(map(type, values))
            and key(list(chain.from_iterable(values)))  # type: ignore[misc]
            and value(list(chain.from_iterable(map(dict.values, values))))  # type: ignore[misc]
        )
    some = origin in (list, set, frozenset) or (origin is tuple and arguments[1:] == (...,))
    if some and not (arguments and inner[0] is None):
        element = inner[0] if inner else _anything
        return lambda values: (
            {origin}.issuperset(map(type, values)) and element(list(chain.from_iterable(values)))  # type: ignore[misc]
        )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _of({kind})
    return _fields_fit(kind, others, within)


def _fields_fit(
    kind: Any, others: Mapping[Any, Callable[..., Fits | None]], within: tuple[Any, ...]
) -> Fits | None:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    if not is_struct and not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return None
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        return None
    names: Sequence[str] = (
        kind.__struct_fields__ if is_struct else [field.name for field in dataclasses.fields(kind)]
    )
    fields = [(attrgetter(name), fits_of(hints[name], others, (*within, kind))) for name in names]
    if any(fit is None for _, fit in fields):
        return None
    most = len(names) if not is_struct and "__dict__" in dir(kind) else None  # attributes that may be there

    def fit(values: list[Any]) -> bool:
        if not {kind}.issuperset(map(type, values)):
            return False
        if most is not None and any(map(most.__lt__, map(len, map(vars, values)))):
            return False
        return all(one(list(map(get, values))) for get, one in fields)  # type: ignore[misc]

    return fit


def _of(kinds: set[type]) -> Fits:
    return lambda values: kinds.issuperset(map(type, values))


def _anything(values: list[Any]) -> bool:
    return True


def _types_in(kind: Any, seen: dict[int, Any] | None = None) -> list[Any]:
    """Return a type and all that it is made of."""
    seen = {} if seen is None else seen
    if id(kind) not in seen:
        seen[id(kind)] = kind
        for part in (*typing.get_args(kind), *_hints(kind).values()):
            _types_in(part, seen)
    return list(seen.values())


def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass or Struct, as far as their names are known here."""
    if not (isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))):
        return {}
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return {}


def _is_set(kind: Any) -> bool:
    return (typing.get_origin(kind) or kind) in (set, frozenset)


def _has_other_keys(kind: Any) -> bool:
    """Whether a type is a dict whose keys are not texts, which msgspec does not put in order."""
    return typing.get_origin(kind) is dict and typing.get_args(kind)[0] is not str


def attributes_check(kind: Any) -> Callable[[Any], None]:
    """Return what raises an AttributeError if a state has an attribute that its dataclass does not declare.

    It would vanish with the batch. Attributes that the class itself has (cached properties) may.
    """
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)) or "__dict__" not in dir(kind):
        return lambda state: None
    fields = {field.name for field in dataclasses.fields(kind)}
    inner = [(name, attributes_check(hint)) for name, hint in _hints(kind).items() if _is_open(hint)]

    def check(state: Any) -> None:
        own = getattr(state, "__dict__", ())
        if len(own) > len(fields):
            for name in own:
                if name not in fields and not hasattr(type(state), name):
                    raise AttributeError(
                        f"{type(state).__name__} declares no {name!r}, so it would not be saved; declare it, e.g. "
                        f"`{name}: int = 0`"
                    )
        for name, below in inner:
            below(getattr(state, name))

    return check


def _is_open(kind: Any) -> bool:
    """Whether objects of a type take attributes that nobody declared."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def forget_caches(kind: Any) -> None:
    """Remove what msgspec notes on dataclasses that it has met.

    A class defined in a notebook or script travels to the executors by value, and those notes cannot travel.
    """
    for one in _types_in(kind):
        if dataclasses.is_dataclass(one) and "__msgspec_cache__" in vars(one):
            del one.__msgspec_cache__  # type: ignore[union-attr]


def extends(saved: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
    """Return whether data written under one JSON schema can be read under another that may have gained fields.

    Fields may be added, at any depth, if they have defaults; defaults may change. Nothing may go or change its type.

    >>> def kind(required=(), **fields):
    ...     properties = {name: {"type": t} for name, t in fields.items()}
    ...     return {"type": "object", "properties": properties, "required": list(required)}
    >>> extends(kind(n="integer"), kind(n="integer", last="number"))
    True
    >>> extends(kind(n="integer"), kind(n="number")), extends(kind(n="integer"), kind(["m"], n="integer", m="integer"))
    (False, False)
    """
    if saved is None or now is None:
        return saved == now
    return _extends(saved, now, saved.get("$defs", {}), now.get("$defs", {}), set())


_ABOUT = {"$defs", "default", "title", "description"}  # what says nothing about the data that was written
_PARTS = {"properties", "required", "items", "additionalProperties", "prefixItems", "anyOf"}


def _extends(
    saved: Any, now: Any, old_types: dict[str, Any], new_types: dict[str, Any], met: set[tuple[str, str]]
) -> bool:
    if not isinstance(saved, dict) or not isinstance(now, dict):
        return bool(saved == now)
    if "$ref" in saved or "$ref" in now:
        names = saved.get("$ref", ""), now.get("$ref", "")
        if names in met:  # a type that contains itself
            return True
        met.add(names)
        saved = old_types[names[0].rsplit("/", 1)[-1]] if names[0] else saved
        now = new_types[names[1].rsplit("/", 1)[-1]] if names[1] else now
    rest = _ABOUT | _PARTS
    if {k: v for k, v in saved.items() if k not in rest} != {k: v for k, v in now.items() if k not in rest}:
        return False
    if not set(now.get("required", ())) <= set(saved.get("required", ())):
        return False
    after = now.get("properties", {})
    pairs = [(kind, after.get(name)) for name, kind in saved.get("properties", {}).items()]
    pairs += [(saved.get(part), now.get(part)) for part in ("items", "additionalProperties")]
    for part in ("prefixItems", "anyOf"):
        before, later = saved.get(part, []), now.get(part, [])
        if len(before) != len(later):
            return False
        pairs += zip(before, later, strict=True)
    return all(_extends(one, other, old_types, new_types, met) for one, other in pairs)


# what simple fields are shown as; others are shown as JSON
JSON_TYPES = {"integer": pa.int64(), "number": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}


def properties_of(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a state type, given its JSON schema."""
    if schema and "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return dict(schema.get("properties", {})) if schema else {}
