"""Machines with several servers each: they come and go as a whole."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from elasticity_worlds import situations
from hypothesis import given
from hypothesis import strategies as st

from weir.elasticity import Situation
from weir.engine.steering.requests import Request, decide
from weir.errors import EngineError
from weir_evaluation.stela.rivals import STRATEGIES

N = 6
HOSTS = st.lists(st.sampled_from("xyz"), min_size=N, max_size=N).filter(lambda hosts: len(set(hosts)) > 1)


@given(situations(N), HOSTS, st.sampled_from(sorted(STRATEGIES)))
def test_a_host_leaves_with_all_its_servers(now: Situation, hosts: list[str], name: str) -> None:
    decision = decide(Request("in", 1, strategy=STRATEGIES[name](), whole_hosts=True), now, hosts)
    left = {hosts[m] for m in decision.machines}
    assert len(left) == 1
    assert set(decision.machines) == {m for m in range(N) if hosts[m] in left}
    assert decision.after.parallelism() == now.placement.parallelism()


@given(situations(N), HOSTS)
def test_the_host_whose_servers_matter_least_goes(now: Situation, hosts: list[str]) -> None:
    decision = decide(Request("in", 1, whole_hosts=True), now, hosts)
    sums: Counter[str] = Counter(dict.fromkeys(hosts, 0.0))  # type: ignore[arg-type]
    for machine, etp in decision.machine_etp.items():
        sums[hosts[machine]] += etp  # type: ignore[assignment]
    assert sums[hosts[decision.machines[0]]] <= min(sums.values()) + 1e-9


@given(situations(N), HOSTS, st.integers(1, 3))
def test_a_host_comes_with_as_many_servers_as_hosts_have(now: Situation, hosts: list[str], k: int) -> None:
    decision = decide(Request("out", k, whole_hosts=True), now, hosts)
    assert len(decision.machines) == k * math.ceil(N / len(set(hosts)))


@given(situations(N))
def test_where_servers_live_must_be_known(now: Situation) -> None:
    with pytest.raises(EngineError, match="wait for one"):
        decide(Request("in", 1, whole_hosts=True), now, [])
