"""Where results go: tables, databases and topics that have each row of a stream once, whatever dies.

``sink=`` of ``start`` and ``run`` takes one of these, a function, or a list of both. Each sink knows how to find out
whether it has had a batch already, in the same transaction as the rows themselves, so that a batch that is delivered
again changes nothing. :class:`Sink` is what one of your own derives from.
"""

from weir.sinks.base import Delivery, Sink
from weir.sinks.delta import Delta
from weir.sinks.iceberg import Iceberg
from weir.sinks.kafka import Kafka
from weir.sinks.parquet import Parquet
from weir.sinks.postgres import Postgres

__all__ = ["Delivery", "Delta", "Iceberg", "Kafka", "Parquet", "Postgres", "Sink"]
