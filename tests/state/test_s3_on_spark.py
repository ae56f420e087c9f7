"""A streaming query on Spark whose checkpoint is in an object store, and whose offsets are elsewhere."""

from __future__ import annotations

import json
from collections import Counter

import weir


def test_a_query_goes_on_from_a_checkpoint_in_an_object_store(spark, bucket, reliable, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    words: list[str] = []
    for turn in range(2):
        fresh = [f"w{(turn + 1) * number % 13}" for number in range(100)]
        words += fresh
        (source / f"{turn}.json").write_text("\n".join(json.dumps({"word": word}) for word in fresh))
        frame = spark.readStream.schema("word string").json(str(source))
        query = (
            weir.source(frame, "words")
            .keyed("word", weir.Count())
            .start(
                bucket,
                servers=2,
                trigger={"availableNow": True},
                storage_options=reliable,
                source_checkpoint=str(tmp_path / "offsets"),
            )
        )
        query.await_termination()
        assert query.exception() is None
    assert (tmp_path / "offsets/commits").is_dir()
    state = weir.read_state(bucket, "word", spark, storage_options=reliable)
    assert {row["word"]: row["count"] for row in state.collect()} == Counter(words)
