"""Operators as a checkpoint describes them: their state is readable without the application's code."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from weir.operators.aggregate import Aggregate
from weir.operators.aggregate.aggregate_functions import FUNCTIONS
from weir.operators.base import Operator
from weir.operators.instance import one_array
from weir.operators.process.parts import PART, STATE, whole_states
from weir.operators.process.state_types import JSON_TYPES, properties_of


def readable_entries(signature: dict[str, Any], table: pa.Table) -> pa.Table:
    """Return one entry per key, or per key and window, from what is stored."""
    if signature["kind"] != "Process" or PART not in table.column_names:
        return table
    properties = properties_of(signature["state"])
    return whole_states(table, {name: p["part"] for name, p in properties.items() if "part" in p})


def readable_values(
    signature: dict[str, Any], states: pa.Table, operator: Operator | None = None
) -> dict[str, Any]:
    """Return what users see of stored states, by name; columns as they are for operators we don't know.

    ``operator`` is the running one, if there is: only it can finish values by functions of the user's own.
    """
    if isinstance(operator, Aggregate):
        values = operator.finish([one_array(c) for c in states.columns])
        return {spec.name: column for spec, column in zip(operator.specs, values, strict=True)}
    if signature["kind"] == "Aggregate":
        out: dict[str, Any] = {}
        for name, function, arguments in signature["values"]:
            if function not in FUNCTIONS:  # the user's own: only its states can be shown
                out |= {c: states[c] for c in states.column_names if c == name or c.startswith(f"{name}.")}
                continue
            said: dict[str, Any] = {name: function if arguments is None else f"{function}({arguments})"}
            aggregate = Aggregate(**said)
            columns = [name + suffix for suffix in aggregate.specs[0].rule.suffixes]
            (out[name],) = aggregate.finish([one_array(states[c]) for c in columns])
        return out
    if signature["kind"] == "Process":
        return _process_values(signature["state"], states)
    return {name: states[name] for name in states.column_names if not name.startswith("__")}


def _process_values(kind: dict[str, Any] | None, states: pa.Table) -> dict[str, Any]:
    objects = [msgspec.msgpack.decode(s) if s else {} for s in states[STATE].to_pylist()]
    out: dict[str, Any] = {}
    for name, about in properties_of(kind).items():
        # others than simple types are shown as JSON
        arrow = JSON_TYPES.get(about.get("type", "")) if "format" not in about else None
        values = [o.get(name) if isinstance(o, dict) else None for o in objects]
        if arrow is None:
            values = [None if v is None else msgspec.json.encode(v, enc_hook=str).decode() for v in values]
        out[name] = pa.array(values, arrow or pa.string())
    return out
