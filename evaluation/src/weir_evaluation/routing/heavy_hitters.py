"""SpaceSaving: the heaviest keys of a stream in bounded memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weir.compiled import compiled, helper
from weir.errors import CheckpointError, ParameterError
from weir.routing.base import Counters, Keys


class Sketch(NamedTuple):
    """The arrays of a :class:`SpaceSaving`, in the form that compiled loops take.

    ``entries`` (key, count, error, run, slot) lie in ascending order of count, filled from the top. Entries
    of equal count form a run, whose upper end is in ``runs``, so an increment is one swap. ``table`` finds an
    entry by key (open addressing) and ``slot`` leads back. ``state``: entries used, rows, runs that are free.
    Loops take the arrays apart first: reaching through the tuple for each row costs more than the work.
    """

    entries: NDArray[np.int64]
    runs: NDArray[np.int64]
    table: NDArray[np.int32]
    state: NDArray[np.int64]


SKETCH = "out int64[,]", "out int64[,]", "out int32[]", "out int64[]"  # the types of these arrays
KEY, COUNT, ERROR, RUN, SLOT = range(5)
_LAST, _FREE = range(2)
_USED, ROWS, _FREE_RUNS = range(3)


class SpaceSaving:
    """Counts the heaviest keys with ``capacity`` counters, whatever the length of the stream.

    A key that has a counter is counted; any other key takes over the smallest counter, one added, and the
    old count is noted as its possible error.

    **Guarantee.** After ``m`` rows: ``count − error ≤ true count ≤ count`` for every key listed,
    ``error ≤ m / capacity``, and every key with more than ``m / capacity`` rows is listed. Constant time per
    row.

    References
    ----------
    A. Metwally, D. Agrawal, A. El Abbadi: Efficient computation of frequent and top-k elements in data
    streams. ICDT 2005.

    Examples
    --------
    >>> import numpy as np
    >>> sketch = SpaceSaving(3)
    >>> sketch.update(np.array([5, 5, 5, 6, 6, 7, 8, 5], dtype=np.uint64))
    >>> keys, counts, errors = sketch.heaviest()
    >>> keys.tolist(), counts.tolist(), errors.tolist()
    ([5, 6, 8], [4, 2, 2], [0, 0, 1])
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ParameterError(f"SpaceSaving needs at least one counter, got {capacity}")
        self.capacity = capacity
        size = 1 << max(2, int(4 * capacity - 1).bit_length())
        self.arrays = Sketch(
            np.zeros((capacity, 5), np.int64),
            np.stack([np.zeros(capacity, np.int64), np.arange(capacity)], axis=1),
            np.full(size, -1, np.int32),
            np.array([0, 0, capacity], np.int64),
        )

    @property
    def messages(self) -> int:
        """Return the number of rows counted so far."""
        return int(self.arrays.state[ROWS])

    def update(self, keys: Keys) -> None:
        """Count each key, in the order given."""
        _update(*self.arrays, keys)

    def heaviest(self) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
        """Return keys, counts and possible over-counts, the heaviest first."""
        used = int(self.arrays.state[_USED])
        top = self.arrays.entries[self.capacity - used :][::-1].copy()
        return top[:, KEY].astype(np.uint64), top[:, COUNT], top[:, ERROR]

    def counters(self) -> Counters:
        """Return everything that later answers depend on, as arrays."""
        keys, counts, errors = self.heaviest()
        return {"heavy_keys": keys, "heavy_counts": counts, "heavy_errors": errors}

    def restore(self, counters: Counters) -> None:
        """Go on from :meth:`counters`."""
        try:
            keys, counts = counters["heavy_keys"], counters["heavy_counts"]
            errors = counters["heavy_errors"]
        except KeyError as missing:
            raise CheckpointError(f"saved heavy-hitter counters lack {missing}") from None
        if not len(keys) == len(counts) == len(errors) <= self.capacity:
            raise CheckpointError(f"saved heavy-hitter counters do not fit {self.capacity} counters")
        self.arrays = SpaceSaving(self.capacity).arrays
        _load(*self.arrays, keys.astype(np.uint64), counts.astype(np.int64), errors.astype(np.int64))


@helper
def _home(table, key):  # type: ignore[no-untyped-def]
    # Fold the high half in: keys may be small integers as well as hashes.
    key = np.uint64(key)
    mixed = (key ^ (key >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(32)) & np.uint64(len(table) - 1))


@helper
def _enter(entries, table, key, at):  # type: ignore[no-untyped-def]
    where = _home(table, key)
    while table[where] >= 0:
        where = (where + 1) & (len(table) - 1)
    table[where] = at
    entries[at, SLOT] = where


@helper
def _leave(entries, table, at):  # type: ignore[no-untyped-def]
    """Free an entry's place in the table, and close the gap so that no search stops short."""
    mask = len(table) - 1
    gap = entries[at, SLOT]
    where = gap
    while True:
        where = (where + 1) & mask
        moved = np.int64(table[where])
        if moved < 0:
            break
        home = _home(table, entries[moved, KEY])
        if ((where - home) & mask) >= ((where - gap) & mask):
            table[gap] = moved
            entries[moved, SLOT] = gap
            gap = where
    table[gap] = -1


@helper
def _start_run(entries, runs, state, at):  # type: ignore[no-untyped-def]
    state[_FREE_RUNS] -= 1
    fresh = runs[state[_FREE_RUNS], _FREE]
    runs[fresh, _LAST] = at
    entries[at, RUN] = fresh


@helper
def _increment(entries, runs, table, state, at):  # type: ignore[no-untyped-def]
    run = entries[at, RUN]
    end = runs[run, _LAST]
    if end != at:
        entries[at, KEY], entries[end, KEY] = entries[end, KEY], entries[at, KEY]
        entries[at, ERROR], entries[end, ERROR] = entries[end, ERROR], entries[at, ERROR]
        entries[at, SLOT], entries[end, SLOT] = entries[end, SLOT], entries[at, SLOT]
        table[entries[at, SLOT]] = at
        table[entries[end, SLOT]] = end
    count = entries[end, COUNT] + 1
    entries[end, COUNT] = count
    alone = end == len(entries) - state[_USED] or entries[end - 1, RUN] != run
    if end + 1 < len(entries) and entries[end + 1, COUNT] == count:
        entries[end, RUN] = entries[end + 1, RUN]
        if alone:
            runs[state[_FREE_RUNS], _FREE] = run
            state[_FREE_RUNS] += 1
        else:
            runs[run, _LAST] = end - 1
    elif not alone:
        runs[run, _LAST] = end - 1
        _start_run(entries, runs, state, end)
    return count


@helper
def touch(entries, runs, table, state, key):  # type: ignore[no-untyped-def]
    """Count one row of ``key`` in the arrays of a :class:`Sketch`; return the key's count so far."""
    state[ROWS] += 1
    capacity = len(entries)
    signed = np.int64(key)
    where = _home(table, key)
    at = np.int64(table[where])
    while at >= 0 and entries[at, KEY] != signed:
        where = (where + 1) & (len(table) - 1)
        at = np.int64(table[where])
    if at < 0 and state[_USED] < capacity:
        state[_USED] += 1
        at = capacity - state[_USED]
        entries[at, KEY] = signed
        entries[at, COUNT] = 1
        entries[at, ERROR] = 0
        entries[at, SLOT] = where
        table[where] = at
        if at + 1 < capacity and entries[at + 1, COUNT] == 1:
            entries[at, RUN] = entries[at + 1, RUN]
        else:
            _start_run(entries, runs, state, at)
        return np.int64(1)
    if at < 0:
        at = runs[entries[0, RUN], _LAST]
        _leave(entries, table, at)
        entries[at, KEY] = signed
        entries[at, ERROR] = entries[at, COUNT]
        _enter(entries, table, signed, at)
    return _increment(entries, runs, table, state, at)


@compiled(*SKETCH, "uint64[]")
def _update(entries, runs, table, state, keys):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        touch(entries, runs, table, state, keys[i])


@compiled(*SKETCH, "uint64[]", "int64[]", "int64[]")
def _load(entries, runs, table, state, keys, counts, errors):  # type: ignore[no-untyped-def]
    fill(entries, runs, table, state, keys, counts, errors, len(keys))


@helper
def fill(entries, runs, table, state, keys, counts, errors, used):  # type: ignore[no-untyped-def]
    """Put ``used`` keys, the heaviest first, into the arrays of a :class:`Sketch` that is empty."""
    for i in range(used):
        at = len(entries) - 1 - i
        entries[at, KEY] = np.int64(keys[i])
        entries[at, COUNT] = counts[i]
        entries[at, ERROR] = errors[i]
        state[ROWS] += counts[i]
        _enter(entries, table, keys[i], at)
        if i > 0 and counts[i] == counts[i - 1]:
            entries[at, RUN] = entries[at + 1, RUN]
        else:
            _start_run(entries, runs, state, at)
    state[_USED] = used


@helper
def decay(entries, runs, table, state, factor):  # type: ignore[no-untyped-def]
    """Multiply all counts of a :class:`Sketch`, rounded down; keys of which nothing is left go."""
    capacity = len(entries)
    keys = np.empty(capacity, np.uint64)
    counts = np.empty(capacity, np.int64)
    errors = np.empty(capacity, np.int64)
    used = 0
    for at in range(capacity - 1, capacity - 1 - state[_USED], -1):
        left = np.int64(entries[at, COUNT] * factor)
        if left == 0:
            break
        keys[used] = np.uint64(entries[at, KEY])
        counts[used] = left
        errors[used] = np.int64(entries[at, ERROR] * factor)
        used += 1
    table[:] = -1
    state[_USED] = 0
    state[ROWS] = 0
    state[_FREE_RUNS] = capacity
    for run in range(capacity):
        runs[run, _FREE] = run
    fill(entries, runs, table, state, keys, counts, errors, used)
