"""The statistics of one batch: key counts per operator and pair counts per edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from weir.locality.counts import PairCounts, count_keys, count_pairs, merge

Edge = tuple[int, int]


@dataclass(frozen=True)
class BatchStats:
    """Counts of one task, or of a whole batch once the tasks' counts are merged.

    Operators are numbered in topological order; an edge is a pair of such numbers. Key counts are of the rows
    that *arrived* at the operator; a pair is counted at the later operator, where both its keys are at hand.

    >>> state, tag = np.array([1, 1, 2], np.uint64), np.array([7, 7, 8], np.uint64)
    >>> task = BatchStats.of({0: state, 1: tag}, {(0, 1): (state, tag)})
    >>> both = BatchStats.merge([task, BatchStats.decode(task.encode())])
    >>> both.rows, both.pairs[0, 1].count.tolist()
    ({0: 6.0, 1: 6.0}, [4.0, 2.0])
    """

    keys: Mapping[int, PairCounts] = field(default_factory=dict)  # per operator: how often each key was seen
    # per edge: how often each pair of keys was seen
    pairs: Mapping[Edge, PairCounts] = field(default_factory=dict)
    # per operator: all rows, also those whose keys were truncated away
    rows: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        keys: Mapping[int, NDArray[np.uint64]],
        pairs: Mapping[Edge, tuple[NDArray[np.uint64], NDArray[np.uint64]]],
        *,
        capacity: int = 100_000,
        seed: int = 0,
    ) -> BatchStats:
        """Count the rows of one task: key hashes per operator, pairs of key hashes per edge."""
        return cls(
            {o: count_keys(k).truncate(capacity, seed) for o, k in sorted(keys.items())},
            {e: count_pairs(*p).truncate(capacity, seed) for e, p in sorted(pairs.items())},
            {o: float(len(k)) for o, k in sorted(keys.items())},
        )

    @classmethod
    def merge(cls, parts: Sequence[BatchStats], *, capacity: int | None = None, seed: int = 0) -> BatchStats:
        """Add up the statistics of all tasks, whatever their order."""
        operators = sorted({o for p in parts for o in p.keys})
        edges = sorted({e for p in parts for e in p.pairs})
        nothing = PairCounts.empty()
        return cls(
            {o: merge([p.keys.get(o, nothing) for p in parts], capacity, seed) for o in operators},
            {e: merge([p.pairs.get(e, nothing) for p in parts], capacity, seed) for e in edges},
            {o: sum(p.rows.get(o, 0.0) for p in parts) for o in sorted({o for p in parts for o in p.rows})},
        )

    @property
    def entries(self) -> int:
        """Return how many counts there are."""
        return sum(map(len, (*self.keys.values(), *self.pairs.values())))

    @property
    def counted(self) -> dict[int, float]:
        """Return, per operator, the share of its rows whose keys are in the counts; other keys were too rare."""
        return {o: self.keys[o].total / rows for o, rows in self.rows.items() if rows and o in self.keys}

    def encode(self) -> bytes:
        """Return the statistics as bytes, for one cell of a control row."""
        return msgspec.msgpack.encode(
            _Packed(
                [(o, *_pack(c, pairs=False)) for o, c in self.keys.items()],
                [(a, b, *_pack(c, pairs=True)) for (a, b), c in self.pairs.items()],
                dict(self.rows),
            )
        )

    @classmethod
    def decode(cls, *data: bytes, capacity: int | None = None, seed: int = 0) -> BatchStats:
        """Return the statistics of :meth:`encode`; of several, what :meth:`merge` makes of them."""
        parts: dict[tuple[int, ...], list[_Columns]] = {}
        rows: dict[int, float] = {}
        for one in data:
            packed = msgspec.msgpack.decode(one, type=_Packed)
            for o, *columns in packed.keys:
                parts.setdefault((o,), []).append(columns)
            for a, b, *columns in packed.pairs:
                parts.setdefault((a, b), []).append(columns)
            for o, count in packed.rows.items():
                rows[o] = rows.get(o, 0.0) + count
        whole = {what: _unpack(columns, capacity, seed) for what, columns in sorted(parts.items())}
        keys = {what[0]: counts for what, counts in whole.items() if len(what) == 1}
        pairs = {(what[0], what[1]): counts for what, counts in whole.items() if len(what) == 2}
        return cls(keys, pairs, dict(sorted(rows.items())))


_Columns = Sequence[bytes]  # left, right, count


class _Packed(msgspec.Struct, array_like=True, gc=False):
    keys: list[tuple[int, bytes, bytes, bytes]]
    pairs: list[tuple[int, int, bytes, bytes, bytes]]
    rows: dict[int, float]


def _pack(counts: PairCounts, pairs: bool) -> tuple[bytes, bytes, bytes]:
    short = counts.count.astype(np.float32)
    exact = bool((short == counts.count).all())
    right = counts.right.tobytes() if pairs else b""
    return counts.left.tobytes(), right, (short if exact else counts.count).tobytes()


def _unpack(parts: Sequence[_Columns], capacity: int | None, seed: int) -> PairCounts:
    """Return the sum of packed counts; one array for all parts, as there may be a thousand small ones."""
    left = np.frombuffer(bytearray().join(own for own, _, _ in parts), np.uint64)
    right = np.frombuffer(bytearray().join(other for _, other, _ in parts), np.uint64)
    kinds = [np.float32 if len(count) < len(own) else np.float64 for own, _, count in parts]
    numbers = [np.frombuffer(part[2], kind) for part, kind in zip(parts, kinds, strict=True)]
    whole = PairCounts(
        left, right if len(right) else np.zeros_like(left), np.concatenate(numbers, dtype=float)
    )
    if sum(bool(own) for own, _, _ in parts) > 1:
        whole = count_pairs(whole.left, whole.right, whole.count)
    return whole if capacity is None else whole.truncate(capacity, seed)
