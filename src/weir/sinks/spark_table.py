"""A table of a catalog that Spark knows, through Spark's own connectors."""

from __future__ import annotations

import contextlib
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from weir.columns import check_columns
from weir.errors import SinkError, SinkUnavailable, TopologyError, WeirError, did_you_mean
from weir.faults import reach
from weir.sinks.base import TARGET_BYTES, Delivery, Sink, check_deleted

FORMATS = ("delta", "iceberg")
MARK, PUBLISHED = "wap.id", "published-wap-id"  # in a snapshot's summary; Iceberg publishes an id once
ORDER = "weir_order"
# what Java raises where a store, a catalog or the network is away, or another commit was faster
_PASSING = re.compile(
    r"java\.(io|net|nio)\.|Concurrent\w+Exception|CommitFailed|CommitStateUnknown|DuplicateWAPCommit|ServiceUnavailable|"
    r"ServiceFailure|Timeout|Throttl|SQL(Transient|Recoverable|NonTransientConnection)"
)
_LASTING = re.compile(r"FileNotFound|NoSuchFile|AccessDenied|AccessControl|NotSerializable|InvalidClass")
# types whose values a wider one holds, narrow to wide
_WIDER = (["tinyint", "smallint", "int", "bigint"], ["float", "double"])


class SparkTable(Sink):
    """Writes to a Delta or Iceberg table through the Spark session's own catalogs and connectors.

    For tables that are reached by what the session has: Unity, Glue, Hive Metastore, REST, with their rights, and their
    rules for files. Each batch is a Spark job: executors write, also those of a merge. Rows never pass through the
    driver, but for batches of less than 1 MB. Without Spark use :class:`Delta` or :class:`Iceberg`.

    A Delta table's log has the batch as an *application transaction*, under the same name that :class:`Delta` uses; of
    two commits with one name Delta refuses the second. An Iceberg table's snapshot has it as a property, ``wap.id``:
    rows are staged on a branch, ``weir_…``, from where they are published. An append is published on top of what others
    have committed meanwhile, and once: Iceberg itself refuses to publish an id again. A merge is published if the table
    is still the one that it was made for, or made again.

    Parameters
    ----------
    table
        Its name, as in SQL: ``"catalog.namespace.table"``. It must be there.
    format
        ``"delta"`` or ``"iceberg"``. None: what the catalog says.
    keys
        Columns that name a row. Without them rows are appended; with them a row replaces the one of the same
        keys (of several in one batch the last one), by ``MERGE INTO``.
    deleted
        A boolean column, which the table does not get: where it is true, the row of these keys is deleted.

    Columns of the table that rows have not become null. Numbers may be wider in the table than in rows.

    Guarantee: each row once, a batch at a time; readers see a batch whole or not at all.
    """

    def __init__(
        self,
        table: str,
        format: Literal["delta", "iceberg"] | None = None,
        *,
        keys: Sequence[str] = (),
        deleted: str | None = None,
    ) -> None:
        if format is not None:
            self._check_format(format)
        self.table, self.format, self.keys, self.deleted = table, format, list(keys), deleted
        self._rows: Any = None  # a DataFrame without any

    def __repr__(self) -> str:
        return f"SparkTable({self.table!r})"

    def prepare(self, frame: Callable[[], Any]) -> None:
        self._rows = frame()

    def open(self, query: str, operator: str, schema: pa.Schema, fresh: bool) -> None:
        where = f"{self!r} of operator {operator!r}"
        check_columns(self.keys, schema, where)
        check_deleted(self.deleted, self.keys, schema, where)
        spark = self._rows.sparkSession
        with self._translated():
            try:
                table = spark.table(self.table)
            except Exception as error:
                if getattr(error, "getCondition", str)() != "TABLE_OR_VIEW_NOT_FOUND":
                    raise
                raise SinkError(f"{where}: there is no such table. Make it: {self._statement()}") from None
            described = spark.sql(f"DESCRIBE TABLE EXTENDED {self.table}").collect()
            found = next((str(row[1]).lower() for row in described if row[0] == "Provider"), "view")
            if self.format not in (None, found):
                raise SinkError(
                    f"{where}: format={self.format!r}, but the table's is {found!r}; leave format= out"
                )
            self._format = self._check_format(found)
            self._fitted(self._rows, table)
            if self._format == "iceberg" and fresh:
                self._batch_of(self._loaded(spark), f"weir/{query}/{operator}/", note=True)

    def deliver(self, delivery: Delivery) -> None:
        assert delivery.frame is not None
        with self._translated():
            if self.keys:
                rows = self._last_of_each(delivery.frame(order=ORDER))
            else:  # small files make tables slow
                rows = delivery.frame().coalesce(max(1, sum(delivery.sizes) // TARGET_BYTES))
            spark = rows.sparkSession
            rows = self._fitted(rows, spark.table(self.table))
            if self._format == "delta":
                version = {
                    "txnAppId": f"weir-{delivery.query}-{delivery.operator}",
                    "txnVersion": delivery.batch,
                }
                settings = {f"spark.databricks.delta.write.{name}": value for name, value in version.items()}
                reach("sink-staged", delivery.batch)
                with _set(spark, settings):  # Delta writes nothing if its log has the version
                    self._write(rows, self.table)
            else:
                self._deliver_iceberg(spark, rows, delivery)

    def _deliver_iceberg(self, spark: Any, rows: Any, delivery: Delivery) -> None:
        """Stage rows on a branch, and publish it unless the table has had the batch."""
        table = self._loaded(spark)
        mark, own = f"weir/{delivery.owner}/", f"weir_{zlib.crc32(delivery.owner.encode()):08x}_"
        last = self._batch_of(table, mark, note=not delivery.again)
        if last is None:
            raise SinkError(
                f"{self!r}: snapshots have expired since batch {delivery.batch} came first, and nobody can tell "
                f"whether the table has it. If not, set its property '{mark}since' to the id of its current snapshot"
            )
        if last >= delivery.batch:
            return
        for name in [str(name) for name in table.refs().keySet()]:
            if name.startswith(own):  # of an attempt that was cut off
                table.manageSnapshots().removeBranch(name).commit()
        if table.currentSnapshot() is None:
            table.newAppend().commit()
        base, branch = table.currentSnapshot().snapshotId(), own + uuid.uuid4().hex[:8]
        table.manageSnapshots().createBranch(branch, base).commit()
        try:
            with _set(spark, {f"spark.sql.iceberg.snapshot-property.{MARK}": f"{mark}{delivery.batch}"}):
                self._write(rows, f"{self.table}.branch_{branch}")
            table.refresh()
            staged = table.snapshot(branch)
            if staged.snapshotId() == base:  # a merge that changes nothing
                return
            if staged.summary().get(MARK) != f"{mark}{delivery.batch}":
                raise SinkError(
                    f"{self!r}: this Iceberg does not know spark.sql.iceberg.snapshot-property; use 1.12"
                )
            reach("sink-staged", delivery.batch)
            if self.keys:
                operations = table.operations()
                now = operations.refresh()
                if now.currentSnapshot().snapshotId() != base:
                    raise SinkUnavailable(
                        f"{self!r}: somebody else has changed the table; the batch is merged again"
                    )
                # fails if the table has changed since
                then = (
                    spark._jvm.org.apache.iceberg.TableMetadata.buildFrom(now)
                    .setBranchSnapshot(staged.snapshotId(), "main")
                    .removeRef(branch)
                )
                operations.commit(now, then.build())
            else:
                table.manageSnapshots().cherrypick(staged.snapshotId()).removeBranch(branch).commit()
        finally:
            with contextlib.suppress(Exception):  # else the next delivery does it
                table.refresh()
                if table.refs().containsKey(branch):
                    table.manageSnapshots().removeBranch(branch).commit()

    def _loaded(self, spark: Any) -> Any:
        """Return an Iceberg table, as it is now."""
        table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, self.table
        )
        table.refresh()
        return table

    def _batch_of(self, table: Any, mark: str, note: bool) -> int | None:
        """Return the last batch among the snapshots that have led to a table's head, -1 if there is none.

        Snapshots expire. Where neither a batch nor the table's beginning is left, nobody can tell: None. To ``note``
        says that there is none; the head is then written down, as a property of the table, to look back to next time.
        """
        since, head = f"{mark}since", table.currentSnapshot()
        begun, snapshot = table.properties().get(since), head
        while snapshot is not None:
            about = snapshot.summary() or {}
            name = about.get(MARK) or about.get(PUBLISHED) or ""
            if name.startswith(mark):
                return int(name.removeprefix(mark))
            if begun == str(snapshot.snapshotId()) or snapshot.parentId() is None:
                return -1
            snapshot = table.snapshot(snapshot.parentId())
        if head is not None and not note:
            return None
        if head is not None:
            table.updateProperties().set(since, str(head.snapshotId())).commit()
        return -1

    def _write(self, rows: Any, target: str) -> None:
        """Append or merge rows, in one commit of Spark's."""
        if not self.keys:
            rows.writeTo(target).append()
            return
        same = " AND ".join(f"old.{_quoted(key)} <=> new.{_quoted(key)}" for key in self.keys)
        columns = [name for name in rows.columns if name != self.deleted]
        sets = ", ".join(f"{_quoted(name)} = new.{_quoted(name)}" for name in columns)
        gone = f"new.{_quoted(self.deleted)}" if self.deleted else ""
        deletes = f"WHEN MATCHED AND {gone} THEN DELETE " if gone else ""
        inserts = f"WHEN NOT MATCHED{f' AND NOT {gone}' if gone else ''} THEN INSERT"
        with _view(rows) as view:
            rows.sparkSession.sql(
                f"MERGE INTO {target} AS old USING {view} AS new ON {same} {deletes}"
                f"WHEN MATCHED THEN UPDATE SET {sets} {inserts} ({', '.join(map(_quoted, columns))}) "
                f"VALUES ({', '.join(f'new.{_quoted(name)}' for name in columns)})"
            )

    def _fitted(self, rows: Any, table: Any) -> Any:
        """Return rows with the table's columns, and ``deleted``; raise a SinkError if they do not fit."""
        kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        names = {name.lower(): name for name in kinds if name != self.deleted}
        chosen, wrong = [], []
        for field in table.schema.fields:
            kind = field.dataType.simpleString()
            name = names.pop(field.name.lower(), None)
            if name is not None and not _holds(kind, kinds[name]):
                wrong.append(f"{name!r} is {kinds[name]} and there {kind}")
            elif name is None and not field.nullable:
                wrong.append(f"{field.name!r} is missing and must not be null")
            value = "NULL" if name is None else _quoted(name)
            chosen.append(f"CAST({value} AS {kind}) AS {_quoted(field.name)}")
        wrong += [f"the table has no column {name!r}" for name in names.values()]
        if wrong:
            raise SinkError(
                f"{self!r}: columns do not fit: {'; '.join(wrong)}. Select others before the sink, or ALTER TABLE"
            )
        if self.deleted:
            chosen.append(f"coalesce({_quoted(self.deleted)}, false) AS {_quoted(self.deleted)}")
        return rows.selectExpr(*chosen)

    def _last_of_each(self, rows: Any) -> Any:
        """Return the last row of each key."""
        row = ", ".join(_quoted(name) for name in rows.columns if name != ORDER)
        keys = ", ".join(map(_quoted, self.keys))
        with _view(rows) as view:
            return rows.sparkSession.sql(
                f"SELECT last.* FROM (SELECT max_by(struct({row}), {ORDER}) AS last FROM {view} GROUP BY {keys})"
            )

    def _statement(self) -> str:
        columns = ", ".join(
            f"{_quoted(field.name)} {field.dataType.simpleString()}"
            for field in self._rows.schema.fields
            if field.name != self.deleted
        )
        return f"CREATE TABLE {self.table} ({columns}) USING {self.format or 'delta'}"

    def _check_format(self, format: str) -> str:
        if format not in FORMATS:
            raise TopologyError(
                f"SparkTable: format={format!r} is not supported, since it can't note which batches it has had; "
                f"{did_you_mean(format, FORMATS)}"
            )
        return format

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of Spark into ours: a lost race for a commit passes, and so does what a store fails at."""
        try:
            yield
        except WeirError:
            raise
        except Exception as error:
            causes = _causes(error)
            text = next(iter(str(error).strip().splitlines()), type(error).__name__)
            kinds = [kind for kind, _ in causes]
            passing = any(map(_PASSING.search, kinds)) and not any(map(_LASTING.search, kinds))
            why = f" ({causes[-1][0].rpartition('.')[2]}: {causes[-1][1]})" if len(causes) > 1 else ""
            raise (SinkUnavailable if passing else SinkError)(f"{self!r}: {text}{why}") from error


def _causes(error: BaseException) -> list[tuple[str, str]]:
    """Return the class and the first line of what Java raised, and of what that was caused by."""
    raised = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    causes = []
    while raised is not None:
        said = str(raised.getMessage() or "").strip()
        causes.append((str(raised.getClass().getName()), said.partition("\n")[0]))
        raised = raised.getCause()
    return causes


@contextlib.contextmanager
def _set(spark: Any, settings: dict[str, Any]) -> Iterator[None]:
    """Set some of a session's settings for a while."""
    for name, value in settings.items():
        spark.conf.set(name, str(value))
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@contextlib.contextmanager
def _view(rows: Any) -> Iterator[str]:
    """Give a DataFrame a name in SQL for a while."""
    name = f"weir_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def _holds(wide: str, narrow: str) -> bool:
    """Return whether every value of a type is one of another, by the names that Spark has for them.

    >>> _holds("bigint", "int"), _holds("int", "bigint"), _holds("string", "string"), _holds("string", "int")
    (True, False, True, False)
    """
    same = (kinds for kinds in _WIDER if {wide, narrow} <= {*kinds})
    return wide == narrow or any(kinds.index(narrow) <= kinds.index(wide) for kinds in same)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
