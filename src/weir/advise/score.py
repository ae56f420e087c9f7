"""The score of some routing on some rows: how many stay local, and how evenly they are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Score:
    """Rows that stay on their server per hop, and rows per operator and server. Scores of several slices add up.

    >>> one = Score(np.array([5.0]), 10, np.array([[5.0, 5.0], [8.0, 2.0]]))
    >>> (one + one).locality, (one + one).imbalance
    (0.5, [1.0, 1.6])
    """

    local: NDArray[np.float64]
    rows: float
    loads: NDArray[np.float64]

    @property
    def hops(self) -> list[float]:
        """Return, per hop, the share of rows that stay on their server."""
        return (self.local / max(1.0, self.rows)).tolist()

    @property
    def locality(self) -> float:
        """Return the share of rows that stay on their server, averaged over the hops."""
        return float(np.mean(self.hops))

    @property
    def imbalance(self) -> list[float]:
        """Return, per operator, the load of the busiest server over the average."""
        return (self.loads.max(axis=1) / np.maximum(self.loads.mean(axis=1), 1e-12)).tolist()

    def __add__(self, other: Score) -> Score:
        return Score(self.local + other.local, self.rows + other.rows, self.loads + other.loads)

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the score as JSON can hold it, given the operators' names."""
        balance = dict(zip(names, self.imbalance, strict=True))
        return {"locality": self.locality, "hops": self.hops, "imbalance": balance}
