"""Two counts in Weir: keys placed by hashing, or by tables that put those which travel together on one server.

Rows come from Spark's file source, or from files that the servers read themselves (``weir.files``).
"""

from __future__ import annotations

import os


def main() -> None:
    import told

    import weir
    from weir.spark.session import embedded
    from weir_evaluation.bench.data import fitting_tables

    order = told.job()
    workers, work = order["workers"], order["work"]
    spark = embedded(f"local[{2 * workers}]", **{"spark.sql.shuffle.partitions": str(workers)})
    options, schema = order["options"], "k1 string, k2 string, payload binary"
    if options["files"]:
        place = {f"{i:05d}": i % workers for i in range(len(order["files"]))}
        rows = weir.files(
            spark.readStream,
            order["data"],
            schema=schema,
            by=r"(\d+)\.parquet",
            assignment=place,
            # files are of one length, within a few bytes
            max_bytes_per_batch=order["files_per_batch"] * max(map(os.path.getsize, order["files"])),
        )
    else:
        reader = spark.readStream.option("maxFilesPerTrigger", order["files_per_batch"])
        rows = weir.source(reader.schema(schema).parquet(order["data"]))
    first, second = fitting_tables(order["keys"], workers) if options["table"] else (None, None)
    app = rows.keyed("k1", weir.Count(emit="rows"), name="A", routing=first).keyed(
        "k2", weir.Count(), name="B", routing=second
    )
    # whole rows travel, payload and all, as they do in an engine that cannot see into operators
    query = app.start(f"{work}/checkpoint", servers=workers, prune=False, trigger={"availableNow": True})
    query.await_termination()
    if options["files"]:  # Spark knows of one batch only, which Weir has cut up
        told.committed(work, [(p.time + (p.seconds.commit or 0.0), p.rows) for p in query.recent_progress])
    else:
        told.micro_batches(work, query.spark_query.recentProgress)
    for operator, key in (("A", "k1"), ("B", "k2")):
        counts = told.Counts(work, operator)
        for row in query.state(operator).collect():
            counts.add(row[key], row["count"])
    # what stays on its server weighs nothing
    crossed = sum(each["bytes"] for p in query.recent_progress for each in p.distance.values())
    told.detail(work, exchanged_bytes=told.shuffled_bytes(spark) + crossed)
    spark.stop()


if __name__ == "__main__":
    main()
