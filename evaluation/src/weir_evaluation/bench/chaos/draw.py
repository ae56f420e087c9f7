"""Draw an application and its settings from a seed, and the rows that it is fed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

import weir
from weir_evaluation.bench.chaos.cases import (
    GROUPINGS,
    KEYED,
    KEYS,
    PLACES,
    SCHEMA,
    SPLIT,
    STEPS,
    TOPICS,
    WHOLE,
    Key,
    Keyed,
    Step,
)


@dataclass(frozen=True)
class Part:
    """One operator of an application: what it is, what it stands behind, and how rows reach it."""

    name: str
    case: Keyed | Step
    after: int  # the part before it; −1: the source
    key: Key = ()
    grouping: str = "default"

    def describe(self) -> str:
        if isinstance(self.case, Step):
            return f"{self.name} = {self.case.name}"
        return f"{self.name} = {self.case.name} by {'+'.join(self.key)} ({self.grouping})"


@dataclass(frozen=True)
class Drawn:
    """An application, and the settings of one of its runs."""

    parts: tuple[Part, ...]
    routing: str
    servers: int
    execution: str = "jobs"

    def describe(self) -> str:
        parts = "; ".join(f"{p.describe()} after {p.after}" for p in self.parts)
        return f"{self.servers} servers, routing {self.routing}, {self.execution}: {parts}"

    @property
    def keyed(self) -> list[tuple[int, Part]]:
        return [(i, p) for i, p in enumerate(self.parts) if isinstance(p.case, Keyed)]

    @property
    def leaves(self) -> list[int]:
        return [i for i in range(len(self.parts)) if all(p.after != i for p in self.parts)]

    def application(self, source: Any = SCHEMA) -> weir.Application:
        """Return the application; ``source`` is a schema, a DataFrame or a stream."""
        streams: list[weir.Stream] = []
        first = source if isinstance(source, weir.Stream) else weir.source(source)
        for part in self.parts:
            stream = first if part.after < 0 else streams[part.after]
            if isinstance(part.case, Step):
                streams.append(part.case.add(stream))
                continue
            options = dict(part.case.options)
            grouping = {**WHOLE, **SPLIT}[part.grouping]()
            options |= {"name": part.name, "routing": grouping}
            streams.append(part.case.attach(stream, list(part.key), options))
        return weir.Application(*(streams[i] for i in self.leaves))

    def settings(self) -> dict[str, Any]:
        return {
            "servers": self.servers,
            "routing": GROUPINGS[self.routing](),
            "execution": self.execution,
        }


def draw(rng: random.Random) -> Drawn:
    """Draw an application of one to four operators, one to three of them with state."""
    parts: list[Part] = []
    keyed = rng.randint(1, 3)
    while keyed:
        open_ends = [-1, *(i for i, p in enumerate(parts) if isinstance(p.case, Step) or not p.case.ends)]
        after = rng.choice([open_ends[-1], open_ends[-1], rng.choice(open_ends)])
        if rng.random() < 0.3:
            parts.append(Part(f"step{len(parts)}", rng.choice(STEPS), after))
            after = len(parts) - 1
        case = rng.choice(KEYED)
        parts.append(Part(f"op{len(parts)}", case, -1 if case.first else after, rng.choice(KEYS)))
        keyed -= 1
    return redraw(rng, Drawn(tuple(parts), "hash", 1))


def redraw(rng: random.Random, drawn: Drawn) -> Drawn:
    """Draw other settings for the same operators: what may change between two runs."""
    parts = []
    for part in drawn.parts:
        case = part.case
        if isinstance(case, Keyed):
            split = case.merges and rng.random() < 0.4
            grouping = rng.choice(sorted(SPLIT if split else WHOLE))
            part = replace(part, grouping=grouping)
        parts.append(part)
    # partial states that wait, or that a time to live would end, need keys that stay on one server
    whole = any(isinstance(p.case, Keyed) and not p.case.merges for p in parts)
    routing = rng.choice(["auto", "hash", "locality"] if whole else sorted(GROUPINGS))
    return Drawn(tuple(parts), routing, rng.randint(1, 5), rng.choice(["jobs", "jobs", "live"]))


def rows(seed: int, batch: int, n: int) -> pa.Table:
    """Return the rows of a batch; which places and topics meet drifts, so that keys have reason to move."""
    rng = np.random.default_rng((seed, batch))
    topic = rng.zipf(1.4, n) % TOPICS
    place = (topic + 5 * (batch // 2)) % PLACES
    return pa.table(
        {
            "place": pa.array([f"place {p}" for p in place], pa.string()),
            "topic": pa.array([f"topic {t}" for t in topic], pa.string()),
            "n": pa.array(rng.integers(0, 1000, n), pa.int64()),
            "at": pa.array(
                1_700_000_000_000_000 + batch * 10_000_000 + rng.integers(0, 10_000_000, n),
                pa.timestamp("us", "UTC"),
            ),
        }
    )
