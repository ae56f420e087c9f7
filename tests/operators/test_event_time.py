"""Event time: who tells it, whom one waits for, what is not believed, and what happens while nothing comes."""

from __future__ import annotations

import datetime as dt

import pytest

import weir
from support import dicts, rows_of
from weir.flow import parts_of
from weir.testing import run, start

SCHEMA = "k string, time timestamp"
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
POINTS = ["plan-written", "job-done", "commit-written", "sink-delivered"]


def at(minute, second=0):
    return NOON + dt.timedelta(minutes=minute, seconds=second)


def rows(*pairs):
    return [{"k": key, "time": time} for key, time in pairs]


class Wall:
    """A clock that tests set."""

    def __init__(self):
        self.time = NOON

    def __call__(self):
        return int(self.time.timestamp() * 1_000_000)


def counted(stream, **options):
    window = weir.tumbling("time", "10 minutes", **options)
    return stream.keyed("k", weir.Count(), name="w", window=window)


def told(query):
    """Return what the sink got: batch, key, minute in which the window starts, count."""
    return [
        (batch, r["k"], (r["window_start"] - NOON) // dt.timedelta(minutes=1), r["count"])
        for name, batch, table in query.deliveries
        if name == "w"
        for r in sorted(dicts(table), key=lambda r: (r["k"], r["window_start"]))
    ]


def test_one_row_from_the_future_is_set_aside_and_nobody_else_is_late():
    letters = []
    query = start(counted(weir.source(SCHEMA)), servers=2, dead_letters=lambda t, b: letters.extend(dicts(t)))
    far = NOON.replace(year=2099)
    query.feed(rows(("a", at(1)), ("b", far)))
    query.feed(rows(("a", at(2))))
    query.feed(rows(("a", at(11))))
    query.feed(rows(("a", at(12))))
    assert told(query) == [(3, "a", 0, 2)]
    assert [p.operators["w"].ahead for p in query.recent_progress] == [1, 0, 0, 0]
    assert [p.operators["w"].late for p in query.recent_progress] == [0, 0, 0, 0]
    (letter,) = letters
    assert (letter["operator"], letter["key"]) == ("w", "b")
    assert "2099" in letter["row"]
    assert "too far ahead of the clock" in letter["error"]


def test_who_wants_to_believe_in_the_future_may():
    query = start(counted(weir.source(SCHEMA).event_time("time", ahead=None)), servers=1)
    query.feed(rows(("a", at(1)), ("b", NOON.replace(year=2099))))
    query.feed(rows(("a", at(2))))
    assert told(query) == [(1, "a", 0, 1)]
    assert query.progress.operators["w"].late == 1


@pytest.mark.parametrize("declared", [False, True])
def test_a_fast_source_does_not_make_a_slow_one_late(declared):
    fast, slow = weir.source(SCHEMA, "fast"), weir.source(SCHEMA, "slow")
    if declared:
        fast, slow = fast.event_time("time"), slow.event_time("time", lateness="1 minute")
    # a count in between passes rows on, and with them where they come from
    app = counted(fast.union(slow).keyed("k", weir.Count(emit="rows"), name="all"))
    query = start(app, servers=2)
    query.feed({"fast": rows(("a", at(55))), "slow": rows(("a", at(1)))})
    query.feed({"slow": rows(("a", at(9)))})
    query.feed({"slow": rows(("a", at(10, 30)))})
    query.feed({"slow": rows(("a", at(9, 45)))})  # late, unless a minute is allowed
    query.feed({"slow": rows(("a", at(21, 30)))})
    query.feed({})
    assert sum(p.operators["w"].late for p in query.recent_progress) == (0 if declared else 1)
    expected = [(3, "a", 0, 2), (5, "a", 10, 1)] if not declared else [(5, "a", 0, 3), (5, "a", 10, 1)]
    assert told(query) == expected
    query.finish()
    assert told(query)[2:] == [(6, "a", 20, 1), (6, "a", 50, 1)]


def test_an_idle_source_holds_up_nobody_after_its_time_out():
    wall = Wall()
    slow = weir.source(SCHEMA, "slow").event_time("time", idle="2 minutes")
    app = counted(weir.source(SCHEMA, "fast").union(slow))
    query = start(app, servers=2, clock=wall)
    query.feed({"fast": rows(("a", at(1))), "slow": rows(("a", at(1)))})
    for minute in (11, 12, 13):
        wall.time = at(minute)
        query.feed({"fast": rows(("a", at(minute)))})
    # only from the last commit on is it known that nothing came for more than two minutes
    assert told(query) == [(2, "a", 0, 2)]
    assert query.progress.operators["w"].late == 0
    assert [p.inputs["slow.time"].idle for p in query.recent_progress] == [False, True, True, True]
    micros = {minute: int(at(minute).timestamp() * 1e6) for minute in (0, 1, 2, 13)}
    assert query.progress.to_dict()["inputs"] == {
        "fast.time": {"time": micros[13], "heard": micros[13], "idle": False},
        "slow.time": {"time": micros[1], "heard": micros[0], "idle": True},
    }
    query.feed({"slow": rows(("a", at(2)))})  # too late: nobody waited for it
    assert query.progress.operators["w"].late == 1
    slow = query.progress.inputs["slow.time"]
    assert (slow.time, slow.heard, slow.idle) == (micros[2], micros[13], False)
    assert query.late("w").to_pylist() == rows(("a", at(2)))


def test_a_source_that_never_sends_anything_is_waited_for_until_its_time_out():
    wall = Wall()
    app = counted(weir.source(SCHEMA, "one").union(weir.source(SCHEMA, "never")))
    query = start(app, servers=1, clock=wall)
    for minute in (0, 4, 11, 12):
        wall.time = at(minute)
        query.feed({"one": rows(("a", at(minute)))})
    assert told(query) == [(3, "a", 0, 2)]
    never = [p.inputs["never.time"] for p in query.recent_progress]
    assert [(i.time, i.idle) for i in never] == [(None, False), (None, False), (None, True), (None, True)]


@pytest.mark.parametrize("point", [None, *POINTS])
@pytest.mark.parametrize("restart", [False, True])
def test_on_a_quiet_stream_windows_close_when_the_time_comes(point, restart):
    wall = Wall()
    faults = [] if point is None else [f"{point}:{batch}" for batch in (1, 2, 3)]
    app = counted(weir.source(SCHEMA), lateness="1 minute")
    query = start(app, servers=2, clock=wall, faults=faults)
    wall.time = at(13)
    query.feed(rows(("a", at(3)), ("b", at(12, 30)), ("b", at(21, 59))))
    committed = point in ("commit-written", "sink-delivered")  # then a second attempt finds nothing to do
    assert query.tick() != committed  # the watermark is at 12:20:59: nobody has to wait for the next rows
    assert told(query) == [(1, "a", 0, 1), (1, "b", 10, 1)]
    assert not query.tick()
    if restart:
        query.restart(servers=3)
    wall.time = at(13 + 5 + 9)  # since 12:18 it counts as idle: the watermark has gone on to 12:29:59
    assert not query.tick()
    wall.time += dt.timedelta(seconds=1)
    assert query.tick() != committed
    assert not query.tick()
    assert told(query)[2:] == [(2, "b", 20, 1)]
    query.feed(rows(("a", at(31)), ("a", at(29))))  # the source's next batch, whatever we did meanwhile
    assert query.progress.operators["w"].late == 1
    assert query.state("w").num_rows == 1
    if point is not None:
        assert query.pending_faults == []
    commit = query._driver.ledger.last
    assert (commit.batch, commit.handed_over) == (3, 1)
    deliveries = [(batch, rows_of(table)) for name, batch, table in query.deliveries if name == "w"]
    by_batch = dict(deliveries)
    assert all(table == by_batch[batch] for batch, table in deliveries)  # again perhaps, but never otherwise


def test_a_stream_that_may_never_be_idle_waits():
    wall = Wall()
    query = start(counted(weir.source(SCHEMA).event_time("time", idle=None)), servers=1, clock=wall)
    query.feed(rows(("a", at(3))))
    wall.time = at(600)
    assert not query.tick()
    assert told(query) == []


def test_rows_that_wait_in_the_source_are_not_late_because_batches_are_rare():
    wall = Wall()
    query = start(counted(weir.source(SCHEMA)), servers=1, clock=wall)
    for hour in range(3):  # one batch per hour, with an hour's rows
        wall.time = at(60 * hour)
        query.feed(rows(*(("a", at(60 * hour - minute)) for minute in range(50, 0, -10))))
    assert sum(p.operators["w"].late for p in query.recent_progress) == 0


def test_late_rows_go_to_a_sink_and_rows_without_a_time_too():
    taken = []
    app = counted(weir.source("k string, time timestamp, note string"))
    query = start(
        app, servers=2, prune=False, late={"w": lambda t, b: taken.extend((b, *r) for r in rows_of(t))}
    )
    query.feed([{"k": "a", "time": at(25), "note": "in time"}, {"k": "a", "time": None, "note": "when?"}])
    query.feed([{"k": "b", "time": at(9), "note": "late"}, {"k": "b", "time": at(19, 59), "note": "as well"}])
    assert sorted(row[-1] for row in taken if row[0] == 1) == ["as well", "late"]
    assert [row for row in taken if row[0] == 0] == [(0, "a", None, "when?")]
    assert [p.operators["w"].late for p in query.recent_progress] == [1, 2]
    with pytest.raises(weir.errors.TopologyError, match="no row is late for 'k', which has no windows"):
        start(weir.source(SCHEMA).keyed("k", weir.Count()), servers=1, late={"k": print})


def test_windows_behind_windows_get_all_their_rows_also_at_the_end():
    hours = weir.tumbling("window_start", "1 hour")
    app = counted(weir.source(SCHEMA)).keyed(
        "k", weir.Aggregate(windows="count", rows="sum(count)"), name="hours", window=hours
    )
    times = [at(7 * i) for i in range(40)]
    query = run(app, [rows(*(("a", t) for t in times[i : i + 8])) for i in range(0, 40, 8)], servers=2)
    per_hour = [[t for t in times if t.hour == 12 + h] for h in range(5)]
    assert [
        (r["windows"], r["rows"]) for r in sorted(dicts(query.output()), key=lambda r: r["window_start"])
    ] == [(len({t.minute // 10 for t in hour}), len(hour)) for hour in per_hour]
    assert sum(p.operators["hours"].late for p in query.recent_progress) == 0


def test_event_time_behind_a_map_is_read_there_or_where_it_was_declared():
    def shifted(row):
        return {"k": row.k, "when": row.time + dt.timedelta(hours=1)}

    window = weir.tumbling("when", "10 minutes")
    mapped = weir.source(SCHEMA).map(shifted, "k string, when timestamp")
    app = weir.Application(mapped.keyed("k", weir.Count(), name="w", window=window))
    assert [p.name for p in parts_of(app).topology(1).by_name["w"].times] == ["map.when"]
    declared = weir.source(SCHEMA).event_time("time").map(shifted, "k string, when timestamp")
    app = weir.Application(declared.keyed("k", weir.Count(), name="w", window=window))
    assert [p.name for p in parts_of(app).topology(1).by_name["w"].times] == ["source.time"]
    query = start(app, servers=1)
    query.feed(rows(("a", at(0))))
    query.feed(rows(("a", at(70, 1))))
    query.feed([])
    assert told(query) == [(2, "a", 60, 1)]


def test_joins_and_duplicates_go_by_the_same_watermarks():
    wall, letters = Wall(), []
    ads, clicks = (
        weir.source("k string, shown timestamp", "ads"),
        weir.source("k string, clicked timestamp", "clicks"),
    )
    once = ads.deduplicate("k", within="1 hour", time="shown", name="once")
    app = once.join(clicks, "k", how="left", within="10 minutes", time=("shown", "clicked"), name="seen")
    query = start(app, servers=2, clock=wall, dead_letters=lambda t, b: letters.extend(dicts(t)))
    far = NOON.replace(year=2099)
    query.feed({"ads": [{"k": k, "shown": at(0)} for k in "aabc"], "clicks": [{"k": "a", "clicked": at(5)}]})
    query.feed({"ads": [{"k": "b", "shown": far}], "clicks": [{"k": "b", "clicked": far}]})
    assert sum(p.operators[name].ahead for p in query.recent_progress for name in ("once", "seen")) == 2
    assert [r["operator"] for r in letters] == ["once", "seen"]
    assert query.output("seen").num_rows == 1
    wall.time = at(40)  # idle for long: time has gone on by the clock, and no click can come any more
    while query.tick():
        pass
    alone = [r["k"] for r in dicts(query.output("seen")) if r["clicked"] is None]
    assert sorted(alone) == ["b", "c"]
    assert query.progress.state_keys["seen"] == 0


def test_a_column_that_only_tells_the_time_is_read_though_nobody_asks_for_it():
    window = weir.tumbling("time", "10 minutes")
    stream = weir.source("k string, time timestamp, seen timestamp, note string").event_time("seen")
    app = stream.keyed("k", weir.Count(emit="rows"), name="all").keyed(
        "k", weir.Count(), name="w", window=window
    )
    topology = parts_of(app).topology(2)
    assert topology.sources["source"].names == ["k", "time", "seen"]
    query = start(app, servers=2)
    query.feed([{"k": "a", "time": at(1), "seen": at(20), "note": ""}])
    query.feed([])
    assert told(query) == [(1, "a", 0, 1)]


def test_event_time_declared_on_one_way_holds_on_all_and_two_that_differ_are_refused():
    source = weir.source(SCHEMA)
    passed = source.keyed("k", weir.Count(emit="rows"), name="all")
    app = weir.Application(
        counted(passed), source.event_time("time", lateness="3 s").filter(lambda row: True)
    )
    assert [p.time.lateness for p in parts_of(app).topology(1).by_name["w"].times] == [3_000_000]
    timed = weir.Application(passed, passed.event_time("time"))
    assert [d.event_time is not None for d in parts_of(timed).declared] == [True]
    with pytest.raises(weir.errors.TopologyError, match="give it one event_time"):
        weir.Application(
            source.event_time("time").filter(lambda row: True), source.event_time("time", idle=None)
        )
