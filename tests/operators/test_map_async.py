"""An asyncio function per row: bounded, repeated, in order, and what happens to rows that it fails on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter

import pytest

import weir
from support import dicts, rows_of
from weir.errors import OperatorError, TopologyError
from weir.testing import run, start

SCHEMA = "k string, n long"
BATCHES = [[{"k": f"k{n % 5}", "n": n} for n in range(b * 30, b * 30 + 30)] for b in range(3)]


class Service:
    """An HTTP server on loopback that says twice a number; keeps count of calls, connections, and calls at a time."""

    def __init__(self):
        self.calls, self.most, self.connections, self._now = Counter(), 0, 0, 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._end.wait()

    async def _answer(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                number = int(head.split()[1][1:])
                self.calls[number] += 1
                self._now += 1
                self.most = max(self.most, self._now)
                await asyncio.sleep(0.001 * (number % 7))
                self._now -= 1
                body = json.dumps(2 * number).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()


class Twice:
    """Asks the service; its connections are opened once for many rows."""

    def __init__(self, port, size=4):
        self.port, self.size = port, size

    async def __aenter__(self):
        self.pool = asyncio.Queue()
        for _ in range(self.size):
            self.pool.put_nowait(await asyncio.open_connection("127.0.0.1", self.port))
        return self

    async def __aexit__(self, *_):
        while not self.pool.empty():
            self.pool.get_nowait()[1].close()

    async def __call__(self, row):
        reader, writer = connection = await self.pool.get()
        try:
            writer.write(b"GET /%d HTTP/1.1\r\n\r\n" % row.n)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.decode().split("Content-Length: ")[1].split()[0])
            return {"k": row.k, "n": row.n, "twice": json.loads(await reader.readexactly(size))}
        finally:
            self.pool.put_nowait(connection)


@pytest.mark.parametrize("execution", ["jobs", "live"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_service_is_asked_for_each_row_and_for_those_of_a_batch_that_runs_again(execution, behind):
    with Service() as service:
        rows = weir.source(SCHEMA)
        if behind:
            rows = rows.count("k", emit="rows")
        asked = rows.map_async(Twice(service.port), f"{SCHEMA}, twice long", concurrency=4)
        app = asked.aggregate("k", total="sum(twice)", name="sums")
        with start(app, servers=2, faults=["job-done:1"], execution=execution) as query:
            for batch in BATCHES:
                query.feed(batch)
            sums = {r["k"]: r["total"] for r in dicts(query.state("sums"))}
        expected = Counter()
        for row in (row for batch in BATCHES for row in batch):
            expected[row["k"]] += 2 * row["n"]
        assert sums == expected
        assert service.calls == {row["n"]: 1 + (b == 1) for b, batch in enumerate(BATCHES) for row in batch}
        assert service.most > 2
        assert service.connections < sum(service.calls.values())


def test_calls_overlap_up_to_the_bound_and_rows_keep_their_order():
    now, most = 0, 0

    async def slower_first(row):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.0005 * (30 - row.n))
        now -= 1
        return row

    query = run(
        weir.source(SCHEMA).map_async(slower_first, concurrency=8, name="m"),
        [BATCHES[0]],
        servers=1,
        source_tasks=1,
    )
    assert [r["n"] for r in dicts(query.output("m"))] == list(range(30))
    assert most == 8


def test_without_order_rows_go_on_as_their_calls_return():
    """The call for one row returns only when rows behind it have come to the next operator."""
    came = []

    async def one_waits(row):
        if row.n == 0:
            while len(came) < 29:
                await asyncio.sleep(0.001)
        return row

    def note(row):
        came.append(row.n)
        return row

    app = (
        weir.source(SCHEMA).map_async(one_waits, ordered=False, timeout="30 s", name="m").map(note, name="n")
    )
    query = run(app, [BATCHES[0]], servers=1, source_tasks=1)
    assert came[-1] == 0
    assert sorted(came) == list(range(30))
    assert sorted(r["n"] for r in dicts(query.output("n"))) == list(range(30))


@pytest.mark.parametrize("execution", ["jobs", "live"])
def test_without_order_counts_are_the_same_whatever_runs_again(execution):
    async def shuffled(row):
        await asyncio.sleep(0.0005 * (row.n * 7 % 13))
        return row

    def answer(ordered, faults):
        app = (
            weir.source(SCHEMA).map_async(shuffled, ordered=ordered).aggregate("k", total="sum(n)", name="o")
        )
        with start(app, servers=2, faults=faults, execution=execution) as query:
            for batch in BATCHES:
                query.feed(batch)
            return rows_of(query.state("o"))

    assert answer(False, ["job-done:1"]) == answer(True, [])


def test_what_fails_behind_rows_that_went_on_ends_all_calls():
    ended = []

    async def slow(row):
        try:
            await asyncio.sleep(0 if row.n < 5 else 30)
        finally:
            ended.append(row.n)
        return row

    def refuse(row):
        raise ValueError("not this one")

    app = weir.source(SCHEMA).map_async(slow, ordered=False, timeout="60 s").map(refuse, name="r")
    began = time.monotonic()
    with pytest.raises(OperatorError, match="operator 'r'.*not this one"):
        run(app, [BATCHES[0]], servers=1, source_tasks=1)
    assert time.monotonic() - began < 25
    assert sorted(ended) == list(range(30))


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_are_repeated_and_what_still_fails_is_diverted(ordered):
    tried = Counter()

    async def flaky(row):
        tried[row.n] += 1
        if row.n == 7:
            await asyncio.sleep(60)
        if row.n == 9 or (row.n % 5 == 0 and tried[row.n] < 3):
            raise ConnectionError("away")
        return {"n": "no number"} if row.n == 11 else (row.n,)

    letters = []
    app = weir.source(SCHEMA).map_async(
        flaky, "n long", retries=2, timeout="50 ms", ordered=ordered, on_error="divert", name="m"
    )
    query = start(app, servers=2, dead_letters=lambda table, batch: letters.extend(dicts(table)))
    query.feed(BATCHES[0])
    assert sorted(r[0] for r in rows_of(query.output("m"))) == [n for n in range(30) if n not in (7, 9, 11)]
    about = {json.loads(x["row"])["n"]: x["error"] for x in letters}
    assert sorted(about) == [7, 9, 11]
    assert "0.05 s" in about[7]
    assert "away" in about[9]
    assert "'n'" in about[11]
    assert (tried[5], tried[7], tried[9], tried[11]) == (3, 3, 3, 1)
    assert query.progress.operators["m"].diverted == 3


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("execution", ["jobs", "live"])
@pytest.mark.parametrize("how", ["raise", "late", "cancelled", "exit", "odd", "blocking"])
def test_a_row_that_fails_is_named_and_other_calls_are_cancelled(how, execution, ordered, monkeypatch):
    ended = []
    monkeypatch.setattr("weir.operators.map_async.LONGEST_PAUSE", 0.05)

    async def failing(row):
        if row.n == 3:
            if how == "late":
                await asyncio.sleep(60)
            if how == "blocking":
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    time.sleep(0.01)
            if how == "cancelled":
                raise asyncio.CancelledError
            if how == "exit":
                raise SystemExit(3)
            if how == "raise":
                raise ValueError("no such row")
            return None
        try:
            await asyncio.sleep(0.01 if how in ("odd", "blocking") else 0.3)
        finally:
            ended.append(row.n)
        return row

    timeout = "100 ms" if how in ("late", "blocking") else "10 s"
    rows = BATCHES[0] if how != "late" else [BATCHES[0][3]]
    app = weir.source(SCHEMA).map_async(failing, name="m", timeout=timeout, ordered=ordered)
    with pytest.raises(OperatorError, match=r"operator 'm'.*'n': 3\b"):
        run(app, [rows], servers=1, source_tasks=1, execution=execution)
    if how != "late":
        assert len(ended) == 29, "all calls have ended"


def test_it_works_where_a_loop_runs_already():
    async def double(row):
        await asyncio.sleep(0)
        return row.k, 2 * row.n

    async def notebook():
        return run(weir.source(SCHEMA).map_async(double, SCHEMA, name="m"), [BATCHES[0]], servers=2)

    assert sum(r["n"] for r in dicts(asyncio.run(notebook()).output("m"))) == 2 * sum(range(30))


def test_what_is_no_asyncio_function_is_refused():
    async def fine(row):
        return row

    source = weir.source(SCHEMA)
    for function, options, about in (
        (lambda row: row, {}, "async def"),
        (print, {}, "async def"),
        (None, {}, "async def"),
        (fine, {"concurrency": 0}, "at least 1"),
        (fine, {"retries": -1}, "0 or more"),
        (fine, {"timeout": 0}, "more than nothing"),
        (fine, {"ordered": "no"}, "True or False"),
    ):
        with pytest.raises(TopologyError, match=about):
            source.map_async(function, **options)
