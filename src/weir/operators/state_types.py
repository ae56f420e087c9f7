"""The user's own types for state, as msgspec sees them."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


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
