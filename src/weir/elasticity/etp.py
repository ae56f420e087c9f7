"""Effective throughput percentage: the share of the output that follows when an operator gets faster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weir.elasticity.graph import Graph


def effective_sinks(graph: Graph, congested: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the sinks that each operator reaches without passing another congested operator.

    >>> graph = Graph(("a", "b", "c", "d"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
    >>> sorted(effective_sinks(graph, {"b"})["a"])  # still reached, past c
    ['d']
    >>> sorted(effective_sinks(graph, {"b", "c"})["a"])
    []
    """
    reached: dict[str, frozenset[str]] = {}
    # children come after parents in the order, so backwards is a depth-first walk's post-order
    for name in reversed(graph.order):
        if not graph.children[name]:
            reached[name] = frozenset([name])
        else:
            reached[name] = frozenset().union(
                *(reached[child] for child in graph.children[name] if child not in congested)
            )
    return reached


def etp(graph: Graph, throughput: Mapping[str, float], congested: Collection[str]) -> dict[str, float]:
    """Return the effective throughput percentage of every operator.

    The share of the application's throughput (what all its sinks process) that belongs to sinks which an
    operator reaches over at least one path without a congested operator on it. To speed up an operator whose
    rows then queue before a congested child is in vain, so that child hides all that lies behind it.

    ``throughput`` is the rows per second that each *sink* processes.

    Returns
    -------
    dict
        Operator → share in [0, 1]. A sink that is reached over several paths counts once. Never falls when
        congestion goes away. All 0 when nothing comes out.

    References
    ----------
    L. Xu, B. Peng, I. Gupta: Stela: Enabling Stream Processing Systems to Scale-in and Scale-out On-demand.
    IEEE IC2E 2016, Algorithm 1 (whose recursion would count such a sink once per path).

    Examples
    --------
    The paper's example: 4, 7, 8, 9 and 10 are sinks, 4500 rows/s come out, 1, 3, 4 and 6 are congested.

    >>> edges = ["1 2", "1 3", "2 4", "3 5", "3 6", "5 7", "5 8", "6 9", "6 10"]
    >>> graph = Graph(tuple("1 2 3 4 5 6 7 8 9 10".split()), tuple(tuple(e.split()) for e in edges))
    >>> out = {"4": 2000, "7": 1000, "8": 1000, "9": 250, "10": 250}
    >>> share = etp(graph, out, {"1", "3", "4", "6"})
    >>> {name: f"{share[name]:.0%}" for name in ("3", "4", "6", "1")}
    {'3': '44%', '4': '44%', '6': '11%', '1': '0%'}
    >>> ranked(share, {"1", "3", "4", "6"}, graph)
    ['3', '4', '6', '1']
    """
    total = sum(throughput[name] for name in graph.sinks)
    if total <= 0:
        return dict.fromkeys(graph.operators, 0.0)
    reached = effective_sinks(graph, congested)
    # in one fixed order and of at most 1: shares that are equal must compare equal
    return {
        name: min(1.0, sum(throughput[sink] for sink in graph.sinks if sink in reached[name]) / total)
        for name in graph.operators
    }


def ranked(share: Mapping[str, float], among: Collection[str], graph: Graph) -> list[str]:
    """Return operators by falling ETP; among equals the one nearer to the sources comes first, then as given."""
    place = {name: i for i, name in enumerate(graph.order)}
    return sorted(among, key=lambda name: (-share[name], place[name]))
