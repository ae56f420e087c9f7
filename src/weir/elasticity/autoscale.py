"""Automatic scaling: when to add servers, when to remove some."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weir.errors import refuse


@dataclass(frozen=True)
class Autoscale:
    """When to add and to remove servers, by lag and congestion; any number of queries may share one.

    Servers are added when the stream has lagged (or an operator was congested *and* the servers busy) for ``patience``
    batches in a row: as many as bring the utilisation down to ``aim``. They are removed after ``calm`` quiet batches,
    as many as leave the rest below ``aim``.

    Parameters
    ----------
    target_lag
        Seconds that the stream may lag behind.
    min, max
        Bounds on the number of servers.
    aim
        Utilisation to scale to.
    high, low
        A server is busy above ``high``, quiet below ``low``; ``low < aim < high``.
    patience, calm
        Batches in a row that count as trouble, as quiet.
    cooldown
        Batches without a decision after a change.
    step
        The most servers to add or to remove at once; ``None`` for any number.
    whole_hosts
        Count hosts, with all their servers, instead of servers.

    Examples
    --------
    >>> watcher = Autoscale(target_lag=10, min=2, max=8, patience=2, calm=3, cooldown=1).watcher()
    >>> [watcher.watch(2, lag=15, congested=1, utilisation=1.0) for _ in range(2)]
    [0, 2]
    >>> [watcher.watch(4, lag=1, congested=0, utilisation=0.2) for _ in range(5)]
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

    def __post_init__(self) -> None:
        ordered, low = 0 < self.low < self.aim < self.high <= 1, min(self.patience, self.calm, self.step or 1)
        refuse(
            "Autoscale needs ",
            (not 1 <= self.min <= self.max, f"1 ≤ min ≤ max, got min={self.min}, max={self.max}"),
            (self.target_lag <= 0, f"a positive target_lag, got {self.target_lag}"),
            (not ordered, f"0 < low < aim < high ≤ 1, got {self.low}, {self.aim}, {self.high}"),
            (low < 1 or self.cooldown < 0, "patience, calm and step of at least 1, cooldown of at least 0"),
        )

    def watcher(self) -> AutoscaleWatcher:
        """Return a new watcher, for the batches of one query."""
        return AutoscaleWatcher(self)


class AutoscaleWatcher:
    """Counts the batches of one query and says when to scale it by an :class:`Autoscale`."""

    def __init__(self, config: Autoscale) -> None:
        self.config = config
        self._late = self._quiet = self._wait = 0  # batches in a row, and batches left to wait

    def watch(self, servers: int, *, lag: float, congested: int, utilisation: float) -> int:
        """Take in one batch; return how many servers to add (positive) or to remove (negative) now.

        ``lag`` is the seconds that the stream is behind, ``congested`` the number of congested operators,
        ``utilisation`` the busy share of the servers' time, on average.
        """
        config = self.config
        if servers < config.min:
            return self._act(config.min - servers)
        if servers > config.max:
            return self._act(config.max - servers)
        if self._wait:
            self._wait -= 1
            return 0
        late = lag > config.target_lag or (congested > 0 and utilisation > config.high)
        quiet = lag <= config.target_lag / 2 and not congested and utilisation < config.low
        self._late = self._late + 1 if late else 0
        self._quiet = self._quiet + 1 if quiet else 0
        needed = math.ceil(servers * utilisation / config.aim - 1e-9)
        if self._late >= config.patience and servers < config.max:
            # a stream that lags although no server is busy waits for one operator: more of the others don't help it
            return self._act(min(max(1, needed - servers), config.max - servers))
        if self._quiet >= config.calm and max(config.min, needed) < servers:
            return self._act(max(config.min, needed) - servers)
        return 0

    def _act(self, change: int) -> int:
        self._late = self._quiet = 0
        self._wait = self.config.cooldown
        most = self.config.step or abs(change)
        return max(-most, min(most, change))
