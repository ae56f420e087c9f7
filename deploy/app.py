"""The application of the examples in this folder: posts per topic, from files that appear in a folder."""

import weir


def app(spark):
    """Return the application; `weir run app.py:app` calls it with a session."""
    posts = spark.readStream.schema("place string, topic string").parquet("/data/posts")
    return weir.source(posts).count("place", name="places", emit="rows").count("topic", name="topics")
