"""Steering a query on Spark: tables change and servers come and go while the stream runs, from other terminals too."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import weir
from support import NOW, POSTS, counts, posts, rows_of, stream, two_counts, write_batches
from truth import homes_of
from weir.cli.main import main
from weir.errors import EngineError

pytestmark = pytest.mark.usefixtures("few_starts")


@pytest.fixture(scope="module")
def tables():
    return [posts(3000, seed, places=40, topics=400) for seed in range(6)]


def check(query, checkpoint, tables):
    """Compare counts with the truth, and the server of each key with the table in force."""
    for name, column in (("places", "place"), ("topics", "topic")):
        assert rows_of(query.state(name)) == counts(tables, column)
        homes = homes_of(checkpoint, name)
        keys = np.array(list(homes), np.uint64)
        assert query.routing_table(name).route(keys).tolist() == list(homes.values())
        assert query.progress.state_keys[name] == len(homes)


def test_locality_rises_and_a_restart_goes_on_with_the_tables(spark, tables, tmp_path, checkpoint):
    data = tmp_path / "posts"
    folder = write_batches(data, tables[:4])
    app = two_counts(stream(spark, folder, POSTS))
    ready, started = threading.Event(), []

    def sink(frame, batch):
        ready.wait(60)  # the first batch may be done before start() has returned
        if batch == 1:
            started[0].reconfigure(wait=True)

    routing = weir.Locality(period=3)
    started.append(app.start(checkpoint, servers=3, routing=routing, sink=sink, trigger=NOW))
    ready.set()
    started[0].await_termination()
    query = started[0]
    assert query.recent_progress[0].locality == pytest.approx(1 / 3, abs=0.15)
    assert query.progress.locality > 0.55
    assert query.progress.table_version >= 1
    assert sum(p.moved_keys for p in query.recent_progress) > 0
    check(query, checkpoint, tables[:4])
    write_batches(data, tables[4:5])
    again = app.start(checkpoint, servers=3, routing=routing, trigger=NOW)
    again.await_termination()
    assert again.recent_progress[1].batch == 4
    assert again.recent_progress[1].locality > 0.5
    check(again, checkpoint, tables[:5])
    # and with another number of servers: learnt homes are kept until the next reconfiguration
    write_batches(data, tables[5:])
    wider = app.start(checkpoint, servers=5, routing=routing, trigger=NOW)
    wider.await_termination()
    check(wider, checkpoint, tables)
    assert len(wider.progress.servers) == 5
    assert wider.progress.scaled["to"] == 5


def test_servers_come_and_go_asked_for_here_and_from_another_terminal(
    spark, tables, tmp_path, checkpoint, capsys
):
    data = tmp_path / "posts"
    folder = write_batches(data, tables[:2])
    routing = weir.Locality(period=2, forecast=None)
    query = two_counts(stream(spark, folder, POSTS)).start(checkpoint, servers=2, routing=routing)
    fed = list(tables[:2])

    def feed():
        fed.append(tables[len(fed) % len(tables)])
        write_batches(data, fed[-1:])
        query.process_all_available()

    try:
        query.process_all_available()
        assert main(["scale", checkpoint, "--add", "1", "--dry-run"]) == 0
        assert "would go from 2 to 3 servers" in capsys.readouterr().out
        assert len(query.progress.servers) == 2
        # nobody sends rows: nothing happens, and it is said
        assert main(["scale", checkpoint, "--add", "1", "--timeout", "0.3"]) == 1
        assert "withdrawn" in capsys.readouterr().err
        with pytest.raises(EngineError, match="withdrawn"):
            query.scale_in(1, wait=0.1)
        assert main(["scale", checkpoint, "--remove", "5", "--dry-run"]) == 1
        with pytest.raises(EngineError, match="42 servers need as many task slots") as refused:
            query.scale_out(40)
        assert "share_slots=True" in str(refused.value)
        feed()
        assert [len(p.servers) for p in query.recent_progress] == [2, 2, 2]
        answers = {}

        def ask():
            answers["code"] = main(["scale", checkpoint, "--add", "1", "--share-slots", "--json"])

        terminal = threading.Thread(target=ask)
        terminal.start()
        while terminal.is_alive():  # it is taken up by a batch, and carried out by a later one
            assert len(fed) < 40, "the request was never answered"
            feed()
        terminal.join()
        assert answers == {"code": 0}
        assert [(s.before, s.to) for s in query.scalings] == [(2, 3)]
        assert len(query.progress.servers) == 3
        query.scale_in(1)
        feed()
        feed()
        assert [(s.before, s.to) for s in query.scalings] == [(2, 3), (3, 2)]
        assert query.scalings[-1].moved_keys > 0
        assert len(query.progress.servers) == 2
        assert min(s.rows for s in query.progress.servers) > 0
        check(query, checkpoint, fed)
    finally:
        query.stop()
    with pytest.raises(EngineError, match="running"):
        query.scale_out(1)
