"""Checkpoints in an object store: Moto's S3 server, reached directly and through a proxy that loses things."""

from __future__ import annotations

import itertools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from segments import SCHEMA, assert_same_answers, random_entries

from weir.errors import CheckpointError
from weir.state import cache
from weir.state.merge import merge_segments
from weir.state.segment import BY_RANGE, ROWS, write_segment
from weir.state.storage import Storage
from weir.state.view import StateView


@pytest.fixture
def storage(bucket, reliable):
    return Storage(bucket, reliable)


# ---------------------------------------------------------------------- files


def test_files_are_listed_read_and_deleted(storage):
    storage.write("state/a/1/x", b"0123456789")
    storage.write("state/a/10/y", b"")
    storage.write("state/ab/1/z", b"z")
    assert storage.names("") == ["state"]
    assert storage.names("state") == ["a", "ab"]
    assert storage.names("state/a/1") == ["x"]
    assert storage.names("nothing") == []
    assert storage.files("state/a") == ["state/a/1/x", "state/a/10/y"]
    assert storage.files("") == ["state/a/1/x", "state/a/10/y", "state/ab/1/z"]
    assert [storage.exists(name) for name in ("", "state", "state/a/1/x", "sta", "state/a/1/xx")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert storage.size("state/a/1/x") == 10
    assert storage.read("state/a/1/x").to_pybytes() == b"0123456789"
    assert [p.to_pybytes() for p in storage.read_ranges("state/a/1/x", [(0, 2), (7, 10)])] == [b"01", b"789"]
    with pytest.raises(CheckpointError, match="bytes 7 to 12 are missing"):
        storage.read_ranges("state/a/1/x", [(7, 12)])
    storage.delete("state/a/1/x")
    storage.delete("state/a/1/x")
    storage.delete_folder("state/ab")
    assert storage.files("") == ["state/a/10/y"]
    with pytest.raises(CheckpointError, match=r"s3://.*/ckpt/state/a/1/x: missing"):
        storage.read("state/a/1/x")


def test_the_checkpoint_may_be_a_whole_bucket_and_have_any_name(bucket, reliable):
    for location in (bucket.removesuffix("/ckpt"), bucket + "/a b/100%/ü+"):
        storage = Storage(location, reliable)
        storage.write("state/a b/x+y", b"x")
        storage.write_document("plans/1", "plan", {})
        assert storage.names("plans") == ["1"]
        assert {"plans/1", "state/a b/x+y"} <= set(storage.files(""))
        assert storage.read("state/a b/x+y").to_pybytes() == b"x"


def test_s3a_and_s3n_are_the_same_store(bucket, reliable, storage):
    storage.write("a", b"x")
    for scheme in ("s3a", "s3n"):
        assert Storage(bucket.replace("s3:", f"{scheme}:"), reliable).read("a").to_pybytes() == b"x"


def test_a_storage_travels_with_its_options(storage):
    storage.write("a", b"x")
    sent = pickle.loads(pickle.dumps(storage))
    assert (sent.location, sent.options) == (storage.location, storage.options)
    assert sent.read("a").to_pybytes() == b"x"


def test_the_environment_may_tell_all(bucket, storage, s3, monkeypatch):
    storage.write("a", b"x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert Storage(bucket).read("a").to_pybytes() == b"x"


def test_a_large_file_comes_in_parts_and_not_at_all_if_one_fails(storage):
    pieces = [bytes([number]) * (3 << 20) for number in range(7)]
    storage.write_chunks("big", iter(pieces))
    assert storage.read("big").to_pybytes() == b"".join(pieces)

    def failing():
        yield from pieces
        raise CheckpointError("a segment is damaged")

    with pytest.raises(CheckpointError, match="a segment is damaged"):
        storage.write_chunks("half", failing())
    assert storage.names("") == ["big"]


# ---------------------------------------------------------------------- mistakes


def test_without_obstore_the_remedy_is_named(storage, bucket, reliable, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "weir.state.object_files")
    with pytest.raises(CheckpointError, match=r"pip install 'weir-streams\[object-stores\]'"):
        Storage(bucket + "/elsewhere", reliable)


def test_a_bucket_that_is_missing_is_named(reliable):
    storage = Storage("s3://no-such-bucket/ckpt", reliable)
    for write in (
        lambda: storage.write("a", b"x"),
        lambda: storage.write_document("plans/1", "plan", {}),
        lambda: storage.write_chunks("b", iter([b"x", b"y"])),
    ):
        with pytest.raises(
            CheckpointError, match="s3://no-such-bucket/ckpt/.*NoSuchBucket.* Check that the bucket"
        ):
            write()


def test_an_option_that_nobody_knows_is_named(bucket, reliable):
    with pytest.raises(CheckpointError, match="cannot be opened .*'regoin' is not valid"):
        Storage(bucket, {**reliable, "regoin": "eu-west-1"})


# ---------------------------------------------------------------------- documents


def test_of_many_writers_of_a_document_one_wins(bucket, reliable):
    def write(name, number):
        try:
            Storage(bucket, reliable).write_document(name, "commit", {"by": number})
        except CheckpointError as error:
            return str(error)
        return number

    with ThreadPoolExecutor(16) as pool:
        for turn in range(8):
            name = f"commits/{turn}"
            answers = list(pool.map(lambda number, name=name: write(name, number), range(16)))
            won = [answer for answer in answers if isinstance(answer, int)]
            assert len(won) == 1
            assert sum("already written by another run" in str(answer) for answer in answers) == 15
            assert Storage(bucket, reliable).read_document(name, "commit") == {"by": won[0]}


@pytest.mark.parametrize("fault", ["lose the answer", "answer late", "cut the answer", "hang up", "refuse"])
def test_a_document_whose_answer_is_lost_was_written(bucket, storage, unreliable, fault):
    proxy, options = unreliable()
    proxy.next_faults = [("PUT", fault)]
    Storage(bucket, options).write_document("commits/1", "commit", {"batch": 1})
    assert next(f for m, _, f in proxy.requests if m == "PUT") == fault
    with pytest.raises(CheckpointError, match="already written by another run"):  # even with the same body
        Storage(bucket, options).write_document("commits/1", "commit", {"batch": 1})
    assert storage.read_document("commits/1", "commit") == {"batch": 1}


def test_a_store_that_stays_away_is_an_error_with_a_name(bucket, storage, unreliable, monkeypatch):
    monkeypatch.setattr("weir.state.object_files.PAUSE", 0.001)
    proxy, options = unreliable(rate=1.0)
    proxy.faults = itertools.repeat("hang up")
    away = Storage(bucket, options)
    for call in (
        lambda: away.write_document("commits/1", "commit", {}),
        lambda: away.write("commits/1", b"x"),
        lambda: away.write_chunks("commits/1", iter([b"x", b"y"])),
        lambda: away.read("commits/1"),
        lambda: away.read_ranges("commits/1", [(0, 1)]),
        lambda: away.files("commits/1"),
        lambda: away.names("commits/1"),
        lambda: away.exists("commits/1"),
        lambda: away.delete("commits/1"),
    ):
        with pytest.raises(
            CheckpointError, match=r"/ckpt/commits/1: could not be \w+( \w+)? \(.*started again"
        ):
            call()
    assert storage.files("") == []


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_loses_things_never_lies(bucket, storage, unreliable, seed, monkeypatch):
    """Two writers of each document over a connection that fails at every fourth request."""
    monkeypatch.setattr("weir.state.object_files.PAUSE", 0.01)
    proxy, options = unreliable(rate=0.25, seed=seed)

    def write(name, number):
        try:
            Storage(bucket, options).write_document(name, "commit", {"by": number})
        except CheckpointError as error:
            return "lost" if "already written by another run" in str(error) else "unknown"
        return "won"

    def files(name, number):
        try:
            Storage(bucket, options).write(name, bytes([number]) * 1000)
        except CheckpointError:
            return None
        return name

    with ThreadPoolExecutor(4) as pool:
        for turn in range(10):
            name = f"commits/{turn}"
            answers = list(pool.map(lambda number, name=name: write(name, number), (0, 1)))
            assert answers.count("won") <= 1
            if "won" in answers:
                assert storage.read_document(name, "commit") == {"by": answers.index("won")}
            else:
                assert "unknown" in answers
        kept = list(pool.map(lambda number: files(f"state/{number}", number), range(20)))
    for name in storage.names("commits"):
        assert storage.read_document(f"commits/{name}", "commit")["by"] in (0, 1)
    for name in filter(None, kept):
        number = int(name.rpartition("/")[2])
        assert storage.read(name).to_pybytes() == bytes([number]) * 1000
    assert len({fault for _, _, fault in proxy.requests}) == 6  # all that can go wrong did


# ---------------------------------------------------------------------- segments by range


@pytest.fixture(scope="module")
def large():
    """Three segments, the first large enough to be read by range, and the same on a local disk."""
    rng = np.random.default_rng(5)
    return [random_entries(rng, 400_000, rows, windows=3) for rows in (300_000, 40_000, 500)]


def look_up(storage, ref, asked):
    view = StateView(storage, [ref], SCHEMA)
    return view.take(*view.find(asked["__h1"].to_numpy(), asked["__h2"].to_numpy()))[0]


def both(storage, tmp_path, tables):
    local = Storage(tmp_path)
    return [
        [write_segment(s, f"state/{n}", table) for n, table in enumerate(tables)] for s in (storage, local)
    ]


def test_segments_read_by_range_are_the_segments_read_whole(storage, tmp_path, large, unreliable):
    refs, model_refs = both(storage, tmp_path, large)
    assert refs[0].directory is not None
    assert refs[0].bytes > BY_RANGE
    assert refs[2].directory is None
    cache.BYTES.discard(lambda key: True)
    rng = np.random.default_rng(6)
    view, model = StateView(storage, refs, SCHEMA), StateView(Storage(tmp_path), model_refs, SCHEMA)
    assert len(view.segments[0].firsts) >= 300_000 // ROWS
    for keys in (3, 1000, 50_000):
        asked = random_entries(rng, 500_000, keys, windows=3)
        assert_same_answers(view, model, asked, rng)
    # whole files are ordinary Arrow files
    storage.read_checked(refs[0].name, refs[0].bytes, refs[0].crc)


def test_few_keys_of_a_large_segment_cost_few_bytes(bucket, storage, tmp_path, large, unreliable):
    refs, _ = both(storage, tmp_path, large[:1])
    cache.BYTES.discard(lambda key: True)
    proxy, options = unreliable()
    options["timeout"] = "30s"
    asked = large[0].slice(1000, 5)
    found = look_up(Storage(bucket, options), refs[0], asked)
    assert found.num_rows == asked.num_rows - sum(asked["__dead"].to_pylist())
    assert 0 < proxy.bytes_read < refs[0].bytes / 3


def test_merging_large_segments_on_remote_storage(storage, tmp_path, large, monkeypatch):
    monkeypatch.setattr("weir.state.merge.IN_MEMORY", 4 << 20)
    refs, model_refs = both(storage, tmp_path, large)
    rng = np.random.default_rng(7)
    for keep_dead in (True, False):
        merged = merge_segments(storage, refs, SCHEMA, f"state/merged-{keep_dead}", keep_dead)
        assert merged is not None
        assert merged.directory is not None
        model = StateView(Storage(tmp_path), model_refs, SCHEMA)
        assert merged.rows == model.everything(keep_dead).num_rows
        whole = write_segment(Storage(tmp_path), f"whole-{keep_dead}", model.everything(keep_dead))
        assert merged.min_deadline == whole.min_deadline
        assert_same_answers(
            StateView(storage, [merged], SCHEMA),
            StateView(Storage(tmp_path), [whole], SCHEMA),
            random_entries(rng, 500_000, 1000, windows=3),
            rng,
        )


@pytest.mark.parametrize("where", ["directory", "hashes", "entries", "cut"])
def test_damage_in_what_is_read_by_range_is_named(storage, large, where):
    ref = write_segment(storage, "state/damaged", large[0])
    data = bytearray(storage.read(ref.name).to_pybytes())
    start, length, _ = ref.directory
    at = {"directory": start + length // 2, "hashes": 30_000, "entries": 3_000_000, "cut": 0}[where]
    data[at] ^= 1
    storage.write(ref.name, bytes(data[: len(data) // 2] if where == "cut" else data))
    cache.BYTES.discard(lambda key: True)
    with pytest.raises(CheckpointError, match=r"ckpt/state/damaged: damaged \("):
        StateView(storage, [ref], SCHEMA).everything()
    cache.BYTES.discard(lambda key: True)
    with pytest.raises(CheckpointError, match=r"ckpt/state/damaged: damaged \("):
        look_up(storage, ref, large[0])
    storage.delete(ref.name)
    cache.BYTES.discard(lambda key: True)
    with pytest.raises(CheckpointError, match=r"ckpt/state/damaged: missing"):
        StateView(storage, [ref], SCHEMA)


def test_what_is_kept_of_remote_segments_stays_within_its_bound(storage, large, monkeypatch):
    small = cache.Bounded(6 << 20)
    monkeypatch.setattr("weir.state.reader.BYTES", small)
    monkeypatch.setattr("weir.state.segment.BYTES", small)
    refs = [write_segment(storage, f"state/{n}", table) for n, table in enumerate(large)]
    everything = StateView(storage, refs, SCHEMA).everything()
    rng, seen = np.random.default_rng(8), 0
    for _ in range(6):
        view = StateView(storage, refs, SCHEMA)
        asked = everything.slice(int(rng.integers(0, everything.num_rows - 2000)), 2000)
        found, _ = view.take(*view.find(asked["__h1"].to_numpy(), asked["__h2"].to_numpy()))
        assert found.num_rows == 2000
        view.due(0, 500)
        assert small.size <= small.limit
        seen = max(seen, small.size)
    assert seen > small.limit / 4
