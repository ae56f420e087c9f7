"""Distances and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import ParameterError
from weir.network.distance import Distance, Place, distances
from weir.network.profile import PAPER, Profile, initial_weights

names = st.sampled_from(["a", "b", "c"])
places = st.builds(Place, names, names, names)
far = st.lists(st.sampled_from(list(Distance)), min_size=1, max_size=12)


def distance(a: Place, b: Place) -> Distance:
    if a.host == b.host:
        return Distance.PROCESS if a.process == b.process else Distance.NODE
    return Distance.RACK if a.rack == b.rack else Distance.ANY


def test_one_host_is_one_host_whatever_a_rack_map_says() -> None:
    here, others = Place("7", "host-a", "rack-1"), [("8", "host-a", "rack-1"), ("7", "host-b", "rack-2")]
    found = distances([here], [*(Place(*other) for other in others), Place("7", "host-a", "")])
    assert found.tolist() == [[Distance.NODE, Distance.ANY, Distance.PROCESS]]


@given(a=st.lists(places, max_size=6), b=st.lists(places, max_size=6))
def test_the_matrix_holds_every_pair(a, b) -> None:
    matrix = distances(a, b)
    assert matrix.shape == (len(a), len(b))
    assert matrix.dtype == np.int8
    assert matrix.tolist() == [[distance(x, y) for y in b] for x in a]
    assert np.array_equal(matrix.T, distances(b, a)), "distance has no direction"


@given(distances=far, scale=st.integers(1, 500), near=st.floats(0, 3))
def test_closer_is_never_lighter_and_nobody_is_left_out(distances, scale, near) -> None:
    weights = initial_weights(distances, scale=scale, near=near)
    assert weights.min() >= 1
    assert weights.max() == scale, "the nearest there is"
    order = np.argsort(distances, kind="stable")
    assert (np.diff(weights[order]) <= 0).all()


def test_a_profile_with_a_quick_far_channel_does_not_make_it_heavier() -> None:
    noisy = Profile((1e-6, 50e-6, 40e-6, 90e-6), (1e9,) * 4)
    assert initial_weights([1, 2], noisy).tolist() == [64, 64]


def test_the_papers_profile_gives_back_what_it_was_made_from() -> None:
    """Rates through one channel: its slowest part, the worker or the wire, sets the pace."""
    work = [PAPER.handling_s + PAPER.row_bytes * PAPER.serialise_s_per_byte[d] for d in Distance]
    wire = [PAPER.row_bytes / PAPER.bandwidth_Bps[d] for d in Distance]
    rates = [1 / max(*pair) for pair in zip(work, wire, strict=True)]
    assert rates[Distance.PROCESS] == pytest.approx(33_000, rel=0.01)
    assert rates[Distance.PROCESS] / rates[Distance.RACK] == pytest.approx(2.5, rel=0.01)
    assert rates[Distance.PROCESS] / rates[Distance.ANY] == pytest.approx(3.6, rel=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Profile((1, 2, 3), (1, 1, 1, 1)),  # type: ignore[arg-type]
        lambda: Profile((1, 2, 3, -1), (1, 1, 1, 1)),
        lambda: Profile((1, 2, 3, float("nan")), (1, 1, 1, 1)),
        lambda: Profile((1, 2, 3, 4), (1, 1, 0, 1)),
        lambda: Profile((1, 2, 3, 4), (1, 1, 1, 1), handling_s=-1),
        lambda: Profile((0, 0, 0, 0), (1, 1, 1, 1), row_bytes=0),
        lambda: initial_weights([0, 4]),
        lambda: initial_weights([]),
        lambda: initial_weights([0], scale=0),
        lambda: initial_weights([0], near=float("nan")),
    ],
)
def test_senseless_profiles_are_refused(make) -> None:
    with pytest.raises(ParameterError, match="got"):
        make()
