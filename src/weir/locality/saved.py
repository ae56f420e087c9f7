"""What a saved manager says of keys: which have most rows, and which are seen together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counted = tuple[NDArray[np.uint64], NDArray[np.float64]]  # hashes and recent rows, most rows first


def hottest(saved: Mapping[str, Any], operator: str, count: int) -> Counted:
    """Return the keys of an operator with most recent rows; ``saved`` is ``LocalityManager.state()``.

    >>> saved = {"about": {"operators": ["a"]}, "keys.0.left": np.array([7, 8], np.uint64)}
    >>> hashes, rows = hottest(saved | {"keys.0.count": np.array([1.0, 5.0])}, "a", 1)
    >>> hashes.tolist(), rows.tolist()
    ([8], [5.0])
    """
    operators = list(saved["about"]["operators"])
    if operator not in operators:
        return np.empty(0, np.uint64), np.empty(0)
    start = f"keys.{operators.index(operator)}."
    return _most(saved[f"{start}left"], saved[f"{start}count"], count)


def affinity(saved: Mapping[str, Any], operator: str, key: int, count: int) -> dict[str, Counted]:
    """Return the keys of neighbouring operators that a key was seen with most, by operator."""
    about, out = saved["about"], {}
    operators = list(about["operators"])
    for i, edge in enumerate(about["edges"]):
        for side, (own, other) in (("left", edge), ("right", edge[::-1])):
            if operators[own] != operator:
                continue
            them = "right" if side == "left" else "left"
            parts = [
                f"history.{i}.",
                *(f"recent.{batch}.{i}." for batch in range(about["recent"])),
            ]
            seen, rows = [], []
            for part in parts:
                ours = np.flatnonzero(saved[f"{part}{side}"] == np.uint64(key))
                seen.append(saved[f"{part}{them}"][ours])
                rows.append(saved[f"{part}count"][ours])
            hashes, at = np.unique(np.concatenate(seen), return_inverse=True)
            together = np.bincount(at, np.concatenate(rows), len(hashes)).astype(np.float64)
            out[operators[other]] = _most(hashes, together, count)
    return out


def _most(hashes: NDArray[np.uint64], rows: NDArray[np.float64], count: int) -> Counted:
    first = np.argsort(-rows, kind="stable")[:count]
    return hashes[first], rows[first]
