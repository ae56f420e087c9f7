"""The examples of docs/sources-and-sinks.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

import weir
import weir.sinks
import weir.testing

PAGE = Path(__file__).parents[2] / "docs" / "sources-and-sinks.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def topics(brokers):
    """Names of topics that stand for those of the page."""
    names = {"posts": brokers.topic(2), "places": brokers.topic(1)}
    brokers.send(
        names["posts"], [{"place": "FR", "topic": "x", "n": 1}, {"place": "US", "topic": "y", "n": 2}], 0
    )
    brokers.send(names["posts"], [{"place": "FR", "topic": "y", "n": 3}], 1)
    return names


@pytest.mark.parametrize("code", EXAMPLES, ids=[str(n) for n in range(len(EXAMPLES))])
def test_an_example_runs(code, brokers, topics, postgres, tmp_path):
    code = code.replace("broker:9092", brokers.servers)
    code = code.replace('"posts"', f'"{topics["posts"]}"').replace(
        ', "places", key=', f', "{topics["places"]}", key='
    )
    code = re.sub(r'"(out|dead|tables)/', rf'"{tmp_path}/\1/', code)
    code = code.replace("postgresql://weir@db/shop", postgres)
    names = {"weir": weir}
    exec(code, names)
    settings = {**names.get("options", {}), "dead_letters": names.get("dead_letters"), "sink": names["sink"]}
    query = weir.testing.start(names["app"], servers=2, **settings)
    query.feed()
    assert query.progress.rows == 3
    assert query.state("places").num_rows == 2
    if "Postgres(" in code:
        with psycopg.connect(postgres) as database:
            assert sorted(database.execute("SELECT place, count FROM places")) == [("FR", 2), ("US", 1)]
    if "Totals" in code:
        assert list(names["sink"].batches.values()) == [2]
    if "sinks.Kafka" in code:
        assert sorted(row["count"] for row in brokers.read(topics["places"])) == [1, 2]


def test_there_is_an_example_for_each_source_and_sink():
    text = "".join(EXAMPLES)
    for name in ("weir.kafka", *(f"weir.sinks.{s}" for s in weir.sinks.__all__ if s != "Delivery")):
        assert name in text
