"""Where results go: tables, databases and topics that have each row of a stream once, whatever dies.

:meth:`weir.Stream.sink` takes these, and functions. A sink writes in one transaction the rows of a batch and the mark
that it has had it, so a batch that is delivered again changes nothing. Derive your own from :class:`Sink`.
"""

from weir.sinks.base import Delivery, Sink
from weir.sinks.delta import Delta
from weir.sinks.iceberg import Iceberg
from weir.sinks.kafka import Kafka
from weir.sinks.parquet import Parquet
from weir.sinks.postgres import Postgres
from weir.sinks.spark_table import SparkTable

__all__ = ["Delivery", "Delta", "Iceberg", "Kafka", "Parquet", "Postgres", "Sink", "SparkTable"]
