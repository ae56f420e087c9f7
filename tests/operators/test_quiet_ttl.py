"""Keys whose ``ttl`` ends while no rows come: they go all the same, once, whatever dies meanwhile."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts, rows_of
from weir.testing import start

SECOND = 10**6


@dataclass
class Seen:
    rows: int = 0


class Visits(weir.Process):
    state = Seen
    output = {"k": "string", "rows": "long"}

    def process(self, key, rows, state):
        state.rows += len(rows)

    def expired(self, key, state):
        yield key, state.rows


def counted(batch):
    return batch.states.set_column(0, "n", pa.array([1] * batch.states.num_rows)), None


KEYED = weir.source("k string", "rows")
OPERATORS = {
    "count": KEYED.count("k", name="op", ttl=20, emit="changes"),
    "process": KEYED.keyed("k", Visits(), name="op", ttl=20),
    "batch": KEYED.process_batch("k", counted, state="n long", name="op", ttl=20),
    "join": KEYED.join(weir.source("k string", "others"), "k", name="op", ttl=20),
    "deduplicate": KEYED.deduplicate("k", within=20, name="op"),
}


@pytest.mark.parametrize("execution", ["jobs", "live"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_keys_go_without_rows_and_without_trouble(operator, execution):
    now = [100 * SECOND]
    query = start(
        OPERATORS[operator], servers=2, clock=lambda: now[0], execution=execution, faults=["job-done:1"]
    )
    query.feed({"rows": [{"k": k} for k in "abc"], **({"others": []} if operator == "join" else {})})
    assert query.progress.state_keys["op"] == 3
    now[0] = 121 * SECOND
    assert not query.tick()  # their time is up, but they may wait for others
    now[0] = 122 * SECOND
    assert query.tick()
    assert query.pending_faults == []
    assert query.progress.state_keys["op"] == query.state("op").num_rows == 0
    if operator == "process":
        assert rows_of(query.output("op")) == [("a", 1), ("b", 1), ("c", 1)]
    if operator == "count":
        assert sorted(r["k"] for r in dicts(query.output("op")) if r["change"] == "delete") == ["a", "b", "c"]
    now[0] = 1_000 * SECOND
    assert not query.tick()


def test_an_operator_that_gets_its_ttl_back_on_a_quiet_stream_forgets():
    now = [0]
    with tempfile.TemporaryDirectory() as folder:
        query = start(KEYED.count("k", name="op", ttl=20), folder, servers=2, clock=lambda: now[0])
        query.feed([{"k": "a"}])
        query.stop()
        now[0] = 15 * SECOND
        query = start(KEYED.count("k", name="op"), folder, servers=2, clock=lambda: now[0])
        now[0] = 100 * SECOND
        assert not query.tick()  # it has no ttl
        query.feed([{"k": "b"}])
        query.stop()
        query = start(KEYED.count("k", name="op", ttl=20), folder, servers=2, clock=lambda: now[0])
        assert query.tick()
        assert [row[0] for row in rows_of(query.state("op"))] == ["b"]  # written while there was none
        query.stop()


steps = st.one_of(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=4),
    st.integers(1, 15),
    st.sampled_from(["tick", "restart"]),
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=3, max_size=12), st.lists(st.integers(0, 5), max_size=2, unique=True))
def test_what_is_there_has_had_rows_and_what_is_gone_has_not(story, crashes):
    now, servers, seen, told = [100 * SECOND], 2, {}, []
    with tempfile.TemporaryDirectory() as folder:
        faults = [f"job-done:{batch}" for batch in crashes]
        query = start(OPERATORS["process"], folder, servers=2, clock=lambda: now[0], faults=faults)
        for step in [["a"], *story, 40, "tick"]:
            if isinstance(step, int):
                now[0] += step * SECOND
            elif step == "restart":
                servers = 5 - servers
                query.restart(servers=servers)
            else:
                if step != "tick":
                    query.feed({"rows": [{"k": k} for k in step]})
                gone = {k: n for k, (at, n) in seen.items() if at + 20 * SECOND <= now[0]}
                over = any(at + 22 * SECOND <= now[0] for at, _ in seen.values())
                ran = query.tick() if step == "tick" else True
                assert ran or not over
                if ran:
                    told += gone.items()
                    seen = {k: v for k, v in seen.items() if k not in gone}
                if step != "tick":
                    for k in step:
                        seen[k] = (now[0], seen.get(k, (0, 0))[1] + 1)
                state = {r["k"]: r["rows"] for r in dicts(query.state("op"))}
                assert state == {k: n for k, (_, n) in seen.items()}
        assert not seen
        assert sorted(rows_of(query.output("op"))) == sorted(told)
