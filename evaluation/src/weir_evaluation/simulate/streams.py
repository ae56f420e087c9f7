"""Streams to route: which keys they carry, and when their messages arrive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba as nb
import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.hashing import hash_columns, mix, mixed


@dataclass(frozen=True, eq=False)
class SimulatedStream:
    """A sequence of messages: ``ids`` says which key each one carries, ``hashes`` is the hash of each key.

    Ids are dense (0 … number of keys − 1), so that who-holds-what fits a bitmap.
    """

    name: str
    ids: NDArray[np.int32]
    hashes: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The hash of every message's key: what routers take."""
        return self.hashes[self.ids]

    def head(self, messages: int) -> SimulatedStream:
        """The first messages of the stream."""
        return SimulatedStream(self.name, self.ids[:messages], self.hashes)

    def distinct(self) -> int:
        """How many different keys occur."""
        return int(np.count_nonzero(np.bincount(self.ids, minlength=1)))

    def top_share(self) -> float:
        """Share of the most frequent key, "p1"."""
        return float(np.bincount(self.ids, minlength=1).max() / max(1, len(self.ids)))


def zipf(
    messages: int = 10_000_000, keys: int = 100_000, z: float = 1.0, *, seed: int = 0
) -> SimulatedStream:
    """Keys drawn independently; the key of rank r has a share proportional to 1/r^z.

    Examples
    --------
    >>> stream = zipf(100_000, 1000, z=1.0, seed=1)
    >>> round(stream.top_share(), 2)
    0.13
    """
    weights = 1.0 / np.arange(1, keys + 1, dtype=np.float64) ** z
    return SimulatedStream(f"zipf-{z:.1f}", _draw(weights, messages, seed), _hashes(keys, seed))


def evolving(
    messages: int = 5_000_000, keys: int = 100_000, z: float = 1.0, *, phases: int = 10, seed: int = 0
) -> SimulatedStream:
    """:func:`zipf`, except that in each phase other keys are the frequent ones.

    >>> stream = evolving(100_000, 1000, z=1.0, phases=2, seed=1)
    >>> first, second = (np.bincount(half).argmax() for half in np.split(stream.ids, 2))
    >>> bool(first != second)
    True
    """
    drawn = zipf(messages, keys, z, seed=seed)
    dice = np.random.default_rng(seed)
    parts = [dice.permutation(keys).astype(np.int32)[ranks] for ranks in np.array_split(drawn.ids, phases)]
    return SimulatedStream(f"evolving-{z:.1f}", np.concatenate(parts), drawn.hashes)


def page_views(
    messages: int = 22_000_000,
    keys: int = 2_900_000,
    top: float = 0.0932,
    *,
    tail: float = 0.9,
    seed: int = 0,
) -> SimulatedStream:
    """A stream like a day of Wikipedia: one page far ahead, millions of others, each seen at least once.

    The share of the first key and the numbers of messages and of keys are exact; every other key occurs once,
    and the remaining messages follow a Zipf law of exponent ``tail`` over them, all in random order.

    Examples
    --------
    >>> stream = page_views(220_000, 29_000, seed=1)
    >>> stream.distinct(), round(stream.top_share(), 4)
    (29000, 0.0932)
    """
    hot = round(top * messages)
    rest = messages - hot - (keys - 1)
    if rest < 0 or hot < 1:
        raise ValueError(f"{messages} messages cannot hold {keys} keys and a top key with a share of {top}")
    weights = 1.0 / np.arange(1, keys, dtype=np.float64) ** tail
    ids = np.concatenate(
        [
            np.zeros(hot, np.int32),
            np.arange(1, keys, dtype=np.int32),
            _draw(weights, rest, seed) + np.int32(1),
        ]
    )
    np.random.default_rng(seed).shuffle(ids)
    return SimulatedStream("page-views", ids, _hashes(keys, seed))


def words(path: str | Path, column: str = "word", limit: int | None = None) -> SimulatedStream:
    """The keys of a Parquet file's column, in the file's order, hashed as Spark would.

    Parameters
    ----------
    path
        A Parquet file.
    column
        The column that holds the keys.
    limit
        Take only so many rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=[column], read_dictionary=[column])
    if limit is not None:
        table = table.slice(0, limit)
    encoded = table.column(column).unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    ids = encoded.indices.to_numpy().astype(np.int32)
    return SimulatedStream(Path(path).stem, ids, hash_columns([encoded.dictionary]))


@dataclass(frozen=True, eq=False)
class Arrivals:
    """How many messages arrive per second, piecewise constant: ``rates[i]`` from ``starts[i]`` on.

    Examples
    --------
    >>> arrivals = Arrivals([0, 10], [5, 1])
    >>> arrivals.before([0, 10, 12]).tolist()
    [0, 50, 52]
    """

    starts: ArrayLike
    rates: ArrayLike

    @classmethod
    def steady(cls, rate: float) -> Arrivals:
        """The same rate for ever."""
        return cls([0.0], [rate])

    @classmethod
    def day(cls, messages: int, swing: float = 0.3, hours: int = 24) -> Arrivals:
        """All messages within a day, by a sine: quiet at night, ``swing`` above the mean at the peak."""
        at = np.arange(hours)
        shape = 1.0 - swing * np.sin(2 * np.pi * (at + 0.5) / hours)
        return cls(at * 3600.0, messages / 3600.0 * shape / shape.sum())

    def before(self, time: ArrayLike) -> NDArray[np.int64]:
        """How many messages have arrived before each time."""
        starts, rates = np.asarray(self.starts, np.float64), np.asarray(self.rates, np.float64)
        until = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(starts))])
        times = np.maximum(np.asarray(time, np.float64), starts[0])
        piece = np.searchsorted(starts, times, side="right") - 1
        # A hair up, so that a sum of rates which is whole on paper does not fall just below.
        return np.floor(until[piece] + rates[piece] * (times - starts[piece]) + 1e-6).astype(np.int64)


def _hashes(keys: int, seed: int) -> NDArray[np.uint64]:
    return mix(np.arange(keys, dtype=np.uint64), np.uint64(seed + 1))


def _draw(weights: NDArray[np.float64], count: int, seed: int) -> NDArray[np.int32]:
    threshold, alias = _alias(weights / weights.sum())
    out = np.empty(count, dtype=np.int32)
    _sample(threshold, alias, np.uint64(mix(np.uint64(seed), np.uint64(0xA11A5))), out)
    return out


@nb.njit(cache=True)
def _alias(share):  # type: ignore[no-untyped-def]
    """Vose's alias table: draws from any distribution in constant time."""
    n = len(share)
    threshold = share * n
    alias = np.arange(n).astype(np.int32)
    small = np.empty(n, np.int32)
    large = np.empty(n, np.int32)
    smalls = 0
    larges = 0
    for i in range(n):
        if threshold[i] < 1.0:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls > 0 and larges > 0:
        smalls -= 1
        poor = small[smalls]
        rich = large[larges - 1]
        alias[poor] = rich
        threshold[rich] -= 1.0 - threshold[poor]
        if threshold[rich] < 1.0:
            larges -= 1
            small[smalls] = rich
            smalls += 1
    for i in range(smalls):  # what rounding left over
        threshold[small[i]] = 1.0
    for i in range(larges):
        threshold[large[i]] = 1.0
    return threshold, alias


@nb.njit(cache=True)
def _sample(threshold, alias, salt, out):  # type: ignore[no-untyped-def]
    n = np.uint64(len(threshold))
    for i in range(len(out)):
        drawn = mixed(salt, np.uint64(i))
        column = np.int64(((drawn >> np.uint64(32)) * n) >> np.uint64(32))
        fraction = np.float64(drawn & np.uint64(0xFFFFFFFF)) / 4294967296.0
        out[i] = column if fraction < threshold[column] else alias[column]
