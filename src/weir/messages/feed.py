"""What topics have to offer, cut into batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from weir.errors import SourceError
from weir.messages.topics import Range, Topics, expired_error, place

PARTITION, START, END = "partition", "start", "end"
RANGES = pa.schema([(PARTITION, pa.string()), (START, pa.int64()), (END, pa.int64())])

Position = dict[str, int]  # partition → the next offset to read; topic → its id, where brokers know one


@dataclass
class TopicFeed:
    """Plans which offsets a batch reads: at the start of a round it asks how far the topics reach, then cuts that up.

    ``start`` is ``"earliest"``, ``"latest"`` or a time in ms since 1970, for partitions that are there when the query
    starts; those that come later are read from their first message. ``most`` limits the messages of a batch. The
    offsets of the consumer ``group`` follow the commits.
    """

    topics: Topics
    start: str | int = "earliest"
    expired: str = "fail"
    most: int | None = None
    smallest: int = 1000
    first: int = 50_000
    group: str | None = None
    grows: ClassVar[bool] = True
    _reach: dict[str, tuple[int, int]] = field(default_factory=dict)
    skipped: int = 0  # offsets that had expired, in this run

    def begin(
        self, position: Position | None, tick: int, listing: Any = None, again: bool = False
    ) -> Position:
        """Ask how far the topics reach; return the position to go on from."""
        partitions = self.topics.partitions()
        self._reach = self.topics.offsets(partitions)
        ids = self.topics.ids({place(partition)[0] for partition in partitions})
        if position is None:
            return self._first(partitions) | ids
        for topic, number in ids.items():
            if position.get(topic, number) != number:
                raise SourceError(
                    f"topic {topic!r} was deleted and made anew since the last batch. {_START_ANEW}"
                )
        gone = [p for p in _partitions(position) if p not in self._reach]
        if gone and self.expired != "skip":
            raise SourceError(
                f"{gone[0]}: this partition is gone; the topic was deleted or made anew with fewer. To go on with what "
                'is left, start the query with on_expired="skip" in weir.kafka(…).'
            )
        out = dict(ids)
        for partition, (low, high) in self._reach.items():
            at = position.get(partition, low)
            if at > high:
                raise SourceError(
                    f"{partition}: ends at offset {high}, but {at} has been read: the topic was made anew, or messages "
                    f"were lost. {_START_ANEW}"
                )
            if at < low:
                if self.expired != "skip":
                    raise expired_error(Range(partition, at, low))
                self.skipped += low - at
            out[partition] = max(at, low)
        return out

    def _first(self, partitions: list[str]) -> Position:
        if self.start == "latest":
            return {p: high for p, (_, high) in self._reach.items()}
        if self.start == "earliest":
            return {p: low for p, (low, _) in self._reach.items()}
        asked = self.topics.offsets(partitions, int(self.start))
        return {p: min(asked[p][0], self._reach[p][1]) for p in partitions}

    def read(self, position: Position) -> None:
        """Return nothing: offsets say what was read."""

    def cut(self, position: Position, most: float | None) -> tuple[dict[str, list[Any]], Position]:
        """Return the ranges of the next batch, and the position behind it.

        Of more than ``most`` messages each partition gets its share.

        >>> feed = TopicFeed(Topics("", ("a",)))
        >>> feed._reach = {"a/0": (0, 90), "a/1": (0, 10), "a/2": (0, 5)}
        >>> feed.cut({"a/0": 0, "a/1": 0, "a/2": 5}, 50)
        ({'partition': ['a/0', 'a/1'], 'start': [0, 0], 'end': [45, 5]}, {'a/0': 45, 'a/1': 5, 'a/2': 5})
        """
        left = self._left(position)
        total, after = sum(left.values()), dict(position)
        share = 1.0 if most is None or total <= most else most / total
        columns: dict[str, list[Any]] = {name: [] for name in RANGES.names}
        for partition in sorted(left):
            at = position[partition]
            if left[partition]:
                after[partition] = at + max(1, int(left[partition] * share))
                for name, value in zip(RANGES.names, (partition, at, after[partition]), strict=True):
                    columns[name].append(value)
        return columns, after

    def size(self, position: Position) -> int:
        """Return how many offsets are left behind a position, as far as this round knows."""
        return sum(self._left(position).values())

    def _left(self, position: Position) -> dict[str, int]:
        return {p: self._reach.get(p, (at, at))[1] - at for p, at in _partitions(position).items()}

    def about(self, position: Position) -> dict[str, Any]:
        """Return what the progress says of it."""
        return {"lag": self.size(position), "partitions": len(_partitions(position)), "skipped": self.skipped}

    def committed(self, position: Position) -> None:
        """Hear how far a batch has come that is committed and delivered."""
        if self.group is not None:
            self.topics.commit(self.group, _partitions(position))


_START_ANEW = "Start with an empty checkpoint folder to read it from its start."


def _partitions(position: Position) -> Position:
    """Return a position without the ids of topics."""
    return {partition: at for partition, at in position.items() if "/" in partition}
