"""What is drawn: values of every type, with nulls, NaN, extremes and Unicode, and types nested in each other."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from weir.columns import can_be_key, to_type

Draw = Callable[[random.Random], Any]
DAY = dt.datetime(2024, 3, 30, tzinfo=dt.UTC)


def _decimal(rng: random.Random, digits: int, scale: int) -> Decimal:
    return Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)


def _floats(rng: random.Random) -> float:
    special = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-300, 1.5, -2.25]
    return rng.choice(special) if rng.random() < 0.3 else rng.uniform(-1e6, 1e6)


def _whole(bits: int) -> Callable[[random.Random], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    # of the extremes as many as a sum of 64 bits can take
    return lambda rng: (
        rng.choice([low, high]) if bits < 64 and rng.random() < 0.2 else rng.randint(low >> 8, high >> 8)
    )


TEXTS = ["", "a", "A", "ä", "ß", "ſ", "日本", "\U0001f600", "z" * 20, "a\u0301", "\u00e1", "0", " "]
TYPES: dict[str, Callable[[random.Random], Any]] = {
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": lambda rng: float(pa.scalar(_floats(rng), pa.float32()).as_py()),
    "double": _floats,
    "decimal(10,2)": lambda rng: _decimal(rng, 10, 2),
    "decimal(28,5)": lambda rng: _decimal(rng, 28, 5),
    "string": lambda rng: rng.choice(TEXTS),
    "binary": lambda rng: rng.randbytes(rng.randint(0, 4)),
    "boolean": lambda rng: rng.random() < 0.5,
    "date": lambda rng: dt.date(1, 1, 1) + dt.timedelta(days=rng.randint(0, 3_000_000)),
    "timestamp": lambda rng: DAY + dt.timedelta(microseconds=rng.randint(-(10**16), 10**16)),
    "timestamp_ntz": lambda rng: (DAY + dt.timedelta(microseconds=rng.randint(-(10**16), 10**16))).replace(
        tzinfo=None
    ),
}
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(28,5)")
KEYS = tuple(kind for kind in TYPES if can_be_key(to_type(kind)))


def maybe(rng: random.Random, draw: Draw, nulls: float = 0.2) -> Any:
    """Return a value, or None for a share of the calls."""
    return None if rng.random() < nulls else draw(rng)


def nested(rng: random.Random, depth: int = 3) -> tuple[str, Draw]:
    """Return a struct, array or map of drawn types, at most so deep, and what draws its values.

    >>> kind, draw = nested(random.Random(1))
    >>> kind.split("<")[0] in ("struct", "array", "map")
    True
    """
    match rng.choice(["struct", "array", "map"]):
        case "struct":
            return struct_of(*(part(rng, depth) for _ in range(rng.randint(1, 3))))
        case "array":
            return array_of(part(rng, depth))
        case _:
            structs = struct_of(_plain(rng, KEYS), _plain(rng, KEYS))
            key = structs if rng.random() < 0.2 else _plain(rng, KEYS)
            return map_of(key, part(rng, depth))


def part(rng: random.Random, depth: int) -> tuple[str, Draw]:
    """Return a type that may stand in another, and what draws its values."""
    return nested(rng, depth - 1) if depth > 1 and rng.random() < 0.5 else _plain(rng, tuple(TYPES))


def _plain(rng: random.Random, kinds: tuple[str, ...]) -> tuple[str, Draw]:
    kind = rng.choice(kinds)
    return kind, TYPES[kind]


def struct_of(*parts: tuple[str, Draw]) -> tuple[str, Draw]:
    names = "abc"[: len(parts)]
    fields = ", ".join(f"{name}: {kind}" for name, (kind, _) in zip(names, parts, strict=True))
    draws = [draw for _, draw in parts]
    return f"struct<{fields}>", lambda rng: {
        n: maybe(rng, draw) for n, draw in zip(names, draws, strict=True)
    }


def array_of(element: tuple[str, Draw]) -> tuple[str, Draw]:
    kind, draw = element
    return f"array<{kind}>", lambda rng: [maybe(rng, draw) for _ in range(rng.randint(0, 3))]


def map_of(key: tuple[str, Draw], value: tuple[str, Draw]) -> tuple[str, Draw]:
    """A map; its keys differ, as Spark asks for."""

    def draw(rng: random.Random) -> list[tuple[Any, Any]]:
        keys = {repr(k): k for k in (key[1](rng) for _ in range(rng.randint(0, 3)))}
        return [(k, maybe(rng, value[1])) for k in keys.values()]

    return f"map<{key[0]}, {value[0]}>", draw
