"""Two counts in Weir, with plain hashing or with tables that place keys which travel together on one server."""

from __future__ import annotations


def main() -> None:
    import told

    import weir
    from weir.bench.data import fitting_tables
    from weir.spark.session import embedded

    order = told.job()
    workers, work = order["workers"], order["work"]
    spark = embedded(f"local[{workers}]", **{"spark.sql.shuffle.partitions": str(workers)})
    stream = (
        spark.readStream.schema("k1 string, k2 string, payload binary")
        .option("maxFilesPerTrigger", order["files_per_batch"])
        .parquet(order["data"])
    )
    first, second = fitting_tables(order["keys"], workers) if order["options"]["table"] else (None, None)
    app = (
        weir.source(stream)
        .keyed("k1", weir.Count(), name="A", grouping=first)
        .keyed("k2", weir.Count(), name="B", grouping=second)
    )
    # whole rows travel, payload and all, as they do in an engine that cannot see into operators
    query = app.start(f"{work}/checkpoint", servers=workers, prune=False, trigger={"availableNow": True})
    query.await_termination()
    told.micro_batches(work, query._stream.recentProgress)
    for operator, key in (("A", "k1"), ("B", "k2")):
        counts = told.Counts(work, operator)
        for row in query.state(operator).collect():
            counts.add(row[key], row["count"])
    told.detail(work, exchanged_bytes=told.shuffled_bytes(spark))
    spark.stop()


if __name__ == "__main__":
    main()
