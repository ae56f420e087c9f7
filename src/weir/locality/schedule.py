"""When new tables are due."""

from __future__ import annotations

AT_ONCE, PER_HOUR = 20, 60  # tables that may change one after the other, and on and on
HOUR = 3_600_000_000  # in µs
_FRESH_EVERY = 4  # reconfigurations of which one tries a fresh partition beside the refined one


class Schedule:
    """Says when a proposal is due: after every period, early in the stream more often, and on request.

    The first proposals come after 1, 2, 4 … batches, until a period is over; without a period they come on request
    only. For ``young`` batches the stream counts as young, so that moving is cheap.

    >>> schedule, due = Schedule(period=8, young=8), []
    >>> for batch in range(1, 25):
    ...     if schedule.due(batch):
    ...         due.append(batch)
    ...         _ = schedule.begin(batch)
    >>> due
    [1, 2, 4, 8, 16, 24]
    """

    def __init__(self, period: int | None, young: int) -> None:
        self.period, self.young = period, young
        self.last = 0  # the batch after which the latest one began
        self.count = 0
        self.requested = False
        self.resized = False  # the number of servers has changed since

    def due(self, batch: int) -> bool:
        """Return whether a proposal is due after this batch, the first being number 1."""
        if not batch:
            return False
        if self.period is None or self.requested:
            return self.requested
        return batch - self.last >= min(self.period, max(1, self.last)) or self.last < self.period <= batch

    def begin(self, batch: int) -> tuple[bool, bool]:
        """Note that a proposal begins; return whether the stream is young and whether to try a fresh partition."""
        early = self.last < self.young
        # for another number of servers the present homes are no good start
        fresh = early or self.resized or self.count % _FRESH_EVERY == _FRESH_EVERY - 1
        self.requested = self.resized = False
        self.last = batch
        self.count += 1
        return early, fresh


class Budget:
    """How many tables may still change: a stream that never settles must not move its keys for ever.

    Time comes from batches' plans, so that a replay decides the same. Where none is told, nothing is bounded.

    >>> budget = Budget()
    >>> budget.tell(0)
    >>> for _ in range(25):
    ...     budget.spend()
    >>> budget.left
    False
    >>> budget.tell(HOUR // 10)
    >>> budget.left
    True
    """

    def __init__(self) -> None:
        self.clock: int | None = None
        self.changes = float(AT_ONCE)

    @property
    def left(self) -> bool:
        """Whether a table may change."""
        return self.clock is None or self.changes >= 1

    def tell(self, clock: int) -> None:
        """Take in the time of a batch, in µs."""
        passed = 0 if self.clock is None else max(0, clock - self.clock)
        self.clock = clock
        self.changes = min(float(AT_ONCE), self.changes + passed * PER_HOUR / HOUR)

    def spend(self) -> None:
        """Note that a table has changed."""
        self.changes = max(0.0, self.changes - 1)
