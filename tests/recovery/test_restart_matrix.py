"""Pairs of allowed changes between two runs, and chains of three: true counts, one home per key.

`make test` takes a sample, `make soak` all pairs.
"""

from __future__ import annotations

import collections
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

import weir
import weir.testing

SCHEMA = "place string, topic string"
TABLE = weir.Table.of({f"topic {t}": t % 2 for t in range(40)})
LEARN = {"period": 1, "forecast": None}
# name → servers, routing, routing of the topics alone, other options of theirs, whether there is a third operator
SETTINGS = {
    "hash": (3, None, None, {}, False),
    "fewer servers": (2, None, None, {}, False),
    "more servers": (5, None, None, {}, False),
    "table": (3, None, TABLE, {}, False),
    "locality": (3, weir.Locality(**LEARN), None, {}, False),
    "locality, first seen": (4, weir.Locality(**LEARN, new_keys="first_seen"), None, {}, False),
    "locality, hot keys": (3, weir.Locality(**LEARN, split_hot=True), None, {}, False),
    "pkg": (3, None, weir.PartialKey(), {}, False),
    "cg": (4, None, weir.Consistent(), {}, False),
    "fewer servers, pkg": (2, None, weir.PartialKey(), {}, False),
    "two places": (4, None, None, {"placement": [3, 1]}, False),
    "another operator": (3, weir.Locality(**LEARN), None, {}, True),
}


def application(setting):
    _, _, topics, options, more = SETTINGS[setting]
    stream = weir.source(SCHEMA).keyed("place", weir.Count(emit="rows"), name="places")
    stream = stream.keyed("topic", weir.Count(emit="rows"), name="topics", routing=topics, **options)
    return stream.keyed(["place", "topic"], weir.Count(), name="both") if more else stream


def rows(batch, n=150):
    rng = np.random.default_rng(batch)
    topic = rng.zipf(1.4, n) % 60
    place = (topic + 5 * (batch // 2)) % 17
    return pa.table({"place": [f"place {p}" for p in place], "topic": [f"topic {t}" for t in topic]})


def check(query, tables):
    for name, column in (("places", "place"), ("topics", "topic")):
        state = query.state(name).to_pylist()
        truth = collections.Counter(v for t in tables for v in t[column].to_pylist())
        assert collections.Counter(r[column] for r in state) == collections.Counter(truth.keys())
        assert {r[column]: r["count"] for r in state} == truth


def run(chain, checkpoint, seed):
    """Two batches under each setting, with tables and tasks that change all the while; the truth after each."""
    tables = []
    query = None
    for setting in chain:
        servers, routing, *_ = SETTINGS[setting]
        app = application(setting)
        if query is None:
            query = weir.testing.start(app, checkpoint, servers=servers, routing=routing, seed=seed)
        else:
            dropped = {"drop_state": ["both"]} if not SETTINGS[setting][4] else {"drop_state": []}
            query.restart(app, servers=servers, routing=routing, **dropped)
        for _ in range(2):
            if query._driver.learner is not None:
                query.reconfigure(wait=True)
            tables.append(rows(len(tables)))
            query.feed(tables[-1])
            check(query, tables)
    query.stop()


PAIRS = list(itertools.product(SETTINGS, repeat=2))
CHAINS = random.Random(7).sample(list(itertools.permutations(SETTINGS, 3)), 25)


def test_some_pairs_and_chains(tmp_path):
    for number, chain in enumerate([*random.Random(3).sample(PAIRS, 16), *CHAINS[:4]]):
        run(chain, str(tmp_path / str(number)), seed=number)


@pytest.mark.long
@pytest.mark.parametrize("chain", [*PAIRS, *CHAINS], ids=" → ".join)
def test_every_pair_and_more_chains(chain, tmp_path):
    run(chain, str(tmp_path / "checkpoint"), seed=len(chain[0]))
