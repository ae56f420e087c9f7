"""The hash must be Spark's own, or the JVM and Python would disagree on where a key lives."""

from __future__ import annotations

import ast
import datetime as dt
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.hashing import SECOND_SEED, hash_columns, key_group, keyed_hash

COLUMNS = {
    "s": ("string", st.text(max_size=80)),
    "y": ("binary", st.binary(max_size=80)),
    "b": ("boolean", st.booleans()),
    "t": ("byte", st.integers(-128, 127)),
    "h": ("short", st.integers(-(2**15), 2**15 - 1)),
    "i": ("int", st.integers(-(2**31), 2**31 - 1)),
    "l": ("long", st.integers(-(2**63), 2**63 - 1)),
    "d": ("date", st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
    "m": ("timestamp", st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))),
}


def test_equals_spark_for_every_key_type_nulls_and_several_columns(spark):
    from pyspark.sql import functions as F

    rng = np.random.default_rng(7)
    rows = []
    for i in range(300):
        text = "".join(chr(int(c)) for c in rng.integers(1, 3000, i % 70))
        row = (
            text,
            rng.bytes(i % 67),
            bool(i % 2),
            i % 256 - 128,
            i * 97 % 65536 - 32768,
            int(rng.integers(-(2**31), 2**31)),
            int(rng.integers(-(2**63), 2**63)),
            dt.date(1950, 1, 1) + dt.timedelta(int(rng.integers(0, 50000))),
            dt.datetime(1960, 1, 1) + dt.timedelta(microseconds=int(rng.integers(0, 2**51))),
        )
        rows.append(tuple(None if rng.random() < 0.1 else v for v in row))
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    choices = [[c] for c in COLUMNS] + [["s", "l"], ["d", "y", "b"], list(COLUMNS)]
    hashes = [F.xxhash64(*c).alias(f"h{i}") for i, c in enumerate(choices)]
    table = frame.select("*", *hashes).toArrow()
    for i, columns in enumerate(choices):
        ours = hash_columns([table[c] for c in columns]).view(np.int64)
        np.testing.assert_array_equal(ours, table[f"h{i}"].to_numpy(), err_msg=str(columns))
    group = F.shiftright(F.shiftrightunsigned(F.xxhash64("s"), 32) * F.lit(7), 32)
    groups = frame.select(group.alias("g")).toArrow()["g"].to_numpy()
    np.testing.assert_array_equal(key_group(hash_columns([table["s"]]), 7), groups)


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=1, max_size=50), st.integers(0, 49))
def test_slices_and_chunks_do_not_matter(values, cut):
    cut %= len(values)
    whole = hash_columns([pa.array(values, pa.string())])
    padded = pa.array(["x", *values, "y"], pa.string()).slice(1, len(values))
    chunked = pa.chunked_array([pa.array(values[:cut], pa.string()), pa.array(values[cut:], pa.string())])
    dictionary = pa.array(values, pa.string()).dictionary_encode()
    large = pa.array(values, pa.large_string())
    for other in (padded, chunked, dictionary, large):
        np.testing.assert_array_equal(hash_columns([other]), whole)


def test_the_keyed_hash_is_the_siphash_of_python():
    """Python hashes bytes with SipHash-1-3, too; the first column goes on from eight bytes of nothing."""
    texts = [b"", b"a", b"eight by", b"nine byte", b"\xff" * 31, b"long " * 60]
    code = f"print([hash(bytes(8) + text) % 2**64 for text in {texts!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    assert keyed_hash([pa.array(texts)], "00" * 16).tolist() == ast.literal_eval(done.stdout.decode())
    # a number is its eight bytes; another column goes on from the hash of those before
    numbers, words = pa.array([7, -1]), pa.array([(7).to_bytes(8, "little"), b"\xff" * 8])
    for before in ([], [pa.array(["x", "y"])]):
        ours, theirs = (keyed_hash([*before, c], "0123" * 8).tolist() for c in (numbers, words))
        assert ours == theirs
    assert keyed_hash([words, words], "ab" * 16)[0] != keyed_hash([words], "ab" * 16)[0]


def test_the_keyed_hash_depends_on_the_secret_and_without_one_is_that_of_before():
    keys = [pa.array([f"k{i}" for i in range(2000)]), pa.array(range(2000))]
    hashes = [keyed_hash(keys, secret) for secret in ("01" * 16, "02" * 16, "")]
    assert len(np.unique(np.concatenate(hashes))) == 6000
    np.testing.assert_array_equal(hashes[2], hash_columns(keys, SECOND_SEED))
    chunked = [pa.chunked_array([key[:700], key[700:]]) for key in keys]
    np.testing.assert_array_equal(keyed_hash(chunked, "01" * 16), hashes[0])


def test_a_type_that_cannot_be_hashed_is_refused():
    with pytest.raises(TypeError, match="double"):
        hash_columns([pa.array([1.5])])
