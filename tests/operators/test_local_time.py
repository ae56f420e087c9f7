"""Windows that begin at an offset, and by the clocks of a time zone: 23 hours and 25 when daylight saving changes."""

from __future__ import annotations

import datetime as dt
import tempfile
from bisect import bisect_left
from collections import defaultdict
from functools import cache
from itertools import accumulate
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import weir
from support import dicts, rows_of
from weir.testing import run, start

SCHEMA = "k string, time timestamp, n long"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MINUTE, DAY = 60_000_000, 86_400_000_000
# where clocks change, also by half an hour, at midnight, just after it, by a day that is skipped, and nowhere
CHANGES = [
    ("Europe/Berlin", "2024-03-31"),
    ("Europe/Berlin", "2024-10-27"),
    ("Europe/Berlin", "2024-07-01"),
    ("America/New_York", "2050-11-06"),
    ("Australia/Lord_Howe", "2024-04-07"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/St_Johns", "2005-10-30"),
    ("America/Havana", "2024-03-10"),
    ("Asia/Kolkata", "2024-03-10"),
    ("Pacific/Apia", "2011-12-30"),
]


def micros(text):
    return int(np.datetime64(text, "us").astype(np.int64))


@cache
def clock(zone, first):
    """Return minutes around a time, and the greatest reading of a clock until each of them."""
    times = [first + i * MINUTE for i in range(-8 * 1440, 11 * 1440)]
    readings = [(EPOCH + dt.timedelta(microseconds=t)).astimezone(ZoneInfo(zone)) for t in times]
    shown = [(r.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1) for r in readings]
    return times, list(accumulate(shown, max))


def windows_of(zone, first, minutes, size, step, offset):
    """Return the windows of minutes, counted from a time, by looking at a clock every minute."""
    times, highest = clock(zone, first)

    def reached(reading):
        return times[bisect_left(highest, reading)]

    out = []
    for i in [8 * 1440 + m for m in minutes]:
        newest = (highest[i] - offset) // step * step + offset
        spans = {}
        for begin in range(newest, newest - size, -step):
            if begin + size > highest[i]:
                spans.setdefault(reached(begin), reached(begin + size))
        out.append(sorted(spans.items()))
    return out


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(CHANGES),
    st.sampled_from([(24, 24), (48, 24), (168, 168), (8, 8), (24, 6), (3, 1), (1, 1), (36, 12)]),
    st.integers(0, 23),
    st.lists(st.integers(0, 3 * 1440 - 1), min_size=1, max_size=40),
)
@example(("Europe/Berlin", "2024-03-31"), (3, 1), 0, list(range(1440, 1440 + 300)))
@example(("Pacific/Apia", "2011-12-30"), (48, 24), 0, [0, 1000, 2000])
def test_windows_of_a_time_zone_are_what_a_clock_says(change, hours, offset, minutes):
    (zone, day), (size, step) = change, (h * DAY // 24 for h in hours)
    offset = offset * DAY // 24 % step
    first = micros(day) - DAY
    window = weir.sliding("time", f"{hours[0]} h", f"{hours[1]} h", offset=offset / 1e6, timezone=zone)
    times = first + np.array(minutes) * MINUTE
    expected = windows_of(zone, first, minutes, size, step, offset)
    at, starts = window.assign(times, None)
    spans = defaultdict(list)
    for i, begin, end in zip(at.tolist(), starts.tolist(), window.ends(starts).tolist(), strict=True):
        spans[i].append((begin, end))
    assert [sorted(spans[i]) for i in range(len(times))] == expected
    assert window.last_end(times).tolist() == [spans[-1][1] for spans in expected]
    panes = window.panes(times)
    assert (panes <= times).all()
    assert all((a == b).all() for a, b in zip(window.assign(panes, None), (at, starts), strict=True))


def test_days_are_those_of_arrow():
    times = micros("2023-01-01") + np.arange(0, 400 * DAY, 7 * MINUTE)
    for zone in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"):
        local = pa.array(times, pa.timestamp("us", zone))
        starts = weir.tumbling("time", "1 day", timezone=zone).assign(times, None)[1]
        assert pc.floor_temporal(local, unit="day").cast(pa.int64()).to_numpy().tolist() == starts.tolist()


def rows(*minutes, day="2024-10-26T22:00"):
    return pa.table(
        {
            "k": [f"k{m % 2}" for m in minutes],
            "time": pa.array(micros(day) + np.array(minutes, np.int64) * MINUTE, pa.timestamp("us", "UTC")),
            "n": pa.array(minutes, pa.int64()),
        }
    )


def days_of(app, faults=(), restart=False):
    """Return keys, starts, lengths in hours and values of days around the end of summer time in Berlin."""
    with tempfile.TemporaryDirectory() as folder:
        query = start(app, folder, servers=2, faults=list(faults))
        for number, batch in enumerate([(0, 1, 30), (1499,), (1498, 1500, 1501, 3000), (8000,), ()]):
            query.feed(rows(*batch))
            if restart and number == 1:
                query.restart(servers=3)
        assert query.pending_faults == []
        return sorted(
            (
                r["k"],
                r["window_start"].isoformat(),
                (r["window_end"] - r["window_start"]) / dt.timedelta(hours=1),
                r["n"],
            )
            for r in dicts(query.output("days"))
        )


@pytest.mark.parametrize("faults", [[], ["job-done:2", "commit-written:2"]])
@pytest.mark.parametrize("restart", [False, True])
def test_a_day_of_25_hours_closes_after_25_hours(faults, restart):
    window = weir.tumbling("time", "1 day", timezone="Europe/Berlin")
    app = weir.source(SCHEMA).keyed("k", weir.Aggregate(n="sum(n)"), name="days", window=window)
    assert days_of(app, faults, restart) == [
        ("k0", "2024-10-26T22:00:00+00:00", 25, 30 + 1498),
        ("k0", "2024-10-27T23:00:00+00:00", 24, 1500),
        ("k0", "2024-10-28T23:00:00+00:00", 24, 3000),
        ("k1", "2024-10-26T22:00:00+00:00", 25, 1 + 1499),
        ("k1", "2024-10-27T23:00:00+00:00", 24, 1501),
    ]


class Days(weir.Process):
    state = None
    output = {"k": "string", "window_start": "timestamp", "window_end": "timestamp", "n": "long"}

    def process(self, key, rows, state):
        return ()

    def closed(self, key, window, state):
        yield key, window.start, window.end, 0


def test_a_process_is_told_when_a_local_day_has_closed():
    window = weir.tumbling("time", "1 day", offset="6 hours", timezone="Europe/Berlin")
    app = weir.source(SCHEMA).keyed("k", Days(), name="days", window=window)
    assert {row[1:3] for row in days_of(app) if row[0] == "k0"} == {
        ("2024-10-26T04:00:00+00:00", 25),
        ("2024-10-27T05:00:00+00:00", 24),
        ("2024-10-28T05:00:00+00:00", 24),
    }


def app_with(window):
    return weir.source(SCHEMA).keyed("k", weir.Count(), name="w", window=window)


def test_open_windows_are_read_with_their_end_and_another_definition_is_refused(tmp_path):
    berlin = weir.tumbling("time", "1 day", timezone="Europe/Berlin")
    query = start(app_with(berlin), tmp_path, servers=2)
    query.feed(rows(0))
    (row,) = rows_of(query.state("w"))
    assert [t.isoformat() for t in row[1:3]] == ["2024-10-26T22:00:00+00:00", "2024-10-27T23:00:00+00:00"]
    query.stop()
    for other in (
        weir.tumbling("time", "1 day"),
        weir.tumbling("time", "1 day", timezone="Europe/Paris"),
        weir.tumbling("time", "1 day", offset="1 h", timezone="Europe/Berlin"),
    ):
        with pytest.raises(
            weir.errors.CheckpointMismatch, match=r"another window(.|\n)*Give the changed operator"
        ):
            start(app_with(other), tmp_path, servers=2)
    start(app_with(berlin), tmp_path, servers=2).stop()


def test_an_offset_shifts_windows_and_one_of_nothing_changes_no_checkpoint():
    assert (
        weir.tumbling("time", 60).signature()
        == weir.tumbling("time", 60, offset=0).signature()
        == ["time", 60_000_000]
    )
    result = run(app_with(weir.tumbling("time", "1 h", offset="15 m")), [rows(0, 14, 16, 76)], servers=1)
    assert sorted(
        (r["k"], r["window_start"].isoformat()[11:16], r["count"]) for r in dicts(result.output("w"))
    ) == [
        ("k0", "21:15", 2),
        ("k0", "22:15", 1),
        ("k0", "23:15", 1),
    ]
    east = weir.tumbling("time", "1 day", offset=dt.timedelta(hours=-8))
    assert east == weir.tumbling("time", "1 day", offset="16 hours")


def test_what_has_no_meaning_is_refused():
    for wrong, about in (
        ({"offset": "1 day"}, "less than"),
        ({"timezone": "Europe/Belrin"}, "'Europe/Berlin'"),
        ({"timezone": "+02:00"}, "no time zone"),
        ({"timezone": 2}, "no time zone"),
    ):
        with pytest.raises(weir.errors.TopologyError, match=about):
            weir.tumbling("time", "1 day", **wrong)
    for size, slide in (("10 m", "10 m"), ("7 h", "7 h"), ("36 h", "36 h"), ("90 m", "1 h")):
        with pytest.raises(weir.errors.TopologyError, match="daylight saving"):
            weir.sliding("time", size, slide, timezone="Europe/Berlin")
    plain = weir.source("k string, time timestamp_ntz").keyed(
        "k", weir.Count(), window=weir.tumbling("time", "1 day", timezone="Europe/Berlin")
    )
    with pytest.raises(weir.errors.TopologyError, match="some clock"):
        run(plain, [], servers=1)
