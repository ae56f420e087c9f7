"""Random applications for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from weir.elasticity import Graph, Placement, Rates, Situation


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> Graph:
    n = draw(st.integers(2, most))
    names = tuple(f"o{i}" for i in range(n))
    pairs = [(names[i], names[j]) for i in range(n) for j in range(i + 1, n)]
    return Graph(names, tuple(draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * n))))


@st.composite
def situations(draw: st.DrawFn, machines: int = 5, **more: object) -> Situation:
    graph = draw(graphs())
    instances = {
        name: tuple(draw(st.lists(st.integers(0, machines - 1), min_size=1, max_size=4)))
        for name in graph.operators
    }
    rates = {}
    for name in graph.operators:
        arrives, can = draw(st.floats(1, 1000)), draw(st.floats(1, 1000))
        rates[name] = Rates(arrives, can, min(arrives, can), len(instances[name]))
    return Situation(graph, rates, Placement(tuple(range(machines)), instances), **more)  # type: ignore[arg-type]
