"""Routing tables as a batch's plan names them, loaded once per process."""

from __future__ import annotations

import zlib
from collections import OrderedDict

import pyarrow as pa

from weir.engine.plan import BatchPlan, FileRef, TableRef
from weir.grouping.base import Grouping
from weir.grouping.table import Table
from weir.state.storage import Storage

_loaded: OrderedDict[tuple[str, str], Table] = OrderedDict()


def save_table(storage: Storage, operator: str, version: int, table: Table) -> TableRef:
    """Writes a table into the checkpoint; a plan may name it from then on."""
    data = pa.table({"hash": table.hashes, "instance": table.instances})
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, data.schema) as writer:
        writer.write_table(data)
    content = buffer.getvalue()
    name = f"tables/{operator}/{version:08d}.arrow"
    storage.write(name, content)
    return TableRef(version, FileRef(name, len(table), content.size, zlib.crc32(content)))


def load_table(storage: Storage, ref: TableRef) -> Table:
    """A table from the checkpoint, kept in this process."""
    key = (storage.location, ref.file.name)
    table = _loaded.get(key)
    if table is None:
        data = pa.ipc.open_file(storage.read_checked(ref.file.name, ref.file.bytes, ref.file.crc)).read_all()
        table = _loaded[key] = Table(data["hash"].to_numpy(), data["instance"].to_numpy())
        while len(_loaded) > 32:
            _loaded.popitem(last=False)
    return table


def grouping_in_force(storage: Storage, plan: BatchPlan, operator: str, declared: Grouping) -> Grouping:
    """The grouping of an operator in a batch: the plan's table if there is one, else what was declared."""
    ref = plan.tables.get(operator)
    return declared if ref is None else load_table(storage, ref)
