"""What must hold of effective throughput percentages in any graph."""

from __future__ import annotations

import pytest
from elasticity_worlds import graphs
from hypothesis import given
from hypothesis import strategies as st

from weir.elasticity.graph import Graph, etp


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Graph, dict[str, float], set[str]]:
    graph = draw(graphs())
    out = {name: draw(st.floats(0, 1e6)) for name in graph.sinks}
    return graph, out, draw(st.sets(st.sampled_from(graph.operators)))


def paths(graph: Graph, name: str) -> list[list[str]]:
    below = [path for child in graph.children[name] for path in paths(graph, child)]
    return [[name, *path] for path in below] if graph.children[name] else [[name]]


@given(worlds())
def test_it_is_the_definition_path_by_path(world: tuple[Graph, dict[str, float], set[str]]) -> None:
    graph, out, stuck = world
    total = sum(out.values())
    for name, share in etp(graph, out, stuck).items():
        free = {path[-1] for path in paths(graph, name) if not stuck & set(path[1:])}
        expected = sum(out[sink] for sink in free) / total if total > 0 else 0.0
        assert share == pytest.approx(expected)
        assert 0.0 <= share <= 1.0


@given(worlds())
def test_a_congested_child_hides_what_lies_behind_it(
    world: tuple[Graph, dict[str, float], set[str]],
) -> None:
    graph, out, _ = world
    for name in graph.operators:
        if graph.children[name]:
            assert etp(graph, out, set(graph.children[name]))[name] == 0


@given(worlds())
def test_relief_never_lowers_it(world: tuple[Graph, dict[str, float], set[str]]) -> None:
    graph, out, stuck = world
    before = etp(graph, out, stuck)
    for relieved in stuck:
        after = etp(graph, out, stuck - {relieved})
        assert all(after[name] >= before[name] for name in graph.operators)


@given(st.integers(1, 6), st.floats(1, 1e5))
def test_a_sink_behind_many_paths_counts_once(width: int, rate: float) -> None:
    between = [f"b{i}" for i in range(width)]
    graph = Graph(("in", *between, "out"), (*(("in", b) for b in between), *((b, "out") for b in between)))
    assert etp(graph, {"out": rate}, set())["in"] == 1.0
    assert etp(graph, {"out": rate}, set(between[1:]))["in"] == 1.0, "one open path is enough"


def test_nothing_comes_out() -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    assert etp(graph, {"b": 0.0}, set()) == {"a": 0.0, "b": 0.0}
