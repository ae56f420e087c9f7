"""Decisions about machines are carried out on servers, whole, and machines have no more cores than they should."""

from __future__ import annotations

import io
import os
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from rich.console import Console

from weir.elasticity import Stela
from weir.elasticity.decision import Situation
from weir.elasticity.graph import Placement
from weir_evaluation.bench.stela import show
from weir_evaluation.bench.stela_spark import (
    AFTER,
    CHANGED,
    Serve,
    Settings,
    expected,
    least,
    measure,
    on_servers,
    slowed,
)
from weir_evaluation.simulate.dag import SimulatedOperator
from weir_evaluation.stela.machines import Machines, _Late
from weir_evaluation.stela.rivals import Default, LeastLinkLoad, Random
from weir_evaluation.stela.topologies import CASES, Case, page_load_in
from weir_evaluation.stela.trial import decide, situation


def each_its_server(case) -> Placement:
    names, k = case.graph.operators, case.parallelism
    servers = tuple(range(len(names) * k))
    return Placement(servers, {name: servers[i * k : (i + 1) * k] for i, name in enumerate(names)})


@pytest.mark.parametrize("strategy", [Stela(), Default(), LeastLinkLoad(), Random(1)], ids=lambda s: s.name)
@pytest.mark.parametrize("case", [CASES["Star"], page_load_in()], ids=["out", "in"])
def test_every_instance_ends_on_the_machine_that_was_decided(case, strategy) -> None:
    now = situation(case, jitter=0.0)
    chosen = decide(case, strategy, now)
    servers = each_its_server(case)
    decision, homes = on_servers(chosen, Situation(case.graph, now.rates, servers))
    number = {server: i for i, server in enumerate(decision.after.machines)}
    for name, where in decision.after.instances.items():
        assert tuple(homes[number[s]] for s in where) == chosen.after.instances[name]
        for i, machine in enumerate(chosen.before.instances[name]):
            stays = chosen.after.instances[name][i] == machine
            assert (where[i] == servers.instances[name][i]) == stays
    assert len(set(decision.after.machines)) == chosen.after.total, "a server each"
    moved = len(chosen.moved())
    assert len(decision.steps) == moved + sum(chosen.added().values())
    assert moved or strategy.name in ("stela", "random")


def test_a_core_is_held_by_one_at_a_time_and_each_machine_has_its_own(tmp_path) -> None:
    machines = Machines(str(tmp_path), cores=1)
    held = machines._take(0)
    os.close(machines._take(1))  # another machine has a core left
    waits = threading.Thread(target=lambda: os.close(machines._take(0)))
    waits.start()
    waits.join(0.05)
    assert waits.is_alive()
    os.close(held)
    waits.join(10)
    assert not waits.is_alive()


@pytest.mark.parametrize("work", ["sleep", "cpu"])
def test_an_overloaded_machine_takes_as_long_as_its_cores_need(tmp_path, work) -> None:
    machines = Machines(str(tmp_path), cores=1, work=work, share=0.1)
    began = time.perf_counter()
    both = [threading.Thread(target=machines.occupy, args=(0, 0.1, 1.0)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert time.perf_counter() - began >= 0.19


class Clock:
    """Time that passes only when somebody sleeps, and then a little more than was asked for."""

    def __init__(self, too_long: float) -> None:
        self.now, self.too_long = 0.0, too_long

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.too_long


def with_clock(monkeypatch, tmp_path, *, too_long: float, wait: float) -> tuple[Clock, Machines]:
    """A clock, and machines whose cores are free after some seconds whenever they are asked for."""
    clock = Clock(too_long)

    def take(self: Machines, machine: int) -> int:
        clock.now += wait
        return os.open(tmp_path / "core", os.O_CREAT | os.O_RDWR)

    monkeypatch.setattr("weir_evaluation.stela.machines.time", clock)
    monkeypatch.setattr("weir_evaluation.stela.machines._late", _Late())
    monkeypatch.setattr(Machines, "_take", take)
    return clock, Machines(str(tmp_path))


def test_what_sleeping_took_too_long_is_made_up_for_by_the_rows_that_follow(monkeypatch, tmp_path) -> None:
    clock, machines = with_clock(monkeypatch, tmp_path, too_long=0.001, wait=0.0)
    for _ in range(100):  # rows that come one by one
        machines.occupy(0, 0.01, 0.25)
    assert clock.now == pytest.approx(100 * 0.01, abs=0.003)


def test_waiting_for_a_core_costs_nothing_where_there_is_time_to_rest(monkeypatch, tmp_path) -> None:
    clock, machines = with_clock(monkeypatch, tmp_path, too_long=0.0, wait=0.004)
    for _ in range(100):
        machines.occupy(0, 0.01, 0.25)
    assert clock.now == pytest.approx(100 * 0.01, abs=0.005)


def test_an_instance_that_waits_longer_than_it_rests_gets_no_more_than_its_cores(
    monkeypatch, tmp_path
) -> None:
    clock, machines = with_clock(monkeypatch, tmp_path, too_long=0.0, wait=0.02)
    for _ in range(100):
        machines.occupy(0, 0.01, 0.25)
    # it never rests, but computes as long as ever; only the first time it had not waited before
    assert clock.now == pytest.approx(100 * (0.02 + 0.0025), abs=0.01)
    clock.now = 0.0
    monkeypatch.setattr(Machines, "_take", lambda *_: os.open(tmp_path / "core", os.O_RDWR))
    machines.occupy(0, 1.0, 0.25)
    assert clock.now >= 0.9 - 1e-9, "it makes up for a tenth of a second, no more"


def test_rows_that_are_dropped_are_the_same_whoever_gets_them(tmp_path) -> None:
    serve = Serve(Machines(str(tmp_path)), rate=100.0, cpu=0.1, selectivity=0.8)
    rows = pa.RecordBatch.from_pydict({"n": list(range(5000)), "batch": [0] * 5000})
    whole = serve(rows)["n"].to_pylist()
    parts = [n for at in range(0, 5000, 700) for n in serve(rows.slice(at, 700))["n"].to_pylist()]
    assert whole == parts
    assert 0.77 < len(whole) / 5000 < 0.83


@pytest.mark.parametrize("strategy", [Stela(), LeastLinkLoad()], ids=lambda s: s.name)
def test_a_decision_is_carried_out_in_mid_stream_and_no_row_is_lost(strategy) -> None:
    rates = {"source": 4000, "slow": 1000, "sink": 4000}
    operators = tuple(SimulatedOperator(name, rate, cpu=0.2) for name, rate in rates.items())
    case = Case("chain", operators, tuple(pairwise(rates)), 2, 2, 3)
    settings = Settings(execution="threads", seconds=0.05, pace=1e6, frames=4)
    record = measure(case, strategy, Console(file=io.StringIO()), settings)
    added = strategy.name == "stela"
    assert (record["moved"] == 0) == added
    instances = sum(record["instances"].values())
    assert instances == (9 if added else 6)
    assert record["servers"] == [6] * CHANGED + [instances] * AFTER
    assert set(record["rows"]) == {100}, "all rows of a batch come out"
    assert all(0 < part < 1 for part in record["of_bound"])
    assert 0 < record["emulated"] < 1.2


def test_slower_operators_change_nothing_but_time() -> None:
    case = CASES["Network"]
    slow = slowed(case, 100.0)
    times = {a.rate / b.rate for a, b in zip(case.operators, slow.operators, strict=True)}
    assert len({round(t, 9) for t in times}) == 1
    assert replace(slow, operators=case.operators) == case
    more = {**dict.fromkeys(case.graph.operators, 4), "score": 8}
    assert expected(slow, more, "live") == pytest.approx(expected(case, more, "live"))
    start = dict.fromkeys(case.graph.operators, case.parallelism)
    # 8 of its operators' rows for a row of the stream
    assert 8 / least(slow, start, "live") == pytest.approx(100.0)


def test_every_number_stands_below_its_name() -> None:
    common = {
        "topology": "Star",
        "operation": "out",
        "before": 100.0,
        "convergence_s": None,
        "silent_batches": 0,
        "interruption_s": 2.5,
        "where": "spark",
        "execution": "live",
        "work": "sleep",
    }
    records = [
        {**common, "strategy": "stela", "after": 160.0, "expected": 1.7, "emulated": 0.5},
        {**common, "strategy": "default", "after": 80.0, "expected": 1.0, "emulated": 1.0},
    ]
    printed = io.StringIO()
    show(records, Console(file=printed, width=200))
    lines = printed.getvalue().splitlines()
    names, values = (
        [cell.strip() for cell in next(line for line in lines if word in line).split(bar)]
        for word, bar in (("over default", "┃"), ("stela", "│"))
    )
    row = dict(zip(names, values, strict=True))
    assert (row["over before"], row["expected"], row["over default"]) == ("+60%", "+70%", "+100%")
    assert (row["convergence s"], row["interruption s"]) == ("never", "2.5")
    assert "only 50% was emulated work" in printed.getvalue()
