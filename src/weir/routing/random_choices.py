"""Power of random choices (PoRC): a key fills its first bin, then its second, and only as far as it must."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, helper
from weir.errors import ParameterError
from weir.hashing import mixed
from weir.routing.base import Counters, Instances, Keys
from weir.routing.partial_key import LoadRouter, pick, taken

_MEMO_BITS = 12
HEAVY = 0.1  # of a bin's fair share: a key with more is heavy
_CELLS, _MOST_CELLS = 32, 1 << 18  # counters of keys per bin, and in all
_SURE = 4  # rows above that share before a key counts as heavy


def check_bounds(epsilon: float, virtual: int) -> None:
    """Refuses parameters for which the capacity rule has no meaning."""
    if not epsilon > 0:
        raise ParameterError(f"epsilon must be above 0, got {epsilon}; 0.01 is a good start")
    if virtual < 1:
        raise ParameterError(f"virtual (virtual workers per instance) must be at least 1, got {virtual}")


class RandomChoicesRouter(LoadRouter):
    """Every key has its own endless sequence of virtual workers (bins); a row takes the first with room.

    Room means fewer than ``(1 + epsilon) · messages / bins`` rows so far. Light keys live on the first virtual worker
    of their sequence; a hot key spills over to the next only when that one is full, so that it takes no more
    places than its weight demands. ``owner`` maps virtual workers to instances.

    With ``light`` above ``epsilon``, only heavy keys leave a virtual worker that is full by ``epsilon``; light ones
    stay until it is full by ``light``. Heavy are keys that have had more than a tenth of a virtual worker's fair
    share, counted by hash in a fixed number of cells: a light key that shares its cell with a heavy one counts as
    heavy, which costs a copy of it and nothing else.
    """

    def __init__(self, n: int, bins: int, epsilon: float, seed: int, light: float = 0.0) -> None:
        super().__init__(n, bins, seed)
        self.epsilon, self.light = epsilon, max(epsilon, light)
        self.owner: NDArray[np.int32] = (np.arange(bins) % n).astype(np.int32)
        cells = min(_CELLS * bins, _MOST_CELLS) if self.light > epsilon else 0
        self.cells: NDArray[np.int64] = np.zeros(cells, np.int64)  # of a stream that goes on for years
        self._forget()

    def _forget(self) -> None:
        # A memo of where each hot key's last walk ended. While its limit stands, full bins stay full, so
        # the next walk may start there: the same answer, sooner. Nothing depends on it.
        self._memo_keys = np.zeros(1 << _MEMO_BITS, dtype=np.uint64)
        self._memo = np.zeros((1 << _MEMO_BITS, 2), dtype=np.int64)

    def counters(self) -> Counters:
        return super().counters() | ({"cells": self.cells.copy()} if len(self.cells) else {})

    def restore(self, counters: Counters) -> None:
        super().restore(counters)
        # counters of earlier versions have no cells: then keys are counted anew
        self.cells[:] = taken(counters, "cells", self.cells) if "cells" in counters else 0
        self._forget()

    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        limits = (1.0 + self.epsilon) / len(self.load), (1.0 + self.light) / len(self.load)
        mine = self.load, self.owner, self.cells, self._memo_keys, self._memo
        _route(keys, self.salt, *limits, self.messages, *mine, out)
        return out


@helper
def _choice(key, salt, step, bins):  # type: ignore[no-untyped-def]
    """Place number ``step`` in a key's sequence: random at first, at last every bin in turn."""
    random_steps = 4 * bins
    if step < random_steps:
        return pick(mixed(key ^ salt, np.uint64(step)), bins)
    return (pick(mixed(key ^ salt, np.uint64(random_steps)), bins) + step) % bins


@helper
def _is_heavy(key, messages, bins, cells):  # type: ignore[no-untyped-def]
    if len(cells) == 0:
        return True
    cell = pick(mixed(key, np.uint64(0xCE11)), len(cells))
    cells[cell] += 1
    return cells[cell] > HEAVY * messages / bins + _SURE


@compiled(
    "uint64[]",
    *("uint64", "float64", "float64", "int64"),
    *("out int64[]", "int32[]", "out int64[]", "out uint64[]", "out int64[,]"),
    "out int32[]",
)
def _route(keys, salt, heavy, light, messages, load, owner, cells, memo_keys, memo, out):  # type: ignore[no-untyped-def]
    bins = len(load)
    for i in range(len(keys)):
        key = keys[i]
        messages += 1
        growth = heavy if _is_heavy(key, messages, bins, cells) else light
        capacity = np.int64(np.ceil(growth * messages))
        chosen = _choice(key, salt, 0, bins)
        if load[chosen] >= capacity:
            at = np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _MEMO_BITS))
            step = np.int64(1)
            if memo_keys[at] == key and memo[at, 0] == capacity:
                step = memo[at, 1]
            chosen = _choice(key, salt, step, bins)
            while load[chosen] >= capacity:
                step += 1
                chosen = _choice(key, salt, step, bins)
            memo_keys[at] = key
            memo[at, 0] = capacity
            memo[at, 1] = step
        load[chosen] += 1
        out[i] = owner[chosen]
