"""A skewed stream through two keyed operators: views per site, then per article; by hash, then with learnt homes.

    python examples/skewed.py
    python examples/skewed.py --keep work/     # leaves data and checkpoint there, for weir watch and weir inspect

The first site has a fifth of all views, and most views of an article come from one site. The job begins as it would
with any engine, by hash. Then it is started again on the same checkpoint with one argument changed;
its state goes along.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
import weir.testing

SITES, ARTICLES = 300, 20  # so many articles per site
LEARNT = weir.Locality()


def views(rng: np.random.Generator, rows: int) -> pa.Table:
    """Return views: few sites have most of them, and one article in ten is read elsewhere."""
    popular = 1 / np.arange(1, SITES + 1) ** 1.1
    sites = rng.choice(SITES, rows, p=popular / popular.sum())
    homes = np.where(rng.random(rows) < 0.9, sites, rng.integers(0, SITES, rows))
    articles = homes * ARTICLES + rng.integers(0, ARTICLES, rows)
    return pa.table({"site": np.char.add("site ", sites.astype(str)), "article": articles})


def application(rows) -> weir.Stream:
    """Count views per site, then per article."""
    return weir.source(rows).count("site", name="sites", emit="rows").count("article", name="articles")


def run(app: weir.Stream, work: Path, rng, routing, args) -> tuple[weir.Query, dict]:
    """Let so many batches come in, one after the other; return the query and what the last one looked like."""
    query = app.start(str(work / "checkpoint"), servers=args.servers, routing=routing, watch=args.watch)
    print(f"running with {type(routing).__name__} …", query.page or "")
    for batch in range(args.batches):
        if batch and routing == LEARNT:
            query.reconfigure(wait=True)  # it would come by itself; waiting makes the example short
        file = f"{time.time_ns()}.parquet"
        pq.write_table(views(rng, args.rows), work / file)
        (work / file).rename(work / "views" / file)  # files must appear whole
        query.process_all_available()
    last = query.progress
    by_server = last.operators["articles"].rows_by_server
    return query, {"stay": last.locality, "busiest": max(by_server) / (sum(by_server) / len(by_server))}


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=2, help="before, and again after")
    parser.add_argument("--rows", type=int, default=20_000, help="views per batch")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument(
        "--keep", type=Path, help="folder for data and checkpoint; a temporary one by default"
    )
    parser.add_argument(
        "--watch", action="store_true", help="serve the page of the query (weir-streams[watch])"
    )
    args = parser.parse_args(argv)
    work, rng = args.keep or Path(tempfile.mkdtemp(prefix="skewed-")), np.random.default_rng(1)
    (work / "views").mkdir(parents=True, exist_ok=True)
    spark = weir.testing.local_spark()
    app = application(spark.readStream.schema("site string, article long").parquet(str(work / "views")))

    query, before = run(app, work, rng, weir.Hash(), args)
    query.stop()
    query, after = run(app, work, rng, LEARNT, args)
    counted = query.state("sites").agg({"count": "sum"}).first()[0]
    query.stop()

    for name, seen in (("by hash", before), ("learnt", after)):
        print(
            f"{name:8} {seen['stay']:4.0%} of the rows stay, busiest server {seen['busiest']:.2f} × the average"
        )
    print(f"{counted:,} views counted, {2 * args.batches * args.rows:,} sent")
    return {"before": before, "after": after, "counted": counted}


if __name__ == "__main__":
    main()
