"""Rates from the reports of batches: what wants to come in, and who is congested."""

from __future__ import annotations

import pytest

import weir
from weir.elasticity import Stela
from weir.engine.documents import TaskReport
from weir.engine.steering.load import Load
from weir.flow import parts_of
from weir.operators.instance import OperatorReport


def star() -> Load:
    """Two operators at the source, a slow one that gets what both send, and two behind it; a server each."""
    rows = weir.source("n long", name="rows")
    one, two = (
        rows.map_batches(lambda b: b, name=name, routing=weir.Shuffle(), placement=(server,))
        for name, server in (("one", 0), ("two", 1))
    )
    hub = one.union(two).map_batches(lambda b: b, name="hub", routing=weir.Shuffle(), placement=(2,))
    ends = [
        hub.map_batches(lambda b: b, name=f"end {i}", routing=weir.Shuffle(), placement=(3 + i,))
        for i in (0, 1)
    ]
    return Load(parts_of(weir.Application(*ends)).topology(servers=5))


def batch(load: Load, rows: int, speeds: dict[str, float], rested: float) -> None:
    """Report a batch in which every operator needed as long as its speed says."""
    reports = []
    for server, (name, speed) in enumerate(speeds.items()):
        count = rows if name in ("one", "two") else 2 * rows
        done = OperatorReport(rows_in=count, rows_out=count, busy=count / speed)
        reports.append(TaskReport(server=server, step=1, operators={name: done}))
    seconds = sum(report.operators[name].busy for report, name in zip(reports, speeds, strict=True))
    load.observe(reports, seconds, rested)


SPEEDS = {"one": 120.0, "two": 120.0, "hub": 60.0, "end 0": 300.0, "end 1": 300.0}


def test_a_backlog_wants_in_as_fast_as_the_first_operators_take_it() -> None:
    load = star()
    batch(load, 1200, SPEEDS, rested=0.0)
    rates = load.rates()
    assert rates["one"].input == pytest.approx(120)
    assert rates["hub"].input == pytest.approx(240)
    assert rates["hub"].processing == pytest.approx(60)
    assert load.congested() == ["hub"]
    # one more instance is not enough, so a second new server gets another one, not a first operator's
    chosen = [step.operator for step in Stela().scale_out(load.situation(), [5, 6]).steps]
    assert chosen == ["hub", "hub"]


def test_a_slow_operator_sends_no_more_than_it_can_process() -> None:
    load = star()
    batch(load, 1200, {**SPEEDS, "end 0": 100.0, "end 1": 100.0}, rested=0.0)
    rates = load.rates()
    assert rates["hub"].emit == pytest.approx(60)
    assert rates["hub"].selectivity == pytest.approx(1)
    assert [rates[name].input for name in ("end 0", "end 1")] == pytest.approx([60, 60])
    # those behind it are fast enough for what two instances of it send
    chosen = [step.operator for step in Stela().scale_out(load.situation(), [5]).steps]
    assert chosen == ["hub"]
    assert load.congested() == ["hub"]


def test_a_slow_first_operator_is_congested_by_what_the_others_could_take() -> None:
    load = star()
    batch(load, 1200, {**SPEEDS, "one": 30.0, "hub": 400.0}, rested=0.0)
    assert load.congested() == ["one"]


def test_a_stream_that_lets_servers_rest_wants_in_what_it_brings() -> None:
    load = star()
    batch(load, 1200, SPEEDS, rested=100.0)
    assert load.rates()["one"].input < 20
    assert load.congested() == []


def test_tiny_batches_in_quick_succession_are_no_overload() -> None:
    load = star()
    for _ in range(5):
        batch(load, 200, dict.fromkeys(SPEEDS, 1000000.0), rested=0.1)
    rates = load.rates()
    assert load.congested() == []
    assert rates["one"].input < 2500  # not what the servers could take if there were more


def test_the_slowest_server_goes_first_when_scaling_in() -> None:
    counts = weir.source("word string").count("word", name="words")
    load = Load(parts_of(weir.Application(counts)).topology(servers=4))
    for _ in range(4):
        reports = [
            TaskReport(server=s, step=1, operators={"words": OperatorReport(rows_in=1000, busy=busy)})
            for s, busy in enumerate([0.5, 0.5, 1.7, 0.5])
        ]
        load.observe(reports, 1.7)
    assert load.summary().speeds == pytest.approx([1, 1, 0.294, 1], abs=0.01)
    decision = Stela().scale_in(load.situation())
    assert decision.machines == (2,)
    by_host = load.situation().by_host(["x", "y", "y", "z"])
    assert Stela().scale_in(by_host).machines != ("y",)  # two servers, one of them slow, do more than one
