"""A query to be killed: python -m weir_evaluation.bench.chaos.cluster_app SEED DATA CHECKPOINT DELIVERIES

Runs the application of a seed on ``local-cluster`` over the files in DATA, one per batch, and changes its tables and
servers on the way. Every delivery becomes a file of its own, and so does every change of servers, since a query that
was killed does not know of those before. In the end it prints the state of every keyed operator.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from weir.errors import WeirError
from weir.flow import parts_of
from weir.spark import live_runner
from weir.spark.session import embedded
from weir_evaluation.bench.chaos.cases import SCHEMA, Keyed
from weir_evaluation.bench.chaos.cluster import SCALED
from weir_evaluation.bench.chaos.draw import Drawn, draw

# two executors; slots for live servers and a source, also after servers have come
CLUSTER = "local-cluster[2,4,1024]"
MOST = 5  # servers
SETTINGS = {
    "spark.task.maxFailures": "12",
    "spark.stage.maxConsecutiveAttempts": "20",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "1g",
    "spark.excludeOnFailure.enabled": "false",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
}


def main(seed: str, data: str, checkpoint: str, deliveries: str) -> None:
    drawn = draw(random.Random(int(seed)))
    if int(seed) % 2:  # else rows of these small batches take the way over the driver
        live_runner.SMALL_BATCH = -1
    spark = embedded(CLUSTER, **SETTINGS)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(data)
    application = drawn.application(stream)
    ready = threading.Event()
    holder: dict[str, Any] = {}

    def sink(name: str, steers: bool) -> Any:
        def deliver(frame: Any, batch: int) -> None:
            rows = [row.asDict() for row in frame.collect()]
            path = Path(deliveries) / f"{name}-{batch}-{uuid.uuid4().hex}"
            path.with_suffix(".tmp").write_text(json.dumps(rows, default=str))
            os.replace(path.with_suffix(".tmp"), path.with_suffix(".json"))
            ready.wait(60)
            if steers:
                query, folder = holder["query"], Path(deliveries)
                last = query._driver.ledger.last  # the commit that is being delivered
                if last.progress and last.progress.scaled:
                    (folder / f"{SCALED}{last.batch}").touch()
                scaled = any(folder.glob(f"{SCALED}*"))
                _steer(query, drawn, random.Random(f"{seed}/{batch}"), scaled)

        return deliver

    leaves = parts_of(application).leaves
    sinks = {name: sink(name, name == leaves[-1]) for name in leaves}
    now = {"availableNow": True}
    holder["query"] = application.start(checkpoint, sink=sinks, trigger=now, **drawn.settings())
    ready.set()
    holder["query"].await_termination()
    readable = [p.name for _, p in drawn.keyed if isinstance(p.case, Keyed) and p.case.truth is not None]
    states = {name: [r.asDict() for r in holder["query"].state(name).collect()] for name in readable}
    print(json.dumps(states, default=str))
    spark.stop()


def _steer(query: Any, drawn: Drawn, rng: random.Random, scaled: bool) -> None:
    """Let the next batch move keys, or change the servers: now and then, but until they have changed once always."""
    servers = query.topology.servers
    what = rng.choice(["reconfigure", "out", "in", "nothing"] if scaled else ["out", "in"])
    if not scaled and not 1 < servers < MOST:
        what = "out" if servers == 1 else "in"
    try:
        if what == "reconfigure" and drawn.routing != "hash":
            query.reconfigure(wait=True)
        elif what == "out" and servers < MOST:  # live ones start ahead of the change, or within it
            query.scale_out(1, share_slots=rng.random() < 0.5)
        elif what == "in" and servers > 1:
            query.scale_in(1, release=False)
    except WeirError as error:  # no rates yet: said to whoever watches
        print(f"{what}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
