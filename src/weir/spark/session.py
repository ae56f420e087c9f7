"""Sessions, what a DataFrame must be for the engine to run it, and Spark's types as Arrow's and back."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from weir.errors import EngineError, TopologyError

ON_THIS_MACHINE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # for every file of Spark's log of a stream, Hadoop's FileContext would start five processes, to set permissions
    # and to look for links: a fifth of what a small batch takes
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}

SERVICE = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # between the JVM and its Python workers: no delayed acknowledgements, as TCP has them
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "weir.spark.workers",
}

_EVERY_START = re.compile(  # what Spark says on standard error whenever it starts
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting (default|Spark) log level|"
    rb"To adjust logging level|.* WARN (Utils: (Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader: )"
)


def embedded(master: str = "local[2]", name: str = "weir", **settings: str) -> SparkSession:
    """A quiet Spark session on this machine, for the demo, benchmarks and tests.

    Where the environment variable ``WEIR_MASTER`` names another master (``weir lab run`` sets it), that one takes the
    place of ``local[…]``.
    """
    if re.fullmatch(r"local(\[.*\])?", master):
        master = os.environ.get("WEIR_MASTER") or master
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local-cluster"):
        import pyspark

        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if master.startswith("local"):
        settings = {**ON_THIS_MACHINE, **settings}
    for key, value in {**SERVICE, **settings}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def quiet(master: str, name: str, **settings: str) -> SparkSession:
    """Return an :func:`embedded` session that leaves out what every start of Spark prints.

    Ctrl-C becomes a plain ``KeyboardInterrupt``; without Java, an error says so.
    """
    # in a notebook PySpark's handler of Ctrl-C stays: it cancels what a cell has begun
    before = None if hasattr(sys, "ps1") else signal.getsignal(signal.SIGINT)
    session = _started(lambda: embedded(master, name, **settings))
    if before is signal.SIG_IGN:  # a program in the background, as a shell starts it
        signal.signal(signal.SIGINT, before)
    elif before is signal.default_int_handler and before is not signal.getsignal(signal.SIGINT):
        signal.signal(signal.SIGINT, _interrupt)
    session.stop = functools.partial(_stop, session)
    return session


def _stop(session: SparkSession) -> None:
    """Stop a session after the queries that run in it, whose servers would fail with many lines otherwise."""
    from weir.spark.query import running

    for query in running(session):
        query.stop()
    SparkSession.stop(session)


def service(settings: Mapping[str, str], name: str) -> SparkSession:
    """Return the session of a service, by its own settings, then those of ``spark-submit``; quiet, too.

    Only what nobody has said is set here, as it suits live servers.
    """
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    local = conf.get("spark.master", "local[*]").startswith("local")
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in {**SERVICE, **(ON_THIS_MACHINE if local else {}), "spark.app.name": name}.items():
        conf.setIfMissing(key, value)
    return _started(lambda: SparkSession.builder.config(conf=conf).getOrCreate())


def _started(start: Callable[[], SparkSession]) -> SparkSession:
    """Return a session that leaves out what every start of Spark prints; where there is no Java, say so."""
    try:
        with _quiet_start():
            return start()
    except Exception as error:
        if getattr(error, "getCondition", str)() != "JAVA_GATEWAY_EXITED":
            raise
        raise EngineError(
            "Spark did not start; what it said is above. It needs a Java 17+ runtime: on the PATH, or in JAVA_HOME"
        ) from None


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Leave out what every start of Spark says on standard error; pass on all else, as long as the JVM lives."""
    sys.stderr.flush()
    reading, writing = os.pipe()
    screen, out = os.dup(2), os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)

    def pass_on() -> None:
        with open(reading, "rb") as lines, open(out, "wb", buffering=0) as shown:
            shown.writelines(line for line in lines if not _EVERY_START.match(line))

    reader = threading.Thread(target=pass_on, name="weir-stderr", daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        if sys.exc_info()[0]:
            reader.join(2)  # what Spark said about it comes first


def _interrupt(*_: object) -> None:
    """Raise a plain ``KeyboardInterrupt``; PySpark's handler calls the JVM while another call is under way."""
    root = logging.getLogger()
    if not root.handlers:  # py4j logs the call that is cut short, and would set up a handler for it
        root.addHandler(logging.NullHandler())
    raise KeyboardInterrupt


def refuse_connect(thing: Any, what: str) -> None:
    """Refuse what belongs to a session of Spark Connect, and say what to use instead."""
    if type(thing).__module__.startswith("pyspark.sql.connect"):
        raise EngineError(
            f"{what} comes from a Spark Connect session. Weir keeps state on executors and plans batches on the "
            "driver, which Connect cannot do. Use a classic session: SparkSession.builder.master(…) without "
            ".remote(…), and no SPARK_REMOTE in the environment. On Databricks that is compute in dedicated access "
            "mode, neither standard nor serverless. weir.read_state and weir advise work with Connect, too"
        )


def active_session() -> SparkSession | None:
    """Return the active session, be it one of Spark Connect."""
    found = SparkSession.getActiveSession()
    remote = sys.modules.get("pyspark.sql.connect.session")
    return found if found is not None or remote is None else remote.SparkSession.getActiveSession()


def check_frame(frame: Any, name: str) -> None:
    """Refuse what is not a classic DataFrame, with the reason."""
    refuse_connect(frame, f"source {name!r}")
    if not isinstance(frame, DataFrame):
        raise TopologyError(f"source {name!r} must be a Spark DataFrame, not {type(frame).__name__}")


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """A DataFrame's columns as Arrow types, spelt one way."""
    fields: list[pa.Field] = []
    for field in frame.schema.fields:
        for other in fields:
            if other.name.lower() == field.name.lower():
                raise TopologyError(
                    f"a source has two columns, {other.name!r} and {field.name!r}, that Spark does not tell apart; "
                    "rename one of them"
                )
        fields.append(pa.field(field.name, to_arrow(field.dataType, field.name)))
    return pa.schema(fields)


def own_session(session: SparkSession) -> SparkSession:
    """A session with the same settings that may be changed without the user's noticing."""
    fresh = session.newSession()
    for row in session.sql("SET").collect():
        if row["key"].startswith("spark.sql.") and not row["key"].startswith("spark.sql.warehouse"):
            with contextlib.suppress(Exception):
                fresh.conf.set(row["key"], row["value"])
    return fresh


def encrypts_files(session: SparkSession) -> bool:
    """Return whether Spark encrypts what it writes to local disks."""
    return (
        session.sparkContext.getConf().get("spark.io.encryption.enabled", "false").strip().lower() == "true"
    )


_SIMPLE: dict[type[T.DataType], pa.DataType] = {
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.NullType: pa.null(),
}
_NAMES = {kind: name().simpleString() for name, kind in _SIMPLE.items() if name is not T.DayTimeIntervalType}


def to_arrow(kind: T.DataType, column: str) -> pa.DataType:
    """Return the Arrow type in which values of a Spark type reach Python."""
    for spark_type, arrow_type in _SIMPLE.items():
        if isinstance(kind, spark_type):
            return arrow_type
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", to_arrow(kind.elementType, column), kind.containsNull))
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, to_arrow(f.dataType, column), f.nullable) for f in kind.fields])
    if isinstance(kind, T.MapType):
        return pa.map_(
            to_arrow(kind.keyType, column),
            pa.field("value", to_arrow(kind.valueType, column), kind.valueContainsNull),
        )
    raise TopologyError(
        f"column {column!r} has type {kind.simpleString()}, which cannot pass through Arrow; "
        "cast it to another type, or drop it before the source"
    )


def to_ddl(schema: pa.Schema) -> str:
    """An Arrow schema as Spark DDL."""
    return ", ".join(f"`{f.name}` {to_ddl_type(f.type)}" for f in schema)


def to_ddl_type(kind: pa.DataType) -> str:
    """An Arrow type by Spark's name."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_duration(kind):
        return "interval day to second"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{to_ddl_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "struct<" + ", ".join(f"`{f.name}`: {to_ddl_type(f.type)}" for f in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{to_ddl_type(kind.key_type)}, {to_ddl_type(kind.item_type)}>"
    raise TopologyError(f"type {kind} has no counterpart in Spark")
