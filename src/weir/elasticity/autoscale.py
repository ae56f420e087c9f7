"""Scaling without being asked: when to add machines, when to let some go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from weir.errors import TopologyError


@dataclass
class Autoscale:
    """Watches lag and congestion and says how many machines to add or to let go.

    Adds as soon as the stream has lagged (or an operator has been congested *and* the machines busy) for
    ``patience`` batches in a row, as many machines as bring the utilisation down to ``aim``. Lets machines go
    only after ``calm`` quiet batches, and only as many as leave the rest below ``aim``; so what was added is not
    let go again by the same load. After every change it waits ``cooldown`` batches for the effect.

    Parameters
    ----------
    target_lag
        Seconds that the stream may lag behind.
    min, max
        Bounds on the number of machines.
    aim
        Utilisation to scale to.
    high, low
        A machine is busy above ``high``, quiet below ``low``; ``low < aim < high``.
    patience, calm
        Batches in a row that count as trouble, as quiet.
    cooldown
        Batches without a decision after a change.
    step
        The most machines to add or to let go at once; ``None`` for any number.
    whole_hosts
        Machines are hosts, with all their servers, instead of servers.

    Examples
    --------
    >>> scale = Autoscale(target_lag=10, min=2, max=8, patience=2, calm=3, cooldown=1)
    >>> [scale.watch(2, lag=15, congested=1, utilisation=1.0) for _ in range(2)]
    [0, 2]
    >>> [scale.watch(4, lag=1, congested=0, utilisation=0.2) for _ in range(5)]
    [0, 0, 0, -2, 0]
    """

    target_lag: float
    min: int = 1
    max: int = 16
    aim: float = 0.65
    high: float = 0.85
    low: float = 0.5
    patience: int = 3
    calm: int = 12
    cooldown: int = 5
    step: int | None = None
    whole_hosts: bool = False
    _trouble: int = field(default=0, repr=False)
    _quiet: int = field(default=0, repr=False)
    _wait: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise TopologyError(f"Autoscale needs 1 ≤ min ≤ max, got min={self.min}, max={self.max}")
        if self.target_lag <= 0:
            raise TopologyError(f"Autoscale needs a positive target_lag, got {self.target_lag}")
        if not 0 < self.low < self.aim < self.high <= 1:
            raise TopologyError(
                f"Autoscale needs 0 < low < aim < high ≤ 1, got {self.low}, {self.aim}, {self.high}"
            )
        if self.patience < 1 or self.calm < 1 or self.cooldown < 0 or (self.step or 1) < 1:
            raise TopologyError(
                "Autoscale needs patience, calm and step of at least 1, cooldown of at least 0"
            )

    def watch(self, machines: int, *, lag: float, congested: int, utilisation: float) -> int:
        """Takes in one batch; how many machines to add (positive) or to let go (negative) now.

        Parameters
        ----------
        machines
            How many there are.
        lag
            Seconds that the stream is behind.
        congested
            Number of congested operators.
        utilisation
            Busy share of the machines' time, on average.
        """
        if machines < self.min:
            return self._act(self.min - machines)
        if machines > self.max:
            return self._act(self.max - machines)
        if self._wait:
            self._wait -= 1
            return 0
        late = lag > self.target_lag
        trouble = late or (congested > 0 and utilisation > self.high)
        quiet = lag <= self.target_lag / 2 and not congested and utilisation < self.low
        self._trouble = self._trouble + 1 if trouble else 0
        self._quiet = self._quiet + 1 if quiet else 0
        if self._trouble >= self.patience and machines < self.max:
            # late although nobody is busy: one operator holds all up, more of the rest would not help
            wanted = math.ceil(machines * utilisation / self.aim - 1e-9)
            return self._act(min(max(1, wanted - machines), self.max - machines))
        if self._quiet >= self.calm and machines > self.min:
            needed = max(self.min, math.ceil(machines * utilisation / self.aim - 1e-9))
            if needed < machines:
                return self._act(needed - machines)
        return 0

    def _act(self, change: int) -> int:
        self._trouble = self._quiet = 0
        self._wait = self.cooldown
        bound = self.step or abs(change)
        return max(-bound, min(bound, change))
