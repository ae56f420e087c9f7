"""Random entries, and views of them to compare."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.state.segment import H1, H2, entries, newest, tombstones

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("more", pa.list_(pa.int32()))])


def random_entries(
    rng: np.random.Generator, keys: int, rows: int, dead: float = 0.1, windows: int = 1
) -> pa.Table:
    """Entries of some of the keys 0 … keys − 1; with windows, several of one ``h1``."""
    key = rng.choice(keys, min(rows, keys), replace=False)
    window = rng.integers(0, windows, len(key))
    key_hash = _mixed(key // windows)
    key_check = _mixed(key.astype(np.uint64) * np.uint64(1000) + window.astype(np.uint64) + np.uint64(7))
    gone = rng.random(len(key)) < dead
    data = pa.table(
        {
            "key": pa.array([f"key {k}" for k in key[~gone]], pa.string()),
            "value": pa.array(rng.integers(0, 10**6, int((~gone).sum()))),
            "more": pa.array([[int(k)] * (int(k) % 3) for k in key[~gone]], pa.list_(pa.int32())),
        },
        schema=SCHEMA,
    )
    deadline = rng.integers(0, 1000, int((~gone).sum()))
    living = entries(data, key_hash[~gone], key_check[~gone], deadline=deadline)
    return newest(pa.concat_tables([living, tombstones(key_hash[gone], key_check[gone], SCHEMA)]))


def _mixed(numbers: np.ndarray) -> np.ndarray:
    z = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(31))


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(H1, "ascending"), (H2, "ascending")]).combine_chunks()


def assert_same(one: pa.Table, other: pa.Table) -> None:
    assert in_order(one).equals(in_order(other))


def assert_same_answers(view, model, asked: pa.Table, rng: np.random.Generator) -> None:
    """Two views answer alike: what they find of some keys, what comes due, what keys have, everything."""
    key_hash, key_check = asked[H1].to_numpy(), asked[H2].to_numpy()
    assert_same(
        view.take(*view.find(key_hash, key_check))[0], model.take(*model.find(key_hash, key_check))[0]
    )
    positions = view.take(*view.find(key_hash, key_check))[1]
    assert sorted(positions) == sorted(model.take(*model.find(key_hash, key_check))[1])
    after, until = sorted(rng.integers(0, 1000, 2).tolist())
    assert_same(view.due(after, until), model.due(after, until))
    assert_same(view.all_of(key_hash), model.all_of(key_hash))
    assert_same(view.everything(), model.everything())
    assert_same(view.everything(keep_dead=True), model.everything(keep_dead=True))
