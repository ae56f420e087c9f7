"""Where streams begin: a DataFrame, files, topics, or a schema that is fed later."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.columns import canonical, to_schema
from weir.errors import TopologyError, renamed
from weir.extras import require
from weir.flow import Stream
from weir.graph.declare import LISTED, Source, check_count, operator_step
from weir.messages.feed import RANGES, TopicFeed
from weir.messages.registry import Registry
from weir.messages.topics import Topics
from weir.operators.read import LISTING, PARTITION, Read, base_of, check_partition, columns_of, list_files
from weir.operators.read_topic import ReadTopic
from weir.routing.base import Grouping
from weir.routing.hash import Hash
from weir.routing.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def source(frame: DataFrame | str | Mapping[str, Any] | pa.Schema, name: str = "source") -> Stream:
    """Begin a stream: the rows of a DataFrame, streaming or bounded.

    In place of a DataFrame, a schema (``"place string, n long"``, a dict or a ``pyarrow.Schema``) makes a source that
    :mod:`weir.testing` feeds.
    """
    if not isinstance(name, str) or not name:
        raise TopologyError(f"name={name!r}: a source's name is a text")
    if isinstance(frame, str | Mapping | pa.Schema):
        schema = canonical(to_schema(frame))
        if not len(schema) or len(set(schema.names)) < len(schema):
            raise TopologyError(f"source {name!r} needs at least one column, and each name once")
        return Stream((Source(name, schema),))
    from weir.spark.session import arrow_schema, check_frame

    check_frame(frame, name)
    return Stream((Source(name, arrow_schema(frame), frame),))


@renamed(place="assignment")
def files(
    reader: Any,
    path: str,
    *,
    name: str = "files",
    schema: Any = None,
    format: str = "parquet",
    by: str = "folder",
    assignment: Mapping[str, int] | str | None = None,
    max_bytes_per_batch: int | None = None,
) -> Stream:
    """Begin a stream: the rows of files, each read on the server that its partition is assigned to.

    Spark only lists the files. The driver plans which of them a batch reads, and each is read by the server of its
    partition. Rows whose next key lives there never leave it. With ``routing=weir.Locality()``, keys and the partitions
    that hold them come together.

    A file must appear whole (written elsewhere, then moved here) and must not change. Otherwise a
    :class:`~weir.errors.SourceError` that names it stops the query.

    Parameters
    ----------
    reader
        ``spark.readStream`` for a stream, ``spark.read`` for what is there now, with options of Spark's file source if
        you like. None makes a source that :mod:`weir.testing` feeds with lists of paths.
    path
        The folder, with all folders below; or a file, or a pattern.
    name
        What progress calls it; two sources of one application need two names.
    schema
        Columns and types, as ``"place string, n long"``, a dict or a ``pyarrow.Schema``, also of columns that folders
        name (``…/day=7/…``). If not given, those of a file that is there already.
    format
        ``"parquet"``, or ``"arrow"`` for Arrow's file format.
    by
        What a file's partition is: the name of its ``"folder"``, its own name (``"file"``, if files have
        nothing in common), or the group of a pattern, e.g. ``r"-(\\d+)\\.parquet"``.
    assignment
        Where partitions are read: ``{"part=3": 0}`` on given servers (others by hash), ``"hash"`` always
        by hash; if not given, where it pays, with ``routing=weir.Locality()``, else by hash.
    max_bytes_per_batch
        Bytes of files that a batch reads at most; a larger file is a batch of its own. A backlog is worked off faster
        than with Spark's ``maxFilesPerTrigger``. See also ``target_batch=`` of :class:`weir.Options`.

    Examples
    --------
    ::

        posts = weir.files(spark.readStream, "posts/", schema="place string, topic string")
        query = posts.keyed("place", weir.Count()).start(checkpoint, servers=6, routing=weir.Locality())
        query.progress.edges["files → place"].locality      # the share of rows that stayed on their server
    """
    check_partition(by)
    if max_bytes_per_batch is not None:
        check_count("max_bytes_per_batch", max_bytes_per_batch)
    listed = _listed(reader, path, f"{name}{LISTED}", by)
    columns = columns_of(path, format) if schema is None else to_schema(schema)
    base = base_of(path) if by == "folder" else ""
    operator = Read(columns, format, base, by != "file", max_bytes_per_batch)
    step = operator_step(
        (listed,), operator, kind="files", name=name, key=(PARTITION,), routing=_assigned(assignment, by)
    )
    return Stream((step,))


@renamed(servers="bootstrap_servers", place="assignment")
def kafka(
    bootstrap_servers: str,
    topic: str | Sequence[str],
    schema: Any,
    *,
    name: str = "kafka",
    format: str = "json",
    avro: str | os.PathLike[str] | None = None,
    registry: str | Mapping[str, Any] | None = None,
    start: str | datetime = "earliest",
    max_rows_per_batch: int | None = None,
    committed: bool = True,
    on_expired: str = "fail",
    on_error: str = "fail",
    group: str | None = None,
    assignment: Mapping[str, int] | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Stream:
    """Begin a stream: the messages of a topic, each partition read on the server that it is assigned to.

    Needs ``pip install 'weir-streams[kafka]'``, also on the executors. The driver plans which offsets a batch reads, so
    a batch that runs again reads the same. Servers read their partitions with librdkafka, straight into Arrow. With
    ``routing=weir.Locality()``, keys and the partitions that hold them come together. ``run`` reads what is there now,
    and so does ``query.feed()`` of :mod:`weir.testing`.

    Partitions that a topic gains are read from their first message. Offsets without a message are passed over. A
    message without a value is a row of nulls. While brokers can't be reached the query waits.

    Parameters
    ----------
    bootstrap_servers
        ``"broker:9092,…"``.
    topic
        A topic, or a list of topics that hold the same rows. A name that begins with ``^`` is a pattern, e.g.
        ``"^posts-.*"``; topics that match it later are read from their first message.
    schema
        Columns and types, as ``"place string, n long"``, a dict or a ``pyarrow.Schema``. Columns named ``kafka_key``,
        ``kafka_timestamp``, ``kafka_topic``, ``kafka_partition``, ``kafka_offset`` and ``kafka_headers`` (a map) come
        from the message itself.
    name
        What progress calls it; two sources of one application need two names.
    format, avro
        ``"json"``: an object per message; ``"avro"``: a datum per message, of the schema in the file ``avro``;
        ``"arrow"``: a stream of rows per message; ``"confluent-avro"``, ``"confluent-json"``, ``"confluent-protobuf"``:
        behind the bytes of a schema registry; ``"debezium"``: changes of a table, as JSON. A change's row is the one
        after it, of a deletion the one before. ``debezium_op``, ``debezium_deleted`` and ``debezium_time`` say what
        happened.
    registry
        The URL of a schema registry that speaks Confluent's protocol, or settings of confluent-kafka's client, e.g.
        ``{"url": …, "basic.auth.user.info": "user:password"}``. Each datum is read with the schema that it was written
        with, and resolved to ``avro`` if that is given. Without it, all messages of ``"confluent-avro"`` must be of the
        schema in ``avro``. Needs ``pip install 'weir-streams[registry]'``, also on the executors; for Protobuf
        ``'weir-streams[protobuf]'``.
    start
        Where a query without a checkpoint begins: ``"earliest"``, ``"latest"``, or a time, by the messages' own.
    max_rows_per_batch
        Messages of a batch at most; each partition gets its share. See also ``target_batch=`` of :class:`weir.Options`.
    committed
        Pass over messages of transactions that are open or were aborted.
    on_expired
        What to do when brokers have deleted messages or topics before they were read: ``"fail"``, or ``"skip"`` them
        and say in the progress how many messages there were.
    on_error
        What to do with a message that can't be decoded: ``"fail"``, or ``"divert"`` it to the dead letters.
    group
        A consumer group whose offsets follow the commits, so that tools that watch the lag of groups see it. The
        query itself goes by its checkpoint.
    assignment
        Where partitions are read: ``{"posts/3": 0}`` on given servers (others by hash), ``"hash"`` always by hash; if
        not given, where it pays, with ``routing=weir.Locality()``, else by hash.
    settings
        More settings of librdkafka, e.g. ``{"security.protocol": "ssl"}``. They go to the executors with every task.

    Examples
    --------
    ::

        posts = weir.kafka("broker:9092", "posts", "place string, topic string", max_rows_per_batch=500_000)
        query = posts.keyed("place", weir.Count()).start(checkpoint, servers=6, routing=weir.Locality())
        query.progress.sources["kafka"]["lag"]      # messages that were left when the batch was planned
    """
    require("confluent_kafka", "kafka")
    names = (topic,) if isinstance(topic, str) else tuple(topic)
    if not names or not all(isinstance(n, str) and n for n in names):
        raise TopologyError(f"topic={topic!r}: expected a topic's name, or a list of names")
    for pattern in names:
        if pattern.startswith("^"):
            try:
                re.compile(pattern)
            except re.error as error:
                raise TopologyError(f"topic={pattern!r}: no pattern: {error}") from None
    if on_expired not in ("fail", "skip"):
        raise TopologyError(f'on_expired={on_expired!r}: expected "fail" or "skip"')
    if max_rows_per_batch is not None:
        check_count("max_rows_per_batch", max_rows_per_batch)
    if isinstance(start, datetime):
        begin: str | int = int(start.timestamp() * 1000)
    elif start in ("earliest", "latest"):
        begin = start
    else:
        raise TopologyError(f'start={start!r}: expected "earliest", "latest" or a datetime')
    topics = Topics(bootstrap_servers, names, dict(settings or {}), committed)
    feed = TopicFeed(topics, begin, on_expired, max_rows_per_batch, group=group)
    text = "" if avro is None else Path(avro).read_text()
    operator = ReadTopic(
        canonical(to_schema(schema)), topics, format, text, on_expired, registry=Registry.of(registry)
    )
    step = operator_step(
        (Source(f"{name}{LISTED}", schema=RANGES, feed=feed),),
        operator,
        kind="kafka",
        name=name,
        key=(PARTITION,),
        routing=_assigned(assignment, "topic"),
        on_error=on_error,
    )
    return Stream((step,))


def _listed(reader: Any, path: str, name: str, by: str) -> Source:
    if reader is None:
        return Source(name, LISTING, listing=partial(list_files, by=by))
    from weir.spark.session import arrow_schema
    from weir.spark.sources import listing

    frame = listing(reader, path, by)
    return Source(name, arrow_schema(frame), frame)


def _assigned(assignment: Mapping[str, int] | str | None, by: str) -> Grouping | None:
    if assignment == "hash" or (assignment is None and by == "file"):
        return Hash()  # a file is read once: there is nothing to learn about it
    if assignment is None:
        return None
    if not isinstance(assignment, Mapping) or not all(
        isinstance(k, str) and isinstance(v, int) for k, v in assignment.items()
    ):
        raise TopologyError(f'assignment={assignment!r}: expected {{"partition": server}} or "hash"')
    return Table.of(assignment)
