"""Streams of guests and places whose affinity is known to change in one way, for what recorded ones leave open."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir_evaluation.locality.replay import RecordedStream

PLACES, GUESTS, NOISE = 120, 1500, 0.15
SERIES = 12  # batches that a team stays
STAY = 84  # batches between two campaigns of a guest, on average
HOURS = 4  # batches of a day

Places = NDArray[np.int64]


def _stable(rng: np.random.Generator) -> Iterator[Places]:
    places = rng.integers(PLACES, size=GUESTS)
    while True:
        yield places


def _campaigns(rng: np.random.Generator) -> Iterator[Places]:
    places = rng.integers(PLACES, size=GUESTS)
    while True:
        leaving = rng.random(GUESTS) < 1 / STAY
        places = np.where(leaving, rng.integers(PLACES, size=GUESTS), places)
        yield places


def _teams(rng: np.random.Generator) -> Iterator[Places]:
    home = rng.integers(PLACES, size=GUESTS)
    while True:
        away = rng.random(GUESTS) < 0.5
        places = np.where(away, home[rng.permutation(GUESTS)], home)
        for _ in range(SERIES):
            yield places


def _shifts(rng: np.random.Generator) -> Iterator[Places]:
    places = rng.integers(PLACES, size=(HOURS, GUESTS))
    while True:
        yield from places


KINDS: dict[str, Callable[[np.random.Generator], Iterator[Places]]] = {
    "stable": _stable,
    "campaigns": _campaigns,
    "teams": _teams,
    "shifts": _shifts,
}


def changing(
    kind: str, *, periods: int = 24, batches: int = 28, rows: int = 1500, seed: int = 0
) -> RecordedStream:
    """Return a stream of places and guests; a row in seven has any place.

    ``"stable"``: every guest has a place. ``"campaigns"``: a guest changes to another place for good, every three
    periods on average. ``"teams"``: guests are at home or away in turn, for three days, with another host each time.
    ``"shifts"``: a guest has four places, one for each quarter of the day.

    >>> stream = changing("shifts", periods=2, batches=4, rows=10)
    >>> len(stream), len(stream.keys[0]), stream.periods.tolist()
    (2, 80, [0, 40, 80])
    """
    rng = np.random.default_rng(seed)
    often = rng.permutation(1 / np.arange(1, GUESTS + 1) ** 0.7)
    often /= often.sum()
    affinity, place, guest = KINDS[kind](rng), [], []
    for _ in range(periods * batches):
        who = rng.choice(GUESTS, rows, p=often)
        place.append(np.where(rng.random(rows) < NOISE, rng.integers(PLACES, size=rows), next(affinity)[who]))
        guest.append(who)
    keys = [
        mix(np.concatenate(k).astype(np.uint64), np.uint64(side)) for side, k in enumerate((place, guest))
    ]
    cuts = np.arange(periods * batches + 1) * rows
    slices = [cuts[first : first + batches + 1] for first in range(0, periods * batches, batches)]
    return RecordedStream(keys, cuts[::batches], slices)
