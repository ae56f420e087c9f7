"""Entries of lists and maps: read when a Process asks for them, written when it has changed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weir.operators.process.parts import MISSING, Part, encode_part, identity, parts_of
from weir.operators.process.state_types import decoder_of
from weir.state.columns import completed
from weir.state.segment import H1, H2, entries, tombstones
from weir.state.view import StateView

STATE, OWNER, PART, AT = "state", "owner", "part", "at"
PART_COLUMNS = ((OWNER, pa.uint64()), (PART, pa.string()), (AT, pa.binary()))
U64 = NDArray[np.uint64]
Change = tuple[str, bytes, bytes | None]  # field, where in it, the element; None if it is gone


class PartEntries:
    """The lists and maps in the state of one Process, on one server in one step."""

    def __init__(self, kind: Any, schema: pa.Schema, view: Callable[[], StateView]) -> None:
        self._parts = {
            name: (decoder_of(element, _refuse), key) for name, (_, key, element) in parts_of(kind).items()
        }
        self._schema, self._view = schema, view
        self._encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=encode_part)
        self._open: StateView | None = None
        self._gone: set[int] = set()  # elements of keys that have expired in this very step

    def __bool__(self) -> bool:
        return bool(self._parts)

    def bind(self, state: Any, key_hash: int, key_check: int) -> None:
        """Let the lists and maps of a key's state find their elements."""
        for name, (decoder, key) in self._parts.items():
            part: Part = getattr(state, name)
            part.bind(
                partial(self._load, name, decoder, key_hash, key_check),
                partial(self._all, name, decoder, key_hash, key_check),
                key,
            )

    def changes(self, state: Any) -> list[Change]:
        """Return what has changed in a state's lists and maps."""
        return [
            (name, at, None if value is MISSING else self._encode.encode(value))
            for name in self._parts
            for at, value in getattr(state, name).changes()
        ]

    def written(
        self, key_hash: U64, key_check: U64, changes: Sequence[Sequence[Change]]
    ) -> tuple[pa.Table, int]:
        """Return the entries that changes of some keys make, and how many more there are now."""
        flat = [(number, *change) for number, some in enumerate(changes) for change in some]
        numbers = np.array([number for number, *_ in flat], np.int64)
        owners = key_check[numbers]
        route = key_hash[numbers]
        own = np.array(
            [identity(int(o), n, at) for o, (_, n, at, _) in zip(owners, flat, strict=True)], np.uint64
        )
        dead = np.array([value is None for *_, value in flat], np.bool_)
        before = self._state.find(route, own)[0] >= 0
        before &= ~np.isin(own, np.fromiter(self._gone, np.uint64, len(self._gone)))
        table = pa.table(
            {
                STATE: pa.array([value for *_, value in flat], pa.binary()),
                OWNER: pa.array(owners),
                PART: pa.array([name for _, name, _, _ in flat], pa.string()),
                AT: pa.array([at for _, _, at, _ in flat], pa.binary()),
            }
        )
        written = entries(completed(table, self._schema), route, own, dead=dead)
        added, gone = int((~dead & ~before).sum()), int((dead & before).sum())
        return written.filter(pa.array(~dead | before)), added - gone

    def gone(self, key_hash: U64, key_check: U64) -> pa.Table:
        """Return what marks all elements of some keys as gone."""
        elements = self._state.all_of(np.unique(key_hash))
        elements = elements.filter(pa.compute.is_in(elements[OWNER], pa.array(key_check)))
        self._gone.update(elements[H2].to_pylist())
        return tombstones(elements[H1].to_numpy(), elements[H2].to_numpy(), self._schema)

    @property
    def _state(self) -> StateView:
        if self._open is None:
            self._open = self._view()
        return self._open

    def _load(
        self, name: str, decoder: Any, key_hash: int, key_check: int, wanted: Iterable[bytes]
    ) -> list[Any]:
        own = np.array([identity(key_check, name, at) for at in wanted], np.uint64)
        table, positions = self._state.take(*self._state.find(np.full(len(own), key_hash, np.uint64), own))
        out = [MISSING] * len(own)
        for position, data in zip(positions.tolist(), table[STATE].to_pylist(), strict=True):
            if int(own[position]) not in self._gone:
                out[position] = decoder.decode(data)
        return out

    def _all(self, name: str, decoder: Any, key_hash: int, key_check: int) -> Iterator[tuple[bytes, Any]]:
        elements = self._state.all_of(np.array([key_hash], np.uint64))
        columns = (elements[c].to_pylist() for c in (OWNER, PART, AT, STATE, H2))
        for owner, part, at, data, own in zip(*columns, strict=True):
            if owner == key_check and part == name and own not in self._gone:
                yield at, decoder.decode(data)


def _refuse(kind: Any, value: Any) -> Any:
    raise NotImplementedError("a list or map of lists or maps cannot be stored element by element")


def whole_states(table: pa.Table, parts: dict[str, str]) -> pa.Table:
    """Return the entries of keys alone, with the elements of their lists and maps put back, for people to read.

    ``parts`` has the names of these fields, and whether each is a "list" or a "map".
    """
    if H1 not in table.column_names:
        return table
    main = table.filter(pa.compute.is_null(table[PART]))
    elements: dict[tuple[int, int, str], dict[Any, Any]] = {}
    rest = table.filter(pa.compute.is_valid(table[PART]))
    columns = (rest[c].to_pylist() for c in (H1, OWNER, PART, AT, STATE))
    for key_hash, owner, part, at, data in zip(*columns, strict=True):
        of = elements.setdefault((key_hash, owner, part), {})
        of[msgspec.msgpack.decode(at)] = msgspec.msgpack.decode(data)
    states = []
    for key_hash, key_check, data in zip(*(main[c].to_pylist() for c in (H1, H2, STATE)), strict=True):
        state = msgspec.msgpack.decode(data)
        for name, kind in parts.items():
            of = elements.get((key_hash, key_check, name), {})
            state[name] = (
                [of[at] for at in sorted(of)] if kind == "list" else {str(k): v for k, v in of.items()}
            )
        states.append(msgspec.msgpack.encode(state))
    column = main.column_names.index(STATE)
    return main.set_column(column, main.schema.field(column), pa.array(states, pa.binary()))
