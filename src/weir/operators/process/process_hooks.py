"""What a Process may do besides taking rows: merge states, and speak up when time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weir.errors import TopologyError
from weir.operators.base import Operator
from weir.operators.process.parts import parts_of
from weir.operators.timers import CLOCKS, Timer, Timers, WindowSpan


class ProcessHooks(Operator):
    """The optional methods of :class:`~weir.Process`; those that a subclass does not write do nothing."""

    state: Any = None
    timers: Sequence[str] = ()

    def _configure_time(
        self,
        timers: str | Sequence[str] | None = None,
        on_timer: Callable[..., Any] | None = None,
        closed: Callable[..., Any] | None = None,
    ) -> None:
        who = type(self).__name__
        wanted = type(self).timers if timers is None else timers
        self.timers = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        for clock in self.timers:
            if clock not in CLOCKS:
                raise TopologyError(f'{who}: timers={clock!r}: expected "event", "processing" or both')
        if on_timer is not None:
            self.on_timer = on_timer  # type: ignore[method-assign]
        if closed is not None:
            self.closed = closed  # type: ignore[method-assign]
        self.windowed = not parts_of(self.state)
        if self.timers and not self.windowed:
            raise TopologyError(
                f"{who}: timers and a ListState or MapState cannot go together; use list and dict"
            )
        writes = on_timer is not None or type(self).on_timer is not ProcessHooks.on_timer
        if writes != bool(self.timers):
            raise TopologyError(
                f'{who}: timers="event" (or "processing") and on_timer(key, timer, state, timers) belong together'
            )

    def merge(self, one: Any, other: Any) -> Any:
        """Return the state that has seen what both have seen."""
        raise NotImplementedError

    def expired(self, key: Any, state: Any) -> Iterable[Any] | None:
        """Called when an idle key is let go; may return rows to emit."""
        return None

    def closed(self, key: Any, window: WindowSpan, state: Any) -> Iterable[Any] | None:
        """Called once when a window of a key closes, with the window's start and end; may return rows to emit."""
        return None

    def on_timer(self, key: Any, timer: Timer, state: Any, timers: Timers) -> Iterable[Any] | None:
        """Called once for each timer that goes off, before the key's rows of that batch; may return rows to emit.

        Timers go off when the watermark, or the clock of a batch, has reached their time, in the order of their times;
        also while no rows come.
        """
        return None
