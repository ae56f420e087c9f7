"""What a file system does for a checkpoint, and which one a place is on."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from weir.errors import CheckpointError, ParameterError
from weir.extras import install
from weir.state.location import Place

Option = str | int | float | bool


class Files(Protocol):
    """Files below one root, by relative name with slashes.

    A missing file is a FileNotFoundError, what else goes wrong an OSError or a CheckpointError that names the file.
    """

    root: str  # as messages name it

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of this name."""

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in any order; none if there is no such folder."""

    def files(self, folder: str) -> list[str]:
        """Return the names, relative to the root, of all files below a folder."""

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a file."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of a file from each start to its end; fewer where the file is shorter."""

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Write a file, piece by piece; when this returns, it is kept."""

    def create(self, name: str, data: bytes) -> None:
        """Write a file that appears whole or not at all; FileExistsError if there is one."""

    def delete(self, *names: str) -> None:
        """Delete files, those that there are."""

    def delete_folder(self, name: str) -> None:
        """Delete a folder with all that is in it, if there is one."""


def open_files(place: Place, options: dict[str, Option]) -> Files:
    """Return the files at a place; the same ones, with their connections, for one place in a process."""
    if options and place.kind != "object":
        raise ParameterError(
            f"{place.uri}: storage options are for object stores (s3://, gs://, az://); leave them out."
        )
    return _open(place, tuple(sorted(options.items())), os.getpid())


@functools.lru_cache(maxsize=16)
def _open(place: Place, options: tuple[tuple[str, Option], ...], process: int) -> Files:
    if place.kind == "local":
        from weir.state.local_files import LocalFiles

        return LocalFiles(place.uri)
    if place.kind == "object":
        try:
            from weir.state.object_files import ObjectFiles
        except ImportError:
            raise CheckpointError(
                f"{place.uri}: checkpoints in object stores need obstore. Install it where the driver and the "
                f"executors run: {install('object-stores')}"
            ) from None
        return ObjectFiles(place.uri, dict(options))
    from weir.state.arrow_files import ArrowFiles

    return ArrowFiles(place.uri)
