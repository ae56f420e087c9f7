"""Power of two choices (PoTC): for each row two random instances, and the emptier gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir.compiled import compiled
from weir.hashing import mix, mixed
from weir.routing.base import CountingGrouping, Instances, Keys, Router, RouterContext
from weir.routing.partial_key import LoadRouter, pick


@dataclass(frozen=True)
class TwoChoices(CountingGrouping):
    """Two instances drawn at random *for every row*; the one that this source has loaded less takes it.

    Keys play no part, so balance is near perfect whatever the skew, and a frequent key ends up on every
    instance: the memory of a shuffle. Its place is as the yardstick for balance.

    **Guarantee.** The fullest instance is O(log log n) rows above the average with high probability, at any
    skew and at any time.

    References
    ----------
    Y. Azar, A. Z. Broder, A. R. Karlin, E. Upfal: Balanced allocations. SIAM J. Comput. 29(1), 1999.

    Examples
    --------
    >>> import numpy as np
    >>> one_key = np.full(1000, 77, dtype=np.uint64)
    >>> np.bincount(TwoChoices().router(5, seed=1).route(one_key)).tolist()
    [201, 201, 198, 199, 201]
    """

    name: ClassVar[str] = "PoTC"

    def make_router(self, context: RouterContext) -> Router:
        return _TwoChoicesRouter(context.n, context.seed, context.source)


class _TwoChoicesRouter(LoadRouter):
    def __init__(self, n: int, seed: int, source: int) -> None:
        super().__init__(n, n, seed)
        # Sources that draw alike would pile onto the same instances at the same time.
        self.salt = np.uint64(mix(self.salt, np.uint64(source)))

    def route(self, keys: Keys) -> Instances:
        out = np.empty(len(keys), dtype=np.int32)
        # The number of a row seeds its draw: the loads sum to it, so they are all there is to save.
        _route(self.messages, self.salt, self.load, out)
        return out


@compiled("int64", "uint64", "out int64[]", "out int32[]")
def _route(first, salt, load, out):  # type: ignore[no-untyped-def]
    n = len(load)
    for i in range(len(out)):
        drawn = mixed(salt, np.uint64(first + i))
        a = pick(drawn, n)
        b = pick(drawn << np.uint64(32), n)
        chosen = b if load[b] < load[a] else a
        load[chosen] += 1
        out[i] = chosen
