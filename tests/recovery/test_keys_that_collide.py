"""Keys that anybody can compute to have the same public hashes stay apart: in every operator, after every change."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

import weir
from weir.engine.checkpoint import CheckpointLayout
from weir.hashing import SECOND_SEED, SPARK_SEED, hash_columns
from weir.state.storage import Storage
from weir.testing import start

P1, P2, WORDS = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 1 << 64
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "k binary, n long, time timestamp"


def colliding():
    """Return two keys of 64 bytes with the same XXH64 under both public seeds.

    Its first lane takes a word x: v = rotl(v + x·P2, 31)·P1. If x·P2 differs by 2⁶³, one bit of the rotated sum does,
    up or down as that bit was, so v differs by ±2³⁰·P1; the lane's next word, y, takes that back.
    """
    inverse = pow(P2, -1, WORDS)
    for word in range(0, WORDS, 1 << 60):
        bits = {(seed + P1 + P2 + word) % WORDS >> 63 for seed in (SPARK_SEED, SECOND_SEED)}
        if len(bits) == 1:
            break
    change = (1 - 2 * bits.pop()) * (1 << 30) * P1 * inverse
    words = [(word, 0), (word + (1 << 63), -change)]
    lanes = [[(x * inverse) % WORDS, 0, 0, 0, y % WORDS, 0, 0, 0] for x, y in words]
    return tuple(b"".join(word.to_bytes(8, "little") for word in lane) for lane in lanes)


A, B = colliding()
KEYS = [A, B, b"c" * 64, A, B, A]


def rows(batch):
    """Return rows whose keys collide, two hours of event time per batch."""
    time = NOON + dt.timedelta(hours=2 * batch)
    return [{"k": KEYS[i % 6], "n": i, "time": time + dt.timedelta(minutes=i)} for i in range(60)]


@dataclass
class Sum:
    total: int = 0


def add(key, rows, state):
    for row in rows:
        state.total += row.n


def merged(one, other):
    return Sum(one.total + other.total)


def remind(key, rows, state, timers):
    for row in rows:
        state.total += row.n
        timers.set(row.time + dt.timedelta(minutes=90))


def ring(key, timer, state, timers):
    yield {"k": key, "total": state.total}


def table_of(stream):
    return stream.filter(lambda row: row.n % 2 == 0)


HOUR = weir.tumbling("time", "1 hour", lateness="2 hours")
APPS = {
    "count": lambda s: s.count("k", name="o"),
    "changes": lambda s: s.aggregate("k", total="sum(n)", emit="changes", name="o"),
    "hours": lambda s: s.count("k", window=HOUR, name="o"),
    "early": lambda s: s.count("k", window=weir.tumbling("time", "1 hour", early="1 s"), name="o"),
    "sessions": lambda s: s.aggregate(
        "k", total="sum(n)", window=weir.session("time", "5 minutes"), name="o"
    ),
    "process": lambda s: s.process("k", add, state=Sum, name="o"),
    "process in hours": lambda s: s.process("k", add, state=Sum, window=HOUR, name="o"),
    "process in sessions": lambda s: s.process(
        "k", add, merge=merged, state=Sum, window=weir.session("time", "5 minutes"), name="o"
    ),
    "timers": lambda s: s.event_time("time").process(
        "k", remind, on_timer=ring, state=Sum, timers="event", output="k binary, total long", name="o"
    ),
    "deduplicate": lambda s: s.deduplicate("k", within="10 minutes", time="time", name="o"),
    "lookup": lambda s: s.lookup(table_of(s), "k", latest="time", name="o"),
    "join": lambda s: s.join(table_of(s), "k", within="3 minutes", time="time", name="o"),
    "join as of": lambda s: s.join_asof(table_of(s), "k", tolerance="1 hour", time="time", name="o"),
}


def bag(table):
    """Return rows without their order."""
    return Counter(map(repr, table.to_pylist()))


def found(app, batches, names, checkpoint=None, **settings):
    """Return all that an operator keeps and emits; ``names`` says which other keys come in the place of two."""
    with start(app(weir.source(SCHEMA, "rows")), checkpoint, servers=3, seed=3, **settings) as query:
        for batch in batches:
            query.feed([{**row, "k": names.get(row["k"], row["k"])} for row in rows(batch)])
        saved = query.state("o")
        query.finish()
        back = {new: old for old, new in names.items()}
        return [told(table, back) for table in (saved, query.output("o"))]


def told(table, back):
    if not table.num_columns:  # a function that emits nothing
        return bag(table)
    column = pa.array([back.get(k, k) for k in table["k"].to_pylist()], pa.binary())
    return bag(table.set_column(table.column_names.index("k"), "k", column))


def test_the_two_keys_collide_in_public():
    for seed in (SPARK_SEED, SECOND_SEED):
        first, second = hash_columns([pa.array([A, B])], seed).tolist()
        assert first == second


@pytest.mark.parametrize("execution", ["jobs", "live"])
@pytest.mark.parametrize("app", APPS)
def test_two_keys_that_collide_stay_apart(app, execution):
    """As do two others that do not."""
    settings = {"clock": lambda: 1_704_200_000_000_000, "execution": execution}
    names = {A: b"a" * 64, B: b"b" * 64}
    got = found(APPS[app], range(3), {}, faults=["job-done:1"], **settings)
    assert got == found(APPS[app], range(3), names, **settings)
    assert got[0] or got[1]


def counted(batches):
    return Counter(row["k"] for batch in batches for row in rows(batch))


def counts(query):
    return {row["k"]: row["count"] for row in query.state("o").to_pylist()}


def secret_of(folder):
    return CheckpointLayout(Storage(folder)).commit_of().secrets["o"]


def test_they_stay_apart_after_restarts_scaling_forks_and_migrations(tmp_path):
    """And in state that another query begins with, as rows or as it is stored."""
    app, blue, green, red = APPS["count"](weir.source(SCHEMA)), *(str(tmp_path / n) for n in "bgr")
    with start(app, blue, servers=3) as query:
        query.feed(rows(0))
        query.restart(app, servers=2)
        query.feed(rows(1))
        query.scale_out(servers=2)
        query.feed(rows(2))
        assert counts(query) == counted(range(3))
        weir.fork(blue, green)
        query.feed(rows(3))
        assert counts(query) == counted(range(4))
    with start(app, green, servers=2) as query:
        query.feed(rows(3))
        assert counts(query) == counted(range(4))
    assert secret_of(blue) == secret_of(green)  # whose files the fork has
    weir.migrate_state(app, green, {"o": lambda old: old})
    assert secret_of(blue) != secret_of(green)  # all is written anew
    with start(app, green, servers=3) as query:
        query.feed(rows(4))
        assert counts(query) == counted(range(5))
        saved = query.state("o")
    for initial in (weir.State(green, "o"), saved):
        begun = weir.source(SCHEMA).count("k", name="o", initial=initial)
        with start(begun, servers=2) as query:
            query.feed(rows(5))
            assert counts(query) == counted(range(6))
    # state that is taken as it is stored keeps its hash, and so do its copies
    begun = weir.source(SCHEMA).count("k", name="o", initial=weir.State(green, "o"))
    with start(begun, red, servers=2) as query:
        query.feed(rows(5))
    assert secret_of(red) == secret_of(green)


def test_every_checkpoint_has_its_own_secret_that_nothing_shows(tmp_path, capsys):
    from weir.cli.main import main
    from weir.engine.batch.ledger import Ledger

    secrets = set()
    for name in "ab":
        app = APPS["count"](weir.source(SCHEMA))
        with start(app, str(tmp_path / name), servers=2) as query:
            ledger = query._driver.ledger
            other = Ledger(Storage(str(tmp_path / f"{name}2")), ledger.topology, "streaming")
            query.feed(rows(0))
        secrets |= {other.secrets["o"], secret_of(str(tmp_path / name))}
        main(["inspect", str(tmp_path / name), "--json"])
    assert len(secrets) >= 3
    shown = capsys.readouterr().out
    assert not any(secret in shown for secret in secrets)
    assert all(len(secret) == 32 for secret in secrets)
