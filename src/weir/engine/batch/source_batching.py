"""What a batch takes from sources that the driver cuts up: topics, and files that servers read.

Whoever hands over work (Spark's trigger, a test) begins a *round*. What the sources have by then is cut into as many
batches as their limits ask for. What each batch reads is in its plan, and where the next one goes on is in its
commit, so a batch that runs again reads the same, and none is read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from weir.engine.documents import Commit, Input
from weir.graph.declare import LISTED
from weir.operators.read import is_half_read

Position = dict[str, int]
Columns = dict[str, list[Any]]  # the rows that a reading operator gets, by column


class SplittableSource(Protocol):
    """What a source that is cut up answers. Sizes are in units of its own: messages, or bytes."""

    most: int | None  # of a batch, as the user limits it
    first: int  # of the first batch, where batches have a target time
    smallest: int

    @property
    def grows(self) -> bool:
        """Whether it may reach further each time that one looks, within one round.

        Then a batch that runs again keeps to what was planned, and a bounded run has read all when a commit says so.
        """

    def begin(self, position: Position | None, tick: int, listing: pa.Table | None, again: bool) -> Position:
        """Look how far the source reaches; return where to go on. ``position`` None: nothing was ever cut up.

        ``tick`` is the round's number, ``again`` whether some batch of it has been committed.
        """

    def cut(self, position: Position, most: float | None) -> tuple[Columns, Position]:
        """Return what the next batch reads, and the position behind it."""

    def size(self, position: Position) -> int:
        """Return how much is left behind a position."""

    def read(self, position: Position) -> pa.Table | None:
        """Return what a stream must pass over that goes on behind this round; None: the position says it."""

    def about(self, position: Position) -> dict[str, Any]:
        """Return what the progress says of it."""

    def committed(self, position: Position) -> None:
        """Hear how far a batch has come that is committed and delivered."""


class SourceBatching:
    """Cuts sources into batches, as large as limits and a target time allow.

    With a ``target`` (seconds) the size of a batch follows what the last ones took: it is multiplied by target over
    time, by 2 at most and ½ at least, within the feed's own limits.

    >>> class Numbers:
    ...     most, first, smallest = 1000, 100, 10
    ...     def begin(self, position, tick, listing, again): return {"at": 0}
    ...     def cut(self, position, most):
    ...         return {}, {"at": min(5000, position["at"] + int(most))}
    ...     def size(self, position): return 5000 - position["at"]
    ...     def committed(self, position): pass
    >>> batching, sizes = SourceBatching({"n": Numbers()}, target=2.0), []
    >>> batching.begin(None, 0, {})
    >>> while batching.behind and len(sizes) < 6:
    ...     positions = batching.cut()[1]
    ...     sizes.append(positions["n"]["at"] - batching.positions["n"]["at"])
    ...     batching.reached(positions, sizes[-1] / 200)   # 200 per second
    >>> sizes
    [100, 200, 400, 400, 400, 400]
    """

    def __init__(self, feeds: Mapping[str, SplittableSource], target: float | None = None) -> None:
        self.feeds, self.target = dict(feeds), target
        self.positions: dict[str, Position] = {}
        self._limits: dict[str, float | None] = {
            name: feed.most if target is None else float(min(feed.first, feed.most or feed.first))
            for name, feed in self.feeds.items()
        }
        self._taken: dict[str, int] = {}

    def begin(self, last: Commit | None, tick: int, listings: Mapping[str, pa.Table]) -> None:
        """Begin a round behind the last commit: look how far all sources reach."""
        positions = {} if last is None or last.input is None else last.input.positions
        again = last is not None and last.handed_over == tick
        self.positions = {
            name: feed.begin(positions.get(name), tick, listings.get(name), again)
            for name, feed in self.feeds.items()
        }

    @property
    def grows(self) -> bool:
        """Whether only a commit that says so tells that a bounded run has read all."""
        return any(feed.grows for feed in self.feeds.values())

    def ended_in_between(self, last: Commit) -> bool:
        """Return whether the last commit left something of its round to be read."""
        positions = {} if last.input is None else last.input.positions
        return any(is_half_read(positions[name]) for name in self.feeds if name in positions)

    @property
    def behind(self) -> bool:
        """Whether something is left to be read in this round."""
        return any(feed.size(self.positions[name]) for name, feed in self.feeds.items())

    def cut(self, planned: Input | None = None) -> tuple[dict[str, Columns], dict[str, Position]]:
        """Return what the next batch reads, and the positions behind it.

        Of a batch that was ``planned`` before, files are listed anew: one may have been repaired, and nothing of the
        batch has been committed.
        """
        columns, positions = {}, {}
        for name, feed in self.feeds.items():
            before = self.positions[name]
            if planned is not None and feed.grows and name in planned.listing:
                columns[name], positions[name] = planned.listing[name], planned.positions[name]
                continue
            columns[name], positions[name] = feed.cut(before, self._limits[name])
            self._taken[name] = feed.size(before) - feed.size(positions[name])
        return columns, positions

    def reached(self, positions: Mapping[str, Position], seconds: float) -> None:
        """Go on behind a batch that has happened, and fit the size of the next one to the time that it took."""
        self.positions = {name: positions[name] for name in self.feeds}
        for name, feed in self.feeds.items():
            feed.committed(positions[name])
        if self.target is None:
            return
        factor = min(2.0, max(0.5, self.target / max(seconds, 1e-6)))
        for name, feed in self.feeds.items():
            taken, limit = self._taken.get(name, 0), self._limits[name] or feed.first
            full = taken >= 0.9 * limit or feed.size(self.positions[name]) > 0
            if taken and (full or factor < 1):  # a small batch that was quick says nothing about large ones
                wanted = (limit if full else taken) * factor
                self._limits[name] = max(float(feed.smallest), min(wanted, float(feed.most or wanted)))

    def about(self, positions: Mapping[str, Position]) -> dict[str, dict[str, Any]]:
        """Return what the progress says of the sources at some positions, by the names that users know."""
        return {
            name.removesuffix(LISTED): {**feed.about(positions[name]), "limit": self._limits[name]}
            for name, feed in self.feeds.items()
        }


def next_input(
    source_batching: SourceBatching | None, last: Commit | None, reads: bool, planned: Input | None = None
) -> Input | None:
    """Return what the next batch takes from sources that are cut up; without any, what earlier batches have read."""
    before = None if last is None else last.input
    if source_batching is None or not reads:
        return before
    listing, positions = source_batching.cut(planned)
    if before is None:
        return Input(positions, listing)
    return Input({**before.positions, **positions}, listing, before.read)
