"""Eleven situations in which a different grouping is best: affinity, skew, slow servers, racks, and some at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir.hashing import mix
from weir.network.distance import Place
from weir_evaluation.simulate.chain import Case

SERVERS = 8
KEYS, GROUPS = 800, 40  # of streams with affinity
INDEPENDENT = 2000  # keys of streams without
SLOW = 0.3  # speed of a slow server
PLACES = [Place(f"process {s}", f"host {s // 2}", f"rack {s // 4}") for s in range(SERVERS)]
LINK = 1e-4  # seconds for which a row holds a host's link: a fifth of what it takes of an operator
Numbers = list[NDArray[np.int64]]  # key numbers, operator by operator
Draw = Callable[[np.random.Generator, int, bool], Numbers]


@dataclass(frozen=True)
class Scenario:
    """What a batch brings (its second half of the run may differ), and which servers are slow before and after."""

    draw: Draw
    slow: tuple[int, ...] = ()
    slow_later: tuple[int, ...] | None = None
    mergeable: bool = True
    racks: bool = False  # whether servers are two each on four hosts, in two racks

    def batches(self, batches: int, rows: int, seed: int) -> list[Numbers]:
        """Return the key numbers of all batches."""
        rng = np.random.default_rng(seed)
        return [self.draw(rng, rows, number >= batches // 2) for number in range(batches)]

    def speeds(self, batches: int) -> NDArray[np.float64]:
        """Return the speed of every server, batch by batch."""
        out = np.ones((batches, SERVERS))
        later = self.slow if self.slow_later is None else self.slow_later
        out[: batches // 2, list(self.slow)] = SLOW
        out[batches // 2 :, list(later)] = SLOW
        return out

    def case(self, batches: int, rows: int, seed: int, work: float = 5e-4) -> Case:
        """Return it for the simulator."""
        keys = [
            [mix(k.astype(np.uint64), np.uint64(operator)) for operator, k in enumerate(numbers)]
            for numbers in self.batches(batches, rows, seed)
        ]
        places = PLACES if self.racks else ()
        return Case(keys, self.speeds(batches), self.mergeable, work, places=places, link=LINK)


def zipf(rng: np.random.Generator, exponent: float, keys: int, rows: int) -> NDArray[np.int64]:
    """Return key numbers, the lower the more frequent."""
    weights = 1.0 / np.arange(1, keys + 1) ** exponent
    return rng.choice(keys, rows, p=weights / weights.sum())


def affine(skew: float = 0.0, company: float = 0.8, drift: int = 0) -> Draw:
    """Return streams of two keys, of which a share is of one group; ``drift`` pairs groups anew in mid-run."""

    def draw(rng: np.random.Generator, rows: int, later: bool) -> Numbers:
        left = zipf(rng, skew, KEYS, rows)
        own = (left + (drift if later else 0)) % GROUPS
        group = np.where(rng.random(rows) < company, own, rng.integers(0, GROUPS, rows))
        return [left, rng.integers(0, KEYS // GROUPS, rows) * GROUPS + group]

    return draw


def independent(skew: float = 0.0, operators: int = 2, hottest: float = 0.0) -> Draw:
    """Return streams whose keys have nothing to do with each other; one has the share ``hottest`` of the rows."""

    def draw(rng: np.random.Generator, rows: int, later: bool) -> Numbers:
        out = [zipf(rng, skew, INDEPENDENT, rows) for _ in range(operators)]
        for keys in out:
            keys[rng.random(rows) < hottest] = 7
        return out

    return draw


SCENARIOS: dict[str, Scenario] = {
    "affinity": Scenario(affine()),
    "affinity, slow": Scenario(affine(), (1, 4)),
    "skew": Scenario(independent(1.4)),
    "skew, slow": Scenario(independent(1.4), (1, 4)),
    "affinity, skew, slow": Scenario(affine(skew=1.2), (1, 4)),
    "affinity, racks": Scenario(affine(), racks=True),
    "nothing to gain": Scenario(independent()),
    "drift": Scenario(affine(skew=0.8, drift=17), (1, 4), (2, 6)),
    "one operator": Scenario(independent(operators=1)),
    "hot key, no merging": Scenario(independent(hottest=0.4), mergeable=False),
    "all at once, no merging": Scenario(affine(skew=0.8, drift=17), (1, 4), (2, 6), mergeable=False),
}


def chosen(names: Sequence[str] | None) -> dict[str, Scenario]:
    """Return some scenarios, or all."""
    return {name: SCENARIOS[name] for name in names or SCENARIOS}
