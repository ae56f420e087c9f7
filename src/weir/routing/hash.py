"""Key grouping by hash (KG, "fields grouping"): the default of every stream engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weir.hashing import spark_mod
from weir.routing.base import Grouping, Instances, Keys, Router


@dataclass(frozen=True)
class Hash(Grouping):
    """Every key has one home, chosen by its hash.

    Perfect for memory (a key lives in one place), helpless against hot keys, blind to locality: the next
    hop of a row stays on its server with probability 1/n.

    Examples
    --------
    >>> import numpy as np
    >>> keys = np.array([1, 2, 1, 9], dtype=np.uint64)
    >>> Hash().router(4).route(keys).tolist()
    [1, 2, 1, 1]
    """

    name: ClassVar[str] = "KG"

    def router(self, n: int, *, seed: int = 0, source: int = 0, local: int = -1) -> Router:
        return _HashRouter(n)


class _HashRouter(Router):
    def route(self, keys: Keys) -> Instances:
        return spark_mod(keys, self.n)
