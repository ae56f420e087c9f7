"""Partial states of keys that are split: what one server has made of its part of a batch's rows so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.operators.process.calls import Done
from weir.state.segment import H1, H2

Hashes = NDArray[np.uint64]


class PartialStates:
    """Grows as keys come: the keys in the order of their first rows, and the state of each."""

    def __init__(self) -> None:
        self._keys: list[pa.Table] = []
        self._at: dict[tuple[int, int], int] = {}  # key → where its state is; made when a key may come again
        self.states: list[bytes] = []

    def prior(self, key_hash: Hashes, key_check: Hashes) -> dict[int, bytes]:
        """Return the states of those keys that have one, by their position."""
        if not self.states:
            return {}
        if len(self._at) < len(self.states):
            keys = self.keys()
            pairs = zip(keys[H1].to_pylist(), keys[H2].to_pylist(), strict=True)
            self._at = {key: at for at, key in enumerate(pairs)}
        at = map(self._at.get, zip(key_hash.tolist(), key_check.tolist(), strict=True))
        return {number: self.states[place] for number, place in enumerate(at) if place is not None}

    def keep(
        self,
        processed: Sequence[Done],
        keys: Sequence[pa.Array],
        names: Sequence[str],
        key_hash: Hashes,
        key_check: Hashes,
    ) -> None:
        """Take the states of keys that were worked on; ``processed`` says at which positions these are."""
        fresh = list(processed)
        if self._at:
            fresh = []
            for done in processed:
                at = self._at.get((int(key_hash[done.number]), int(key_check[done.number])))
                if at is None:
                    fresh.append(done)
                else:
                    self.states[at] = done.state
        chosen = np.array([done.number for done in fresh], np.int64)
        columns = [
            pa.array(key_hash[chosen]),
            pa.array(key_check[chosen]),
            *(key.take(pa.array(chosen)) for key in keys),
        ]
        self._keys.append(pa.table(columns, [H1, H2, *names]))
        self.states += [done.state for done in fresh]

    def keys(self) -> pa.Table:
        """Return the hashes and the columns of all keys, in the order of :attr:`states`."""
        return pa.concat_tables(self._keys)
