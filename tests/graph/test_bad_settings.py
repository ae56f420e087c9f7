"""Whatever is passed for a setting, it is taken or refused by an error of ours, never by one from deep within."""

from __future__ import annotations

import contextlib
import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
import weir.testing
from weir.errors import WeirError
from weir.flow import parts_of
from weir.options import Options

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-3, 9), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(
        ["place", "n", "1 s", "-1 s", "drop", "error", "divert", "sum(n)", "count", "9" * 400 + " d"]
    ),
    st.sampled_from([object(), len, weir.Hash, weir.Hash(), weir.PartialKey(), math.inf, ["place"], [[]]]),
)
SCHEMA = "place string, time timestamp, n long"
ROWS = [{"place": "a", "time": None, "n": 1}]
many = settings(max_examples=50)


def used(make):
    """Build an application and plan it, or be refused properly."""
    with contextlib.suppress(WeirError):
        stream = make()
        parts_of(stream).topology(2, sinks=parts_of(stream).leaves)


@many
@given(st.dictionaries(st.sampled_from([f.name for f in fields(Options)]), ODD, max_size=3))
def test_options(given_):
    with contextlib.suppress(WeirError):
        Options.of(None, {"servers": 2, **given_})


KEYED = [
    "name",
    "routing",
    "parallelism",
    "placement",
    "null_keys",
    "on_error",
    "window",
    "ttl",
]


@many
@given(ODD, st.dictionaries(st.sampled_from(KEYED), ODD, max_size=2))
def test_keyed(key, given_):
    used(lambda: weir.source(SCHEMA).keyed(key, weir.Count(), **given_))
    used(lambda: weir.source(SCHEMA).keyed("place", weir.Count(), **given_))


@many
@given(ODD, ODD, ODD)
def test_windows_operators_and_sources(one, two, three):
    used(lambda: weir.source(SCHEMA).keyed("place", weir.Count(), window=weir.tumbling(one, two, three)))
    used(lambda: weir.source(SCHEMA).keyed("place", weir.Count(), window=weir.tumbling("time", two)))
    used(lambda: weir.source(SCHEMA).keyed("place", weir.Aggregate(total=one)))
    used(lambda: weir.source(SCHEMA).process("place", len, state=one, output=two, order_by=three))
    used(lambda: weir.source(SCHEMA).map(one, two, columns=three).keyed("place", weir.Count()))
    used(lambda: weir.source(one, two))


LEARNT = [
    "alpha",
    "capacity",
    "period",
    "partitioner",
    "new_keys",
    "split_hot",
    "memory",
    "stay_bonus",
    "seed",
    "racks",
]


@many
@given(st.dictionaries(st.sampled_from(LEARNT), ODD, max_size=2))
def test_locality(given_):
    with contextlib.suppress(WeirError):
        weir.Locality(**given_)


@many
@given(
    st.one_of(
        ODD,
        st.lists(st.dictionaries(st.sampled_from(["place", "time", "n", "x"]), ODD, max_size=4), max_size=3),
    )
)
def test_rows(rows):
    query = weir.testing.start(weir.source(SCHEMA).keyed("place", weir.Count(), name="places"), servers=2)
    with contextlib.suppress(WeirError):
        query.feed(rows)
    query.feed(ROWS, number=0 if query.progress is None else 1)
    assert "a" in query.state("places")["place"].to_pylist()


@pytest.mark.parametrize("duration", [math.nan, math.inf, -math.inf, "9" * 400 + " d", 1e300, 2**80])
def test_durations_that_are_none(duration):
    with pytest.raises(WeirError):
        weir.tumbling("time", duration)
