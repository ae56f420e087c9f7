"""The user's own types for state, as msgspec sees them."""

from __future__ import annotations

import dataclasses
import threading
import typing
from collections.abc import Callable
from typing import Any

import msgspec

_noting = threading.Lock()


def decoder_of(kind: Any, hook: Callable[[type, Any], Any]) -> msgspec.msgpack.Decoder[Any]:
    """Return what reads states of a type.

    msgspec notes on a dataclass what it has found out about it, and two threads that do so at once disturb each other.
    """
    with _noting:
        return msgspec.msgpack.Decoder(kind, dec_hook=hook)


def attributes_check(kind: Any) -> Callable[[Any], None]:
    """Return what raises an AttributeError if a state has an attribute that its dataclass does not declare.

    It would vanish with the batch. Attributes that the class itself has (cached properties) may.
    """
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)) or "__dict__" not in dir(kind):
        return lambda state: None
    fields = {field.name for field in dataclasses.fields(kind)}
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        hints = {}
    inner = [(name, attributes_check(hint)) for name, hint in hints.items() if _is_open(hint)]

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


def forget_caches(kind: Any, seen: set[int] | None = None) -> None:
    """Remove what msgspec notes on dataclasses that it has met.

    A class defined in a notebook or script travels to the executors by value, and those notes cannot travel.
    """
    seen = set() if seen is None else seen
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for part in typing.get_args(kind):
        forget_caches(part, seen)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if "__msgspec_cache__" in vars(kind):
            del kind.__msgspec_cache__  # type: ignore[attr-defined]
        try:
            hints = typing.get_type_hints(kind)
        except NameError:
            hints = {}
        for part in hints.values():
            forget_caches(part, seen)


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
