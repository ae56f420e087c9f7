"""Tables that do not pay are taken back: the homes before them, when these are judged, and the rest that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.locality.key_homes import KeyHomes

BACK = "back"  # the method of a proposal that takes tables back
FEWEST = 2  # batches that must have come under new tables
RESTS = (
    8,
    64,
)  # batches without new tables once some were taken back: first, and at most; each time twice as many

KeyServers = dict[
    int, tuple[NDArray[np.uint64], NDArray[np.int32]]
]  # operator → keys, and the server of each


class FormerHomes:
    """The homes that new tables have replaced, until it is known whether these pay.

    Once the rows that judge proposals have all come under the new tables, the former homes are proposed again, and
    judged by these rows like any proposal. If they win, keys go back, and new tables rest: 8 batches, then 16 … 64,
    unless servers change or somebody asks.

    >>> former = FormerHomes()
    >>> for batch in (10, 30):
    ...     former.rest(batch)
    >>> former.rests(45), former.rests(46)
    (True, False)
    """

    def __init__(self) -> None:
        self.homes: KeyServers = {}
        self._seen = 0  # batches since they were replaced
        self._until, self._rest = 0, RESTS[0]

    def keep(
        self,
        operators: Sequence[KeyHomes],
        hashes: Sequence[NDArray[np.uint64]],
        servers: Sequence[NDArray[np.int32]],
    ) -> None:
        """Remember where keys live that are about to get other homes."""
        self._seen, self.homes = 0, {}
        for o, (homes, keys, new) in enumerate(zip(operators, hashes, servers, strict=True)):
            live = homes.route(keys)
            moves = live != new
            self.homes[o] = keys[moves], live[moves]

    def count(self) -> None:
        """Note that a batch has come."""
        self._seen += 1

    def due(self, judging: int) -> bool:
        """Return whether the former homes can be judged; ``judging`` batches judge a proposal."""
        return bool(self.homes) and self._seen >= max(FEWEST, judging)

    def take(self) -> KeyServers:
        """Return the former homes, which are forgotten here."""
        homes, self.homes = self.homes, {}
        return homes

    def rest(self, batch: int) -> None:
        """Note that tables were taken back."""
        self._until, self._rest = batch + self._rest, min(RESTS[1], 2 * self._rest)
        self.homes = {}

    def rests(self, batch: int) -> bool:
        """Return whether new tables are to rest."""
        return batch < self._until

    def state(self) -> list[int]:
        """Return the numbers that later answers depend on."""
        return [self._seen, self._until, self._rest]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that they depend on."""
        named = {f"{o}.keys": keys for o, (keys, _) in self.homes.items()}
        return named | {f"{o}.servers": servers for o, (_, servers) in self.homes.items()}

    def restore(self, state: list[int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from both."""
        self._seen, self._until, self._rest = state
        operators = [int(name.split(".")[0]) for name in arrays if name.endswith(".keys")]
        self.homes = {o: (arrays[f"{o}.keys"], arrays[f"{o}.servers"]) for o in operators}
