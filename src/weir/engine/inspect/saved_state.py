"""Saved state as people read it: keys and values, from what the checkpoint alone says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from weir.engine.documents import Commit
from weir.errors import EngineError, did_you_mean
from weir.graph.model import HELD, OperatorSignature, Topology
from weir.operators.base import Operator
from weir.operators.saved import readable_entries, readable_values
from weir.operators.timers import TIMER, states_in
from weir.operators.windows import WINDOW_END, WINDOW_START
from weir.state.storage import Storage
from weir.state.view import StateView


def readable_schema(described: OperatorSignature, operator: Operator | None = None) -> pa.Schema:
    """Return the columns of :func:`readable_state`."""
    return readable_state(described, described.entries.empty_table(), operator).schema


def readable_state(
    described: OperatorSignature, table: pa.Table, operator: Operator | None = None
) -> pa.Table:
    """Keys, windows and values from stored entries; ``operator`` is the running one, if there is."""
    schema = described.entries
    table = readable_entries(described.operator, table)
    keys = described.key_names
    table = states_in(table)
    heads = [
        *keys,
        *(name for name in (WINDOW_START, WINDOW_END) if described.window and name in schema.names),
    ]
    out: dict[str, Any] = {name: table[name] for name in heads}
    if described.window and WINDOW_END not in schema.names:
        start = table[WINDOW_START]
        micros = pa.compute.add(start.cast(pa.int64()), described.window[1])
        out[WINDOW_END] = micros.cast(start.type)
    states = table.select([name for name in schema.names[len(heads) :] if name != TIMER.name])
    for name, values in readable_values(described.operator, states, operator).items():
        out[name if name not in out else f"state.{name}"] = values
    return pa.table(out)


def running_operator(topology: Topology | None, described: OperatorSignature, name: str) -> Operator | None:
    """Return the operator of a running query, if it is still the one whose state was saved."""
    node = None if topology is None else topology.by_name.get(name)
    return node.operator if node is not None and node.operator.signature() == described.operator else None


def state_table(storage: Storage, commit: Commit, name: str, topology: Topology | None = None) -> pa.Table:
    """Return the state of an operator at a commit, from all servers."""
    described = described_operator(commit, name)
    operator = running_operator(topology, described, name)
    schema = described.entries
    parts = [StateView(storage, refs, schema).everything() for refs in commit.manifest[name]]
    return pa.concat_tables([readable_state(described, part, operator) for part in parts])


def described_operator(commit: Commit, name: str) -> OperatorSignature:
    """Return what a commit says about an operator that keeps state."""
    operators = commit.signature.operators
    if name not in operators:
        raise EngineError(f"no operator {name!r} keeps state; {did_you_mean(name, operators)}")
    if any(commit.manifest.get(name + HELD, [])):
        raise EngineError(
            f"operator {name!r}: version 0.2 left partial states that are not merged yet (aggregate_every); start the "
            "query once with this version, and they are"
        )
    return operators[name]
