"""Which checkpoints are watched: one, several, or those in a folder."""

from __future__ import annotations

from collections.abc import Sequence

from weir.engine.checkpoint import CheckpointLayout
from weir.errors import CheckpointError
from weir.state.storage import Storage

DEEPEST = 3  # folders below one another in which checkpoints are looked for


class Places:
    """Several checkpoints by name: those that were named, or all below a folder."""

    def __init__(self, locations: Sequence[str], folder: bool) -> None:
        self._locations, self._folder = list(locations), folder
        self.about = locations[0] if folder else f"{len(locations)} checkpoints"

    def find(self) -> dict[str, str]:
        """Return the checkpoints that are there now: a short name for each, and where it is."""
        if not self._folder:
            return dict(zip(short_names(self._locations), self._locations, strict=True))
        root = Storage(self._locations[0])
        # below the folder: what comes later does not change how others are called
        return {at[len(root.location) :].strip("/").replace("/", "~"): at for at in _below(root)}


def places_of(checkpoint: str | Storage | Sequence[str]) -> str | Storage | Places:
    """Return the one checkpoint that is meant, or the places of several."""
    if isinstance(checkpoint, Storage):
        return checkpoint
    locations = [checkpoint] if isinstance(checkpoint, str) else list(checkpoint)
    if len(locations) > 1:
        return Places(locations, folder=False)
    (location,) = locations
    storage = Storage(location)
    if not _is_checkpoint(storage) and storage.exists("") and _below(storage):
        return Places(locations, folder=True)
    return location


def short_names(locations: Sequence[str]) -> list[str]:
    """Return the last part of each location, with as many before it as tell them apart.

    >>> short_names(["a/clicks", "b/clicks", "b/posts/"])
    ['a~clicks', 'b~clicks', 'b~posts']
    >>> short_names(["s3://bucket/clicks"])
    ['clicks']
    """
    parts = [location.rstrip("/").split("/") for location in locations]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["~".join(part[-length:]) for part in parts]
        if len(set(names)) == len({location.rstrip("/") for location in locations}):
            return names
    return [str(number) for number in range(len(locations))]


def _is_checkpoint(storage: Storage) -> bool:
    return storage.exists(CheckpointLayout.HEAD)


def _below(storage: Storage, depth: int = 1) -> list[str]:
    """Return the checkpoints below a folder."""
    found: list[str] = []
    for name in storage.names(""):
        if name.startswith("."):
            continue
        inner = Storage(f"{storage.location}/{name}", storage.options)
        try:
            if _is_checkpoint(inner):
                found.append(inner.location)
            elif depth < DEEPEST:
                found += _below(inner, depth + 1)
        except (CheckpointError, OSError):
            continue  # a file, or not ours to read
    return found
