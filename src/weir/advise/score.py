"""How rows fare under some tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Score:
    """How rows fare under some tables: hops that stay local, and rows per operator and server.

    Scores of several slices add up.

    >>> one = Score(np.array([5.0]), 10, np.array([[5.0, 5.0], [8.0, 2.0]]))
    >>> (one + one).locality, (one + one).imbalance
    (0.5, [1.0, 1.6])
    """

    local: NDArray[np.float64]
    rows: float
    loads: NDArray[np.float64]

    @property
    def hops(self) -> list[float]:
        """Per hop: the share of rows that stay on their server."""
        return (self.local / max(1.0, self.rows)).tolist()

    @property
    def locality(self) -> float:
        """The same over all hops."""
        return float(np.mean(self.hops))

    @property
    def imbalance(self) -> list[float]:
        """Per operator: busiest server over average."""
        return (self.loads.max(axis=1) / np.maximum(self.loads.mean(axis=1), 1e-12)).tolist()

    def __add__(self, other: Score) -> Score:
        return Score(self.local + other.local, self.rows + other.rows, self.loads + other.loads)

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        balance = dict(zip(names, self.imbalance, strict=True))
        return {"locality": self.locality, "hops": self.hops, "imbalance": balance}
