"""What partitioners share: what is asked of them, the limits that keep servers balanced, and the hub rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weir.errors import ParameterError
from weir.locality.graph import KeyGraph

Parts = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a partition has to observe."""

    alpha: float = 1.03  # a server may hold this many times its share of each operator
    seed: int = 0  # the same seed gives the same answer
    # the present server per vertex, −1 where there is none: where to start from, or at least to name parts
    # by, so that as little as possible moves
    warm: Parts | None = None
    # what staying is worth to a key, in rows per row of the average key: to move a state costs the same
    # whatever its operator, so the keys that move are those that gain most. Zero moves whenever it
    # gains at all
    stay_bonus: float = 0.0
    shares: NDArray[np.float64] | None = None  # relative capacity of each server; equal by default
    fixed: Parts | None = None  # vertices that must be on a given server, −1 for all others
    # more than one asks for quality rather than speed: ours partitions a small graph up to that many times
    # and combines the best results, and on any graph full servers then exchange keys
    starts: int = 1

    def homes(self, graph: KeyGraph, n: int) -> tuple[Parts, Parts]:
        """Return the present and the prescribed server of each vertex, −1 where there is none."""
        return check_parts(graph, n, self.warm, "warm"), check_parts(graph, n, self.fixed, "fixed")


class Partitioner(Protocol):
    """Any callable that gives each vertex of a key graph a server and observes the terms."""

    def __call__(self, graph: KeyGraph, n: int, terms: Terms, /) -> Parts:
        """Return the server, 0 … n−1, of each vertex."""


@dataclass(frozen=True)
class Limits:
    """How much of each operator a server may hold."""

    weight: NDArray[np.float64]  # per vertex: its rows, clipped by the hub rule
    limit: NDArray[np.float64]  # per operator and server: the most rows that may live there

    @classmethod
    def of(
        cls, graph: KeyGraph, n: int, alpha: float = 1.03, shares: NDArray[np.float64] | None = None
    ) -> Limits:
        """Return limits by which each server may hold ``alpha`` times its share of every operator.

        *Hub rule.* A key heavier than a server's limit can't be balanced by anyone: it overloads whatever
        server it is on, and an algorithm that tries to level the others against it overloads them too. So it
        counts as exactly one full server: it gets one, the other keys of its operator go elsewhere, and all
        other servers keep their bound. What remains is :meth:`KeyGraph.floor`; only splitting the key helps.

        >>> from weir.locality.counts import count_keys
        >>> hub = KeyGraph.build([count_keys(np.array([1] * 8 + [2, 3], np.uint64))], {})
        >>> Limits.of(hub, 2, alpha=1.0).weight.tolist(), hub.floor(2).tolist()
        ([5.0, 1.0, 1.0], [1.6])
        """
        share = check_shares(n, shares)
        total = np.bincount(graph.operator, weights=graph.weight, minlength=graph.operators)
        fair = total[:, None] * share[None, :]
        limit = alpha * fair
        lightest = np.full(graph.operators, np.inf)
        np.minimum.at(lightest, graph.operator, np.where(graph.weight > 0, graph.weight, np.inf))
        lightest = np.where(np.isfinite(lightest), lightest, 1.0)[:, None]
        # a few whole keys may not fit however they are spread: then a server may hold one more than its share
        room = (np.floor(limit / lightest + 1e-9) * lightest).sum(axis=1, keepdims=True)
        limit = np.where(room < total[:, None], np.maximum(limit, fair + lightest), limit)
        weight = np.minimum(graph.weight, limit.max(axis=1, initial=0)[graph.operator])
        return cls(weight, np.maximum(limit, 1e-12))


def check_shares(n: int, shares: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the shares of the servers, summing to one; equal ones by default."""
    if n < 1:
        raise ParameterError(f"there must be at least one server, got {n}")
    if shares is None:
        return np.full(n, 1 / n)
    share = np.asarray(shares, np.float64)
    if share.shape != (n,) or not (share > 0).all():
        raise ParameterError(f"shares must be {n} positive numbers, got {shares!r}")
    return share / share.sum()


def check_parts(graph: KeyGraph, n: int, parts: Parts | None, what: str) -> Parts:
    """Return an assignment per vertex, −1 where there is none."""
    if parts is None:
        return np.full(len(graph), -1, np.int32)
    out = np.asarray(parts, np.int32)
    if out.shape != (len(graph),):
        raise ParameterError(f"{what} must have one server per vertex ({len(graph)}), got shape {out.shape}")
    if len(out) and (out.min() < -1 or out.max() >= n):
        raise ParameterError(f"{what} must name servers 0 … {n - 1}, or −1 for none")
    return out


def relabel(
    parts: NDArray[np.int32],
    present: NDArray[np.int32],
    weight: NDArray[np.float64] | None = None,
    n: int | None = None,
    shares: NDArray[np.float64] | None = None,
) -> NDArray[np.int32]:
    """Return the same partition with its parts renumbered after the servers that hold most of each already.

    ``present`` is the server of each vertex now (−1: none); ``weight`` what moving a vertex costs, one by
    default. The part and the server that share most come first, then the next two that are both still free. Only
    servers of equal ``shares`` exchange numbers: a part has the size of its own.

    >>> relabel(np.array([1, 1, 0], np.int32), np.array([0, 0, 1], np.int32)).tolist()
    [0, 0, 1]
    """
    n = int(max(parts.max(initial=0), present.max(initial=0))) + 1 if n is None else n
    placed = present >= 0
    flat = parts[placed].astype(np.int64) * n + present[placed]
    worth = None if weight is None else weight[placed]
    shared = np.bincount(flat, weights=worth, minlength=n * n)
    number, free = np.full(n, -1, np.int32), np.ones(n, np.bool_)
    size = check_shares(n, shares)
    for part, server in zip(*divmod(np.argsort(-shared, kind="stable"), n), strict=True):
        if number[part] < 0 and free[server] and np.isclose(size[part], size[server]):
            number[part], free[server] = server, False
    return number[parts]
