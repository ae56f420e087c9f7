"""Racks, hosts and servers as a tree of nested lists: ``[[[0, 1], [2]], [[3]]]``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weir.errors import ParameterError

Tree = int | Sequence["Tree"]


def servers_of(tree: Tree) -> list[int]:
    """Return the servers below a node of the tree.

    >>> servers_of([[[0, 1], [2]], [[3]]])
    [0, 1, 2, 3]
    """
    return [tree] if isinstance(tree, int) else [s for branch in tree for s in servers_of(branch)]


def depth_of(tree: Tree) -> int:
    """Return the number of levels between the root and the deepest server."""
    return 0 if isinstance(tree, int) else 1 + max((depth_of(branch) for branch in tree), default=0)


def closeness(tree: Tree, n: int) -> NDArray[np.float64]:
    """Return, for any two servers, the number of levels (rack, host …) that they share below the root.

    >>> closeness([[0, 1], [2, 3]], 4)[0].tolist()
    [2.0, 1.0, 0.0, 0.0]
    """
    shared = np.zeros((n, n))

    def descend(place: Tree) -> None:
        below = servers_of(place)
        shared[np.ix_(below, below)] += 1
        for branch in [] if isinstance(place, int) else place:
            descend(branch)

    descend(tree)
    return shared - 1


def check_tree(tree: Tree, n: int) -> None:
    """Raise unless a tree names each of the n servers once."""
    if sorted(servers_of(tree)) != list(range(n)):
        raise ParameterError(f"racks must name each server 0 … {n - 1} once, got {servers_of(tree)}")
