"""Lists and maps in the state of a Process: element by element, with their key wherever it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from support import dicts
from weir.errors import TopologyError
from weir.operators.process import parts
from weir.testing import run, start

SCHEMA = "k string, what string, n long"


@dataclass
class Seen:
    rows: int = 0
    numbers: weir.ListState[int] = field(default_factory=weir.ListState)
    counts: weir.MapState[str, int] = field(default_factory=weir.MapState)


class Remembers(weir.Process):
    """Does to its list and map what its rows say, one after the other."""

    state = Seen
    output = {"k": "string", "rows": "long", "numbers": "array<long>", "counts": "long"}
    order_by = "n"

    def process(self, key, rows, state):
        for row in rows:
            act(state.numbers, state.counts, row.what, row.n)
            state.rows += 1
        yield key, state.rows, list(state.numbers), sum(state.counts.values())

    def expired(self, key, state):
        yield key, state.rows, list(state.numbers), sum(state.counts.values())


def act(numbers, counts, what, n):
    if what == "append":
        numbers.append(n)
    elif what == "first" and len(numbers):
        numbers.popleft() if isinstance(numbers, weir.ListState) else numbers.pop(0)
    elif what == "last" and len(numbers):
        numbers.pop()
    elif what == "set" and len(numbers):
        numbers[n % len(numbers)] = -n
    elif what == "insert":
        numbers.insert(n % (len(numbers) + 2), n)
    elif what == "delete" and len(numbers):
        del numbers[n % len(numbers)]
    elif what == "clear":
        numbers.clear()
        counts.clear()
    elif what == "count":
        counts[f"c{n % 3}"] = counts.get(f"c{n % 3}", 0) + 1
    elif what == "forget":
        counts.pop(f"c{n % 3}", None)


WHAT = st.sampled_from(
    ["append", "append", "first", "last", "set", "insert", "delete", "clear", "count", "count", "forget"]
)
BATCHES = st.lists(st.lists(st.tuples(st.sampled_from("ab"), WHAT), max_size=10), min_size=1, max_size=5)


def fed(batches):
    number = iter(range(10_000))
    return [[{"k": k, "what": what, "n": next(number)} for k, what in batch] for batch in batches]


def truth(batches):
    states = {}
    for row in (row for batch in batches for row in batch):
        numbers, counts = states.setdefault(row["k"], ([], {}))
        act(numbers, counts, row["what"], row["n"])
    return states


@pytest.fixture(params=[0, 4, 1024])
def small(request, monkeypatch):
    """How many bytes of elements are saved with their state: none, so few that lists come and go, or all of them."""
    monkeypatch.setattr(parts, "SMALL", request.param)
    return request.param


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=BATCHES, faulty=st.booleans())
def test_they_behave_as_lists_and_dicts_do(small, batches, faulty):
    rows = fed(batches)
    faults = ["job-done:0", "commit-written:1", "step-started:201"] if faulty else []
    query = run(weir.source(SCHEMA).keyed("k", Remembers(), name="r"), rows, servers=2, faults=faults)
    expected = truth(rows)
    state = {r["k"]: r for r in dicts(query.state("r"))}
    assert set(state) == set(expected)
    elements = 0
    for k, (numbers, counts) in expected.items():
        assert msgspec.json.decode(state[k]["numbers"]) == numbers
        assert (msgspec.json.decode(state[k]["counts"]) or {}) == counts
        elements += 1 + len(numbers) + len(counts)
    if small != 4:
        entries = elements if small == 0 else len(expected)
        assert query.progress.state_keys.get("r", 0) == entries


def test_they_move_and_scale_with_their_key(small):
    rows = fed(
        [[(f"k{(i * 5 + b) % 12}", "append" if i % 3 else "count") for i in range(30)] for b in range(8)]
    )
    app = weir.source(SCHEMA).keyed("k", Remembers(), name="r")
    query = start(app, servers=3, routing=weir.Locality(period=1, forecast=None))
    for number, batch in enumerate(rows):
        if number == 2:
            query.scale_out(1)
        if number == 5:
            query.restart(servers=2, routing=weir.Hash())
        if query._driver.learner is not None:
            query.reconfigure(wait=True)
        query.feed(batch)
    for row in dicts(query.state("r")):
        numbers, counts = truth(rows)[row["k"]]
        assert msgspec.json.decode(row["numbers"]) == numbers
        assert (msgspec.json.decode(row["counts"]) or {}) == counts


def test_a_long_list_is_not_written_again_for_one_element(tmp_path):
    def written(batch):
        files = Path(tmp_path).glob(f"state/r/{batch:012d}/*.arrow")
        return sum(f.stat().st_size for f in files if "merged" not in f.name)

    def app(process):
        return weir.source(SCHEMA).process("k", process, state=Seen, name="r")

    def append(key, rows, state):
        state.numbers.extend(row.n for row in rows)

    with start(app(append), str(tmp_path), servers=1) as query:
        query.feed([{"k": "a", "n": n} for n in range(20_000)])
        query.feed([{"k": "a", "n": 1}])
        assert written(0) > 100_000
        assert written(1) < 5_000


def test_a_key_that_expires_takes_its_elements_with_it(small):
    times = iter([100, 105, 120, 121])
    app = weir.source(SCHEMA).keyed("k", Remembers(), name="r", ttl=10)
    query = start(app, servers=2, clock=lambda: next(times) * 1_000_000)
    query.feed(fed([[("a", "append"), ("a", "count"), ("b", "append")]])[0])
    query.feed(fed([[("b", "append")]])[0])
    query.feed(fed([[("c", "count"), ("a", "append")]])[0])
    gone = [row for row in dicts(query.output("r", 2)) if row["rows"] and row["k"] == "b"]
    assert gone == [{"k": "b", "rows": 2, "numbers": [2, 0], "counts": 0}]
    state = {row["k"]: row for row in dicts(query.state("r"))}
    assert set(state) == {"a", "c"}
    assert state["a"]["numbers"] == "[1]"
    assert query.progress.state_keys["r"] == {0: 4, 4: 3, 1024: 2}[small]


def test_what_a_failing_call_has_changed_is_forgotten(small):
    def process(key, rows, state):
        state.numbers.append(1)
        if any(row.what == "fail" for row in rows):
            raise ValueError("no")

    app = weir.source(SCHEMA).process("k", process, state=Seen, name="r", on_error="divert")
    letters = []
    query = run(
        app,
        [[{"k": "a", "what": "", "n": 1}], [{"k": "a", "what": "fail", "n": 1}]],
        servers=1,
        dead_letters=lambda table, batch: letters.append(table),
    )
    assert dicts(query.state("r"))[0]["numbers"] == "[1]"
    assert query.dead_letters.num_rows == 1


@dataclass
class Grown(Seen):
    more: weir.ListState[str] = field(default_factory=weir.ListState)


def test_a_state_gains_a_list(small):
    def process(key, rows, state):
        state.numbers.append(len(rows))
        if hasattr(state, "more"):
            state.more.append("x")

    def app(kind):
        return weir.source(SCHEMA).process("k", process, state=kind, name="r")

    with start(app(Seen), servers=2) as query:
        query.feed(fed([[("a", "")]])[0])
        query.restart(app(Grown))
        query.feed(fed([[("a", "")]])[0])
        assert [(r["numbers"], r["more"]) for r in dicts(query.state("r"))] == [("[1,1]", '["x"]')]


def test_a_state_with_a_list_cannot_be_merged():
    with pytest.raises(TopologyError, match="cannot be merged"):
        weir.Process(lambda key, rows, state: None, state=Seen, merge=lambda a, b: a)


def test_a_map_looks_up_only_what_it_is_asked_for():
    asked = []
    m = weir.MapState.unpacked(None)
    m._of.get_some = lambda at: asked.append(at) or [parts.MISSING] * len(at)
    assert m.get("a") is None
    m["b"] = 1
    assert (m["b"], "a" in m, len(asked)) == (1, False, 1)
