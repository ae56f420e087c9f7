"""Posts per place, and topics that reach another fifty posts: two keyed operators, one grouping that learns."""

import tempfile
from dataclasses import dataclass

import weir
import weir.testing


@dataclass
class Seen:
    posts: int = 0


class Milestones(weir.Process):
    """Your own operator: called with a key, its new rows and its state; yields what goes to the sink."""

    state = Seen
    output = {"topic": "string", "posts": "long"}

    def process(self, key, rows, state):
        before = state.posts
        state.posts += len(rows)
        if state.posts // 50 > before // 50:
            yield key, state.posts


spark = weir.testing.local_spark()  # a quiet Spark on this machine; any SparkSession will do
folder, checkpoint = tempfile.mkdtemp(), tempfile.mkdtemp()
columns = "'place ' || id % 40 as place", "'topic ' || (id % 40 * 3 + id % 3) as topic"
spark.range(20_000).selectExpr(*columns).repartition(4).write.mode("overwrite").parquet(folder)

posts = spark.readStream.schema("place string, topic string").option("maxFilesPerTrigger", 1).parquet(folder)
app = (
    weir.source(posts)
    .count("place", name="places", emit="rows")
    .keyed("topic", Milestones(), name="topics")
    .sink(lambda frame, batch: print(f"batch {batch}: {frame.count()} topics passed another fifty"))
)
query = app.start(checkpoint, servers=4, routing=weir.Locality(), trigger={"availableNow": True})
query.await_termination()
query.state("places").orderBy("place").show(3)
print(f"{query.progress.locality:.0%} of the rows stayed on their server")
