"""Where keys live, and which are hot: read from a commit's state files, tables and statistics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.engine.checkpoint import load_arrays, read_table
from weir.engine.documents import Commit, TableRef
from weir.engine.inspect.inspection import described_operator, readable_state
from weir.engine.progress import Progress
from weir.errors import ParameterError
from weir.graph.model import OperatorSignature
from weir.hashing import hash_columns
from weir.locality.saved import affinity, hottest
from weir.state.segment import H1
from weir.state.storage import Storage
from weir.state.view import StateView

HOTTEST, AFFINITY, ENTRIES = 20, 8, 10  # how many of each are shown
Hashes = NDArray[np.uint64]


def hottest_keys(storage: Storage, commit: Commit) -> dict[str, list[dict[str, Any]]]:
    """Return the keys with most recent rows and their homes, of every operator whose homes are learnt."""
    if commit.manager is None:
        return {}
    saved = load_arrays(storage, commit.manager)
    out = {}
    for name in commit.signature.operators:
        hashes, rows = hottest(saved, name, HOTTEST)
        if len(hashes):
            out[name] = _counted(storage, commit, name, hashes, rows)
    return out


def find_key(storage: Storage, commit: Commit, text: str) -> list[dict[str, Any]]:
    """Return where a key lives on every operator that has it: server, since when, affinity, state.

    ``text`` is the key as people write it; the parts of a key of several columns are separated by commas, or given
    as a JSON list.
    """
    saved = None if commit.manager is None else load_arrays(storage, commit.manager)
    out = []
    for name in commit.signature.operators:
        described = described_operator(commit, name)
        key = _parse(text, described)
        if key is None:
            continue
        key_hash = hash_columns(key)
        entries = _entries(storage, commit, name, key_hash)
        if not entries:
            continue
        server, states = entries[0]
        one = int(key_hash[0])
        out.append(
            {
                "operator": name,
                "key": described.key_names,
                "servers": [s for s, _ in entries],
                "host": _host(commit, server),
                **_since(storage, commit.tables.get(name), one),
                "state": readable_state(described, states).to_pylist()[:ENTRIES],
                "affinity": [] if saved is None else _affinity(storage, commit, saved, name, one),
            }
        )
    return json.loads(json.dumps(out, default=str))  # states may hold what JSON has no type for


def _parse(text: str, described: OperatorSignature) -> list[pa.Array] | None:
    """Return a key's columns from text, None if it is no key of this operator."""
    schema, names = described.entries, described.key_names
    parts: list[Any] = [text]
    if len(names) > 1:
        try:
            listed = text.lstrip().startswith("[")
            parts = json.loads(text) if listed else [p.strip() for p in text.split(",")]
        except json.JSONDecodeError as error:
            raise ParameterError(f"{text}: begins like a JSON list, but is none ({error})") from None
    if not isinstance(parts, list) or len(parts) != len(names):
        return None
    try:
        kinds = [schema.field(name).type for name in names]
        return [pa.array([str(part)]).cast(kind) for part, kind in zip(parts, kinds, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None  # a text where this operator has numbers


def _entries(storage: Storage, commit: Commit, name: str, hashes: Hashes) -> list[tuple[int, pa.Table]]:
    """Return the servers that have state of some keys, and what they have."""
    schema, out = described_operator(commit, name).entries, []
    for server, refs in enumerate(commit.manifest.get(name, [])):
        table = StateView(storage, refs, schema).all_of(hashes) if refs else None
        if table is not None and table.num_rows:
            out.append((server, table))
    return out


def _counted(
    storage: Storage, commit: Commit, name: str, hashes: Hashes, rows: NDArray[Any]
) -> list[dict[str, Any]]:
    """Return keys that have state, their homes, and their rows."""
    columns = described_operator(commit, name).key_names
    homes: dict[int, dict[str, Any]] = {}
    for server, table in _entries(storage, commit, name, np.unique(hashes)):
        keys = [[str(row[k]) for k in columns] for row in table.select(columns).to_pylist()]
        for h, key in zip(table[H1].to_pylist(), keys, strict=True):
            homes[h] = {"key": ", ".join(key), "server": server, "host": _host(commit, server)}
    counts = zip(hashes.tolist(), rows.tolist(), strict=True)
    return [{**homes[h], "rows": round(count, 1)} for h, count in counts if h in homes]


def _affinity(
    storage: Storage, commit: Commit, saved: dict[str, Any], name: str, key_hash: int
) -> list[dict[str, Any]]:
    out = []
    for other, (hashes, rows) in affinity(saved, name, key_hash, AFFINITY).items():
        if len(hashes) and other in commit.signature.operators:
            out += [{"operator": other, **one} for one in _counted(storage, commit, other, hashes, rows)]
    return sorted(out, key=lambda one: -one["rows"])[:AFFINITY]


def _since(storage: Storage, table: TableRef | None, key_hash: int) -> dict[str, Any]:
    """Return by what a key has its home, and since which batch: the newest part of the table that lists it."""
    for ref in reversed(table.files if table is not None else []):
        entries = read_table(storage, ref)
        at = np.flatnonzero(entries["hash"].to_numpy() == np.uint64(key_hash))
        if len(at):
            if entries["instance"][int(at[0])].as_py() < 0:
                break  # it has left the table
            return {"by": "table", "since_batch": int(ref.name.split("/")[-2])}
    return {"by": "hash", "since_batch": None}


def _host(commit: Commit, server: int) -> str:
    did = commit.progress or Progress()
    if server < len(did.places):
        return did.places[server]["host"]
    return did.servers[server].host if server < len(did.servers) else ""
