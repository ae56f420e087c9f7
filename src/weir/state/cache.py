"""What a process keeps of segments, bounded.

Segments on local file systems are mapped into memory, which costs address space and file handles of the system but no
memory of its own: their number is bounded. Whatever is read from remote storage, or decoded, is bounded in bytes:
512 MB per process, or what ``WEIR_CACHE_MB`` says in its environment. What has not been used for longest goes
first. A value that is in use while it goes stays alive until its user is done.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from weir.errors import ParameterError

V = TypeVar("V")


class Bounded(Generic[V]):
    """Keeps the values used last, as many as their sizes allow.

    >>> kept = Bounded(limit=10)
    >>> for name, size in [("a", 4), ("b", 4), ("c", 4), ("huge", 11)]:
    ...     kept.put(name, name.upper(), size)
    >>> kept.get("a"), kept.get("b"), kept.get("c"), kept.get("huge"), kept.size
    (None, 'B', 'C', None, 8)
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> V | None:
        """Return a value, or None if it is not here."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keep a value, unless it is larger than everything together may be."""
        with self._lock:
            self._remove(key)
            if size > self.limit:
                return
            self._entries[key] = (value, size)
            self.size += size
            while self.size > self.limit:
                self._remove(next(iter(self._entries)))

    def get_or_make(self, key: Hashable, make: Callable[[], V], size_of: Callable[[V], int]) -> V:
        """Return a value; make and keep it if it is not here."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value, size_of(value))
        return value

    def discard(self, unwanted: Callable[[Any], bool]) -> None:
        """Let go of the values whose keys are unwanted."""
        with self._lock:
            for key in [key for key in self._entries if unwanted(key)]:
                self._remove(key)

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= entry[1]


def _cache_bytes() -> int:
    text = os.environ.get("WEIR_CACHE_MB", "512")
    if not text.isdigit():
        raise ParameterError(f"WEIR_CACHE_MB={text!r}: expected a whole number of megabytes")
    return int(text) << 20


# more than all servers' segments: new owners of keys look into those of old
MAPS: Bounded[Any] = Bounded(4096)
BYTES: Bounded[Any] = Bounded(_cache_bytes())
