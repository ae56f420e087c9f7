"""What names a segment in a commit, and its blocks in its own directory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from weir.state.columns import NEVER


# a driver of a thousand servers holds a million of them: the garbage collector need not look at what refers to nothing
class SegmentRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names a segment in a commit: all that is needed to find and verify it."""

    name: str
    rows: int
    bytes: int
    crc: int
    min_deadline: int = NEVER
    directory: tuple[int, int, int] | None = None  # start, length and checksum of the list of its blocks
    # first and last hash of the slices that count; None: all of it
    ranges: tuple[tuple[int, int], ...] | None = None
    share: float = 1.0  # the part of its entries that these hold, about

    @property
    def whole(self) -> SegmentRef:
        """The segment without its limits."""
        return self if self.ranges is None else msgspec.structs.replace(self, ranges=None, share=1.0)

    def sliced(self, ranges: Sequence[tuple[int, int]], share: float) -> SegmentRef | None:
        """Return the part of it within some ranges, which is about this share of it; None if there is none.

        >>> ref = SegmentRef("s", 100, 0, 0).sliced([(0, 9), (20, 29)], 0.5)
        >>> ref.ranges, ref.sliced([(5, 24)], 0.4).ranges, ref.sliced([(12, 15)], 0.1)
        (((0, 9), (20, 29)), ((5, 9), (20, 24)), None)
        """
        own = ((0, (1 << 64) - 1),) if self.ranges is None else self.ranges
        both = [(max(a, c), min(b, d)) for a, b in own for c, d in ranges if max(a, c) <= min(b, d)]
        return msgspec.structs.replace(self, ranges=tuple(both), share=self.share * share) if both else None

    @property
    def entries(self) -> int:
        """How many entries it counts for, about."""
        return self.rows if self.ranges is None else max(1, round(self.rows * self.share))

    def holds(self, key_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which hashes lie in its slices."""
        if self.ranges is None:
            return np.ones(len(key_hash), np.bool_)
        bounds = np.array(self.ranges, np.uint64)
        at = np.searchsorted(bounds[:, 0], key_hash, "right") - 1
        return (at >= 0) & (key_hash <= bounds[at, 1])


class BlockRef(msgspec.Struct, frozen=True, array_like=True):
    """One block of a segment: a record batch, the system columns at its front."""

    rows: int
    first: int  # the lowest h1
    last: int  # the highest
    min_deadline: int
    start: int  # where it begins in the file
    middle: int  # where its system columns end
    end: int
    index_crc: int  # of the bytes up to the middle
    data_crc: int  # of those after it


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of a segment, in the order of their hashes."""

    schema: bytes
    blocks: list[BlockRef]
