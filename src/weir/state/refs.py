"""What names a segment in a commit, and its blocks in its own directory."""

from __future__ import annotations

import msgspec

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
