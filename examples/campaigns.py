"""Clicks per campaign, and sessions of users per campaign: two keyed operators, the second with session windows.

    python examples/campaigns.py
    python examples/campaigns.py --watch       # with a page that shows it

Clicks of a user on a campaign belong to one session as long as they are less than ten minutes apart. A session that has
closed goes to the sink, once. The job begins by hash; then it is started again on the same checkpoint with learnt
homes. Sessions that are open go on.
"""

from __future__ import annotations

import argparse
import datetime as dt
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
import weir.testing

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
USERS, CAMPAIGNS = 2_000, 40
LEARNT = weir.Locality()


def clicks(rng: np.random.Generator, hour: int, visits: int) -> pa.Table:
    """Return an hour of clicks: visits of one to six, a minute or two apart, each to a campaign that its user likes."""
    user = rng.integers(0, USERS, visits)
    campaign = np.where(rng.random(visits) < 0.8, user % CAMPAIGNS, rng.integers(0, CAMPAIGNS, visits))
    count = rng.integers(1, 7, visits)
    visit = np.repeat(np.arange(visits), count)
    within = np.arange(len(visit)) - np.repeat(np.cumsum(count) - count, count)
    seconds = hour * 3600 + np.repeat(rng.integers(0, 3000, visits), count) + within * 90
    times = np.datetime64(START.replace(tzinfo=None), "us") + seconds.astype("timedelta64[s]")
    names = [np.char.add(kind, which[visit].astype(str)) for kind, which in (("u", user), ("c", campaign))]
    return pa.table(
        [*map(pa.array, names), pa.array(times, pa.timestamp("us", "UTC"))], ["user", "campaign", "time"]
    )


def application(rows) -> weir.Stream:
    """Count clicks per campaign, and cut those of each user into sessions."""
    return (
        weir.source(rows)
        .event_time("time", lateness="1 minute")
        .count("campaign", name="campaigns", emit="rows")
        .aggregate(
            ["campaign", "user"],
            clicks="count",
            name="sessions",
            window=weir.session("time", "10 minutes"),
        )
    )


def run(app: weir.Stream, work: Path, hours: range, rng, routing, args) -> tuple[weir.Query, float]:
    """Let some hours of clicks come in; return the query and the share of rows that stayed in the last batch."""
    query = app.sink(str(work / "sessions")).start(
        str(work / "checkpoint"),
        servers=args.servers,
        routing=routing,
        watch=args.watch,
    )
    print(f"running with {type(routing).__name__} …", query.page or "")
    for hour in hours:
        if hour > hours.start and routing == LEARNT:
            query.reconfigure(wait=True)  # it would come by itself; waiting makes the example short
        file = f"{time.time_ns()}.parquet"
        pq.write_table(clicks(rng, hour, args.visits), work / file)
        (work / file).rename(work / "clicks" / file)  # files must appear whole
        query.process_all_available()
    busy = [progress.locality for progress in query.recent_progress if progress.rows]
    return query, busy[-1]


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--hours", type=int, default=2, help="of event time before, and again after; a batch each"
    )
    parser.add_argument("--visits", type=int, default=4_000, help="per hour")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument(
        "--keep", type=Path, help="folder for data and checkpoint; a temporary one by default"
    )
    parser.add_argument(
        "--watch", action="store_true", help="serve the page of the query (weir-streams[watch])"
    )
    args = parser.parse_args(argv)
    work, rng = args.keep or Path(tempfile.mkdtemp(prefix="campaigns-")), np.random.default_rng(1)
    (work / "clicks").mkdir(parents=True, exist_ok=True)
    spark = weir.testing.local_spark()
    rows = spark.readStream.schema("user string, campaign string, time timestamp").parquet(
        str(work / "clicks")
    )
    app = application(rows)

    query, before = run(app, work, range(args.hours), rng, weir.Hash(), args)
    query.stop()
    query, after = run(app, work, range(args.hours, 2 * args.hours), rng, LEARNT, args)
    query.stop()  # on a quiet stream sessions go on closing; from here on nothing changes
    counted = query.state("campaigns").agg({"count": "sum"}).first()[0]
    still_open = query.state("sessions").agg({"clicks": "sum"}).first()[0] or 0
    closed = spark.read.parquet(str(work / "sessions"))
    closed.groupBy("campaign").agg({"*": "count", "clicks": "mean"}).orderBy("campaign").show(3)
    in_sessions = closed.agg({"clicks": "sum"}).first()[0]
    print(f"{counted:,} clicks: {in_sessions:,} in {closed.count():,} sessions, {still_open:,} in open ones")
    print(f"rows that stay on their server: {before:.0%} by hash, {after:.0%} learnt")
    return {
        "before": before,
        "after": after,
        "clicks": counted,
        "in_sessions": in_sessions,
        "open": still_open,
    }


if __name__ == "__main__":
    main()
