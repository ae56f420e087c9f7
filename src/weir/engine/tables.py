"""Routing tables as a batch's plan names them: a base and patches, loaded once per process.

A plan names a table by its files: a base, and what changed since. A worker that has the table of the last batch
applies one small patch to get the next.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.plan import BatchPlan, FileRef, TableRef
from weir.errors import EngineError
from weir.grouping.base import Grouping
from weir.grouping.learnt import NO_TABLE, Learnt, LearntSplit
from weir.grouping.table import Table
from weir.grouping.weighted import Weighted
from weir.network.profile import Profile
from weir.state.storage import Storage

PATCHES_AT_MOST = 32

_loaded: OrderedDict[tuple[str, str, int], Table] = OrderedDict()


def changed_table(
    storage: Storage,
    before: TableRef | None,
    operator: str,
    batch: int,
    hashes: NDArray[np.uint64],
    servers: NDArray[np.int32],
) -> TableRef:
    """Writes what changes in a table (−1: the key leaves it); a plan may name the result from then on."""
    files = list(before.files) if before else []
    version = before.version + 1 if before else 1
    if len(files) >= PATCHES_AT_MOST:
        whole = patched(load_table(storage, before), hashes, servers)  # type: ignore[arg-type]
        files, hashes, servers = [], whole.hashes, whole.instances
    kind = "patch" if files else "base"
    data = pa.table({"hash": hashes, "instance": np.asarray(servers, np.int32)})
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, data.schema) as writer:
        writer.write_table(data)
    content = buffer.getvalue()
    name = f"tables/{operator}/{batch:012d}/{version:08d}-{kind}.arrow"
    storage.write(name, content)
    return TableRef(version, [*files, FileRef(name, len(hashes), content.size, zlib.crc32(content))])


def patched(table: Table, hashes: NDArray[np.uint64], instances: NDArray[np.int32]) -> Table:
    """The table with entries added, replaced, or (−1) removed."""
    stays = ~np.isin(table.hashes, hashes)
    enters = instances >= 0
    return Table(
        np.concatenate([table.hashes[stays], hashes[enters]]),
        np.concatenate([table.instances[stays], instances[enters]]),
    )


def load_table(storage: Storage, ref: TableRef) -> Table:
    """A table from the checkpoint; goes on from the longest part of it that this process has."""
    keys = [(storage.location, file.name, file.crc) for file in ref.files]
    start, table = 0, NO_TABLE
    for i in range(len(keys), 0, -1):
        if keys[i - 1] in _loaded:
            start, table = i, _loaded[keys[i - 1]]
            break
    for key, file in zip(keys[start:], ref.files[start:], strict=True):
        data = pa.ipc.open_file(storage.read_checked(file.name, file.bytes, file.crc)).read_all()
        table = patched(table, data["hash"].to_numpy(), data["instance"].to_numpy())
        _loaded[key] = table
        while len(_loaded) > 16:
            _loaded.popitem(last=False)
    return table


def grouping_in_force(storage: Storage, plan: BatchPlan, operator: str, declared: Grouping) -> Grouping:
    """The grouping of an operator in a batch: with the plan's table if it is governed by learning.

    Weights by a measured profile get the numbers that the plan names.
    """
    if isinstance(declared, Weighted) and declared.profile == "measure":
        if plan.network is None or plan.network.profile is None:
            raise EngineError(
                f"operator {operator!r}: the plan of batch {plan.batch} names no measured profile"
            )
        return declared.with_profile(Profile.from_dict(plan.network.profile))
    if not isinstance(declared, Learnt):
        return declared
    ref = plan.tables.get(operator)
    table = NO_TABLE if ref is None else load_table(storage, ref)
    if isinstance(declared, LearntSplit):
        hot = plan.hot.get(operator)
        return declared.with_table(table, None if hot is None else np.array(hot, np.uint64))
    return declared.with_table(table)
