"""Changes with the old value: whoever applies them in order has the state."""

from __future__ import annotations

import pytest

import weir
from support import POSTS, dicts, posts
from weir.testing import start


@pytest.mark.parametrize("routing", [weir.Hash(), weir.PartialKey()])
def test_changes_applied_in_order_are_the_state(routing):
    operator = weir.Aggregate(rows="count", best="max(n)", emit="changes")
    app = weir.source(POSTS).keyed("topic", operator, name="topics", routing=routing)
    query = start(app, servers=3, faults=["job-done:1", "commit-written:2"])
    mirror = {}
    for seed in range(4):
        query.feed(posts(400, seed))
        for row in dicts(query.output("topics", seed)):
            before = mirror.get(row["topic"])
            assert row["change"] == ("insert" if before is None else "update")
            assert (row["old_rows"], row["old_best"]) == (before or (None, None))
            mirror[row["topic"]] = row["rows"], row["best"]
        assert mirror == {r["topic"]: (r["rows"], r["best"]) for r in dicts(query.state("topics"))}


def test_a_key_that_expires_is_deleted_and_one_that_comes_back_at_once_is_updated():
    now = [100]
    app = weir.source("k string").keyed("k", weir.Count(emit="changes"), name="c", ttl=10)
    behind = app.keyed("change", weir.Count(), name="kinds")
    query = start(behind, servers=2, clock=lambda: now[0] * 10**6, sink={"c": lambda t, b: None})
    query.feed([{"k": "a"}, {"k": "b"}, {"k": "b"}])
    now[0] = 120
    query.feed([{"k": "b"}])  # both have expired; of b nobody has been told otherwise
    told = sorted(tuple(r.values()) for r in dicts(query.output("c", 1)))
    assert told == [("a", "delete", None, 1), ("b", "update", 1, 2)]
    kinds = {r["change"]: r["count"] for r in dicts(query.state("kinds"))}
    assert kinds == {"insert": 2, "delete": 1, "update": 1}
    with pytest.raises(weir.errors.TopologyError, match="each of them tells its result once"):
        start(
            weir.source("k string, t timestamp").keyed(
                "k", weir.Count(emit="changes"), window=weir.tumbling("t", 10)
            ),
            servers=1,
        )
