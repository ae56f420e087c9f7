"""The queries: each on Weir, in Spark's SQL, and on Spark's operators for Python code.

What is read is the same DataFrames, with the same projections and filters in front, for all three. To add a query,
write its functions and put it into ``QUERIES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import weir
from weir_evaluation.bench.nexmark import python_operators as python

Frames = dict[str, Any]  # stream → DataFrame
RANKS = (
    "case when price < 10000 then 1 end as rank1",
    "case when price between 10000 and 999999 then 1 end as rank2",
)
RANK3 = "case when price >= 1000000 then 1 end as rank3"


@dataclass(frozen=True)
class Query:
    """A query in three ways, and what its results are told by.

    ``key`` are the columns of which the latest row counts, for results that are updated; without it all rows count.
    ``nearly`` are columns that sketches estimate. ``until`` is the time of a result where windows close: only those of
    the stream itself count, not of the events behind its end. ``pooled`` is a part of the key that follows from when a
    system came to a row: values are added up over it before they are compared.
    """

    name: str
    what: str
    streams: Sequence[str]
    prepare: Callable[[Frames], Frames]
    weir: Callable[[Frames], weir.Stream]
    columns: Sequence[str]
    sql: Callable[[Frames], Any] | None = None
    python: Callable[[Frames], Any] | None = None
    key: Sequence[str] = ()
    mode: str = "append"
    nearly: Sequence[str] = field(default_factory=tuple)
    until: str = ""
    pooled: str = ""
    note: str = ""


def _sources(frames: Frames) -> Iterator[weir.Stream]:
    return (weir.source(frame, name) for name, frame in frames.items())


# ---------------------------------------------------------------------- q3


def _q3(frames: Frames) -> Frames:
    return {
        "auctions": frames["auctions"].where("category = 10").selectExpr("seller as person", "id as auction"),
        "persons": frames["persons"]
        .where("state in ('OR', 'ID', 'CA')")
        .selectExpr("id as person", "name", "city", "state"),
    }


def _q3_weir(frames: Frames) -> weir.Stream:
    auctions, persons = _sources(frames)
    return auctions.join(persons, "person", name="result")


def _q3_sql(frames: Frames) -> Any:
    return frames["auctions"].join(frames["persons"], "person")


# ---------------------------------------------------------------------- q4


def _q4(frames: Frames) -> Frames:
    auctions = frames["auctions"].selectExpr("id as auction", "category", "time as opened", "expires")
    return {"bids": frames["bids"].select("auction", "price", "time"), "auctions": auctions}


def _q4_weir(frames: Frames) -> weir.Stream:
    bids, auctions = _sources(frames)
    prices = weir.Aggregate(emit="changes", category="max(category)", price="max(price)")
    return (
        bids.lookup(auctions, "auction", how="inner", name="of auctions")
        .filter_batches(python.in_time)
        .keyed("auction", prices, name="prices")
        .map_batches(python.gains, "category long, gain long, first long")
        .keyed("category", weir.Aggregate(total="sum(gain)", auctions="sum(first)"), name="result")
    )


# ---------------------------------------------------------------------- q5, q11


def _q5(frames: Frames) -> Frames:
    return {"bids": frames["bids"].select("auction", "time")}


def _q5_weir(frames: Frames) -> weir.Stream:
    (bids,) = _sources(frames)
    hot = weir.Aggregate(num="max(num)", auction="last(auction, num)")
    counts = bids.keyed(
        "auction", weir.Count("num"), window=weir.sliding("time", "10 s", "2 s"), name="counts"
    )
    return counts.keyed("window_start", hot, name="result")


def _q5_sql(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    counts = (
        frames["bids"]
        .withWatermark("time", "0 seconds")
        .groupBy("auction", F.window("time", "10 seconds", "2 seconds"))
        .agg(F.count("*").alias("num"))
    )
    top = F.max(F.struct("num", "auction")).alias("top")
    return counts.groupBy("window").agg(top).selectExpr("window.start as window_start", "top.*")


def _q11(frames: Frames) -> Frames:
    return {"bids": frames["bids"].select("bidder", "time")}


def _q11_weir(frames: Frames) -> weir.Stream:
    (bids,) = _sources(frames)
    return bids.keyed("bidder", weir.Count("bids"), window=weir.session("time", "10 s"), name="result")


def _q11_sql(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    bids = frames["bids"].withWatermark("time", "0 seconds")
    sessions = bids.groupBy(F.session_window("time", "10 seconds"), "bidder").agg(F.count("*").alias("bids"))
    start, end = "session_window.start as window_start", "session_window.end as window_end"
    return sessions.selectExpr("bidder", start, end, "bids")


# ---------------------------------------------------------------------- q12


def _q12(frames: Frames) -> Frames:
    now = "window(current_timestamp(), '10 seconds').start as starttime"
    return {"bids": frames["bids"].selectExpr("bidder", now)}


def _q12_weir(frames: Frames) -> weir.Stream:
    (bids,) = _sources(frames)
    # a window by the clock is over when the clock has left it: its state may go
    return bids.keyed(["bidder", "starttime"], weir.Count("bids"), ttl="1 minute", name="result")


def _q12_sql(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    bids = frames["bids"].withWatermark("starttime", "1 minute")
    return bids.groupBy("bidder", "starttime").agg(F.count("*").alias("bids"))


# ---------------------------------------------------------------------- q7, q8


def _q7(frames: Frames) -> Frames:
    start = "window(time, '10 seconds').start as starttime"
    return {"bids": frames["bids"].selectExpr("auction", "price", "bidder", start)}


def _q7_weir(frames: Frames) -> weir.Stream:
    (bids,) = _sources(frames)
    best = weir.Aggregate(price="max(price)", auction="last(auction, price)", bidder="last(bidder, price)")
    # few keys and many rows: partial results where the rows are, merged at the window's home
    return bids.keyed("starttime", best, routing=weir.Shuffle(), name="result")


def _q7_sql(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    top = F.max(F.struct("price", "auction", "bidder")).alias("top")
    return frames["bids"].groupBy("starttime").agg(top).select("starttime", "top.*")


def _q8(frames: Frames) -> Frames:
    start = "window(time, '10 seconds').start as starttime"
    return {
        "persons": frames["persons"].selectExpr("id as person", "name", start),
        "auctions": frames["auctions"].selectExpr("seller as person", start),
    }


def _q8_weir(frames: Frames) -> weir.Stream:
    persons, auctions = _sources(frames)
    key = ["person", "starttime"]
    sellers = auctions.deduplicate(key, within="10 s", time="starttime", lateness="10 s", name="sellers")
    return persons.join(sellers, key, within="0 s", time="starttime", lateness="10 s", name="result")


def _q8_sql(frames: Frames) -> Any:
    key = ["person", "starttime"]
    persons = frames["persons"].withWatermark("starttime", "10 seconds")
    sellers = frames["auctions"].withWatermark("starttime", "10 seconds").dropDuplicates(key)
    return persons.join(sellers, key)


# ---------------------------------------------------------------------- q16, q17


def _q16(frames: Frames) -> Frames:
    day = "cast(time as date) as day"
    return {"bids": frames["bids"].selectExpr("channel", day, "bidder", "auction", *RANKS, RANK3)}


def _q16_weir(frames: Frames) -> weir.Stream:
    (bids,) = _sources(frames)
    counts: dict[str, Any] = {f"rank{i}": f"count(rank{i})" for i in (1, 2, 3)}
    distinct: dict[str, Any] = {"bidders": "approx_distinct(bidder)", "auctions": "approx_distinct(auction)"}
    return bids.keyed(["channel", "day"], weir.Aggregate(total="count", **counts, **distinct), name="result")


def _q16_sql(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    return (
        frames["bids"]
        .groupBy("channel", "day")
        .agg(
            F.count("*").alias("total"),
            *(F.count(f"rank{i}").alias(f"rank{i}") for i in (1, 2, 3)),
            F.approx_count_distinct("bidder").alias("bidders"),
            F.approx_count_distinct("auction").alias("auctions"),
        )
    )


def _q17(frames: Frames) -> Frames:
    day = "cast(time as date) as day"
    return {"bids": frames["bids"].selectExpr("auction", day, "price", *RANKS, RANK3)}


def _q17_weir(frames: Frames) -> weir.Stream:
    (bids,) = _sources(frames)
    counts: dict[str, Any] = {f"rank{i}": f"count(rank{i})" for i in (1, 2, 3)}
    prices: dict[str, Any] = {
        "least": "min(price)",
        "most": "max(price)",
        "average": "mean(price)",
        "sum": "sum(price)",
    }
    return bids.keyed(["auction", "day"], weir.Aggregate(total="count", **counts, **prices), name="result")


def _q17_sql(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    return (
        frames["bids"]
        .groupBy("auction", "day")
        .agg(
            F.count("*").alias("total"),
            *(F.count(f"rank{i}").alias(f"rank{i}") for i in (1, 2, 3)),
            F.min("price").alias("least"),
            F.max("price").alias("most"),
            F.avg("price").alias("average"),
            F.sum("price").alias("sum"),
        )
    )


QUERIES = {
    query.name: query
    for query in (
        Query(
            "q3",
            "who sells in some states: a join without a bound",
            ("auctions", "persons"),
            _q3,
            _q3_weir,
            ("person", "auction", "name", "city", "state"),
            _q3_sql,
            python.q3,
        ),
        Query(
            "q4",
            "average final price per category: bids beside their auctions, then two aggregates",
            ("bids", "auctions"),
            _q4,
            _q4_weir,
            ("category", "total", "auctions"),
            None,
            python.q4,
            key=("category",),
            mode="update",
            note="Spark SQL has no two aggregates behind one another whose results change",
        ),
        Query(
            "q5",
            "hot items: the auction with most bids in 10 seconds, every 2 seconds",
            ("bids",),
            _q5,
            _q5_weir,
            ("window_start", "num", "auction"),
            _q5_sql,
            python.q5,
            key=("window_start",),
            until="window_start",
        ),
        Query(
            "q7",
            "highest bid of every 10 seconds",
            ("bids",),
            _q7,
            _q7_weir,
            ("starttime", "price", "auction", "bidder"),
            _q7_sql,
            python.q7,
            key=("starttime",),
            mode="update",
        ),
        Query(
            "q8",
            "new persons who sell in the 10 seconds they came in: duplicates, then a join by window",
            ("persons", "auctions"),
            _q8,
            _q8_weir,
            ("person", "starttime", "name"),
            _q8_sql,
            python.q8,
        ),
        Query(
            "q11",
            "bids per session of a bidder, which 10 seconds without a bid end",
            ("bids",),
            _q11,
            _q11_weir,
            ("bidder", "window_start", "window_end", "bids"),
            _q11_sql,
            python.q11,
            key=("bidder", "window_start"),
            until="window_start",
        ),
        Query(
            "q12",
            "bids of a bidder in every 10 seconds by the clock",
            ("bids",),
            _q12,
            _q12_weir,
            ("bidder", "starttime", "bids"),
            _q12_sql,
            python.q12,
            key=("bidder", "starttime"),
            mode="update",
            pooled="starttime",
            note="systems come to a row at different times: compared are a bidder's bids in all windows together",
        ),
        Query(
            "q16",
            "statistics per channel and day, with distinct bidders and auctions",
            ("bids",),
            _q16,
            _q16_weir,
            ("channel", "day", "total", "rank1", "rank2", "rank3", "bidders", "auctions"),
            _q16_sql,
            None,
            key=("channel", "day"),
            mode="update",
            nearly=("bidders", "auctions"),
            note="no sketch in Spark's Python state",
        ),
        Query(
            "q17",
            "statistics per auction and day",
            ("bids",),
            _q17,
            _q17_weir,
            ("auction", "day", "total", "rank1", "rank2", "rank3", "least", "most", "average", "sum"),
            _q17_sql,
            python.q17,
            key=("auction", "day"),
            mode="update",
        ),
    )
}
