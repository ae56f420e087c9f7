"""Write the checkpoint with lists and maps of version 0.2.0 that ``test_old_checkpoints.py`` continues.

That version stored every element by itself. Run it with that version installed (commit fe8ab51); it needs no Spark::

    PYTHONPATH=../weir-0.2/src python tests/recovery/lists_of_0_2.py
"""

from __future__ import annotations

import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import weir
import weir.testing

ARCHIVE = Path(__file__).parent / "data" / "lists.tar.xz"
SCHEMA = "k string, n long"
BATCHES = 5
MOST = {"short": 4, "long": 300}  # elements that a key's list may have


@dataclass
class Kept:
    """What is kept of a key: its last numbers, and how many there were of each kind."""

    rows: int = 0
    last: weir.ListState[int] = field(default_factory=weir.ListState)
    kinds: weir.MapState[str, int] = field(default_factory=weir.MapState)


def keep(key: str, rows: Any, state: Kept) -> Any:
    """Add rows to what is kept; tell the sums of it, or, of long ones, their ends."""
    for row in rows:
        state.rows += 1
        state.last.append(row.n)
        if len(state.last) > MOST[key.split()[0]]:
            state.last.popleft()
        kind = f"kind {row.n % (3 if key.startswith('short') else 150)}"
        state.kinds[kind] = state.kinds.get(kind, 0) + 1
    ends = sum(state.last) if key.startswith("short") else state.last[0] + state.last[-1]
    return [(key, state.rows, ends)]


def application() -> weir.Stream:
    """Return the application, in words that both versions know."""
    output = {"k": "string", "rows": "long", "ends": "long"}
    return weir.source(SCHEMA).process("k", keep, state=Kept, output=output, order_by="n", name="kept")


def rows(batch: int) -> list[dict[str, Any]]:
    """Return the rows of a batch: two keys with few elements, and two with many."""
    few = [{"k": f"short {k}", "n": 10 * batch + k + i} for k in range(2) for i in range(3)]
    return few + [{"k": f"long {k}", "n": 100_000 * batch + 7 * i + k} for k in range(2) for i in range(120)]


def truth(batches: int) -> dict[str, tuple[int, list[int], dict[str, int]]]:
    """Return what is kept of each key, by plain Python."""
    out: dict[str, tuple[int, list[int], dict[str, int]]] = {}
    for key in ("short 0", "short 1", "long 0", "long 1"):
        numbers = [n for b in range(batches) for n in sorted(r["n"] for r in rows(b) if r["k"] == key)]
        kinds = Counter(f"kind {n % (3 if key.startswith('short') else 150)}" for n in numbers)
        out[key] = len(numbers), numbers[-MOST[key.split()[0]] :], dict(kinds)
    return out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with weir.testing.start(application(), folder, servers=2) as query:
            for number in range(BATCHES):
                query.feed(rows(number))
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(folder, ".")
