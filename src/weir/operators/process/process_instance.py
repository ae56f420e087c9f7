"""A Process on a server: calls a user's function once per key, and keeps what it leaves as state.

Where keys are split, a copy has a part of a key's rows anyway, so it may begin before all of them are here: the
function is then called several times, each time with the partial state that it left.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.errors import OperatorError
from weir.hashing import hash_columns
from weir.operators.instance import Context, Instance, failed, keyed_schema, one_array
from weir.operators.process.parts import STATE, PartEntries, decode_part, encode_part
from weir.operators.process.state_types import attributes_check, decoder_of
from weir.operators.time_limit import TimeLimit
from weir.operators.timers import states_in
from weir.rows import Rows, one_batch, row_hashes
from weir.state.columns import completed
from weir.state.segment import DEADLINE, H1, H2, NEVER, entries, tombstones
from weir.state.view import StateView
from weir.values import to_columns, to_python

Hashes = NDArray[np.uint64]


class ProcessInstance(Instance):
    """Calls a user's function once per key, with the key's rows in a defined order."""

    buffers_rows = True

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(context)
        self.operator = operator
        self.batches: list[pa.RecordBatch] = []
        self.absorbed: list[pa.RecordBatch] = []
        kind = self.operator.state
        self._decode = decoder_of(kind, decode_part) if kind else None
        self._encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=encode_part)
        self._check_attributes = attributes_check(kind)
        self._parts = PartEntries(kind, self.node.state, context.view)
        self._written: pa.Table | None = None
        self._partials: pa.Table | None = None
        self._partial = PartialStates()  # where keys are split

    @property
    def _wire(self) -> pa.Schema:
        return keyed_schema(self.node.state)

    def push(self, rows: Rows) -> Iterator[Rows]:
        if len(rows):
            self.batches.append(rows.to_batch(self.node.input))
        return iter(())

    def absorb(self, partial: pa.RecordBatch) -> None:
        self.absorbed.append(partial)

    @property
    def waiting(self) -> int:
        if not self.node.splits or self.operator.waits:
            return 0
        return sum(batch.num_rows for batch in self.batches)

    def work(self, most: int) -> Iterator[Rows]:
        whole = one_batch(self.batches)
        self.batches = [whole[:most]]
        emitted, _ = self._called([])
        if whole.num_rows > most:
            self.batches = [whole[most:]]
        yield from self._counted(emitted)

    def finish(self) -> Iterator[Rows]:
        node, context = self.node, self.context
        written: list[pa.Table] = []
        expired: list[Done] = []
        if context.first:  # before any row is looked at
            written += self._wake(expired)
        if self.batches:
            emitted, tables = self._called(expired)
            written += tables
        else:
            emitted = self._emitted(expired, [])
        if self._partial.states:
            key_hash, key_check, *keys = self._partial.keys().columns
            table = self._data(keys, node.key, self._partial.states)
            self._partials = pa.Table.from_arrays([key_hash, key_check, *table.columns], schema=self._wire)
        if self.absorbed and context.step == node.state_level:
            written.append(self._merged(context.view()))
        self._written = pa.concat_tables(written) if written else None
        yield from self._counted(emitted)

    def _called(self, expired: list[Done]) -> tuple[pa.RecordBatch | None, list[pa.Table]]:
        """Call the function for the rows that are here; return what it and ``expired`` emit, and state entries."""
        node = self.node
        keys, key_hash, key_check, calls = self._by_key()
        self.batches = []
        prior = (
            self._partial.prior(key_hash, key_check)
            if node.splits
            else self._prior(self.context.view(), key_hash, key_check)
        )
        self.report.pairs += len(key_hash) - (len(prior) if node.splits else 0)
        processed = self._call_each(calls, prior, key_hash, key_check)
        emitted = self._emitted(expired, processed)
        if node.splits:
            self._partial.keep(processed, keys, node.key, key_hash, key_check)
            return emitted, []
        kept = [d.number for d in processed]
        if len(kept) < len(key_hash):  # keys whose rows were diverted keep the state they had
            keys = [k.take(pa.array(kept, pa.int64())) for k in keys]
            key_hash, key_check = key_hash[kept], key_check[kept]
        table = self._data(keys, node.key, [d.state for d in processed])
        written = [entries(table, key_hash, key_check, deadline=self._deadlines(len(key_hash)))]
        self.report.keys_delta += len(kept) - sum(number in prior for number in kept)
        if any(d.changes for d in processed):
            elements, more = self._parts.written(key_hash, key_check, [d.changes for d in processed])
            written.append(elements)
            self.report.keys_delta += more
        return emitted, written + self._follow_up(processed, keys, key_hash, key_check)

    def _counted(self, emitted: pa.RecordBatch | None) -> Iterator[Rows]:
        if emitted is not None:
            self.report.rows_out += emitted.num_rows
            yield Rows(emitted)

    def partials(self) -> pa.Table | None:
        if self.absorbed and self.context.step < self.node.state_level:
            tables = [pa.Table.from_batches(self.absorbed)] + (
                [self._partials] if self._partials is not None else []
            )
            return pa.concat_tables(tables)
        return self._partials

    def written(self) -> pa.Table | None:
        return self._written

    def _by_key(
        self,
    ) -> tuple[list[pa.Array], NDArray[np.uint64], NDArray[np.uint64], Iterator[tuple[Any, list[Any]]]]:
        """Key columns, hashes and rows of each key, in canonical order."""
        batch = one_batch(self.batches)
        rows = Rows(batch)
        key_hash, key_check = self._hashes(rows)
        r1, r2 = row_hashes(batch)
        if self.operator.order_by:
            wanted = {f"o{i}": batch.column(c) for i, c in enumerate(self.operator.order_by)}
            ordering = pa.table({"a": key_hash, "b": key_check, **wanted, "y": r1, "z": r2})
            by = [(n, "ascending") for n in ordering.column_names]
            order = pc.sort_indices(ordering, sort_keys=by).to_numpy()
        else:
            order = np.lexsort((r2, r1, key_check, key_hash))
        batch = batch.take(pa.array(order))
        key_hash, key_check = key_hash[order], key_check[order]
        new = np.ones(len(key_hash), np.bool_)
        new[1:] = (key_hash[1:] != key_hash[:-1]) | (key_check[1:] != key_check[:-1])
        first = np.flatnonzero(new)
        keys = [
            batch.column(k).take(pa.array(first)).cast(self.node.state.field(k).type) for k in self.node.key
        ]
        make = namedtuple("Row", batch.schema.names, rename=True)._make  # type: ignore[misc, attr-defined]
        everything = list(map(make, zip(*map(to_python, batch.columns), strict=True)))
        names = [k.to_pylist() for k in keys]
        labels = names[0] if len(names) == 1 else list(zip(*names, strict=True))
        bounds = [*first.tolist(), len(everything)]

        def calls() -> Iterator[tuple[Any, list[Any]]]:
            for i, label in enumerate(labels):
                yield label, everything[bounds[i] : bounds[i + 1]]

        return keys, key_hash[first], key_check[first], calls()

    def _hashes(self, rows: Rows) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return what tells apart the states that rows belong to."""
        return rows.hash(self.node.key), rows.second_hash(self.node.key)

    def _prior(
        self, view: StateView, key_hash: NDArray[np.uint64], key_check: NDArray[np.uint64]
    ) -> dict[int, bytes]:
        """Return the saved state of keys, by their position; expired ones are not among them."""
        table, positions = view.take(*view.find(key_hash, key_check))
        states = table[STATE].to_pylist()
        if self.node.ttl is None:
            return dict(zip(positions.tolist(), states, strict=True))
        alive = table[DEADLINE].to_numpy() > self.context.clock
        return {p: s for p, s, ok in zip(positions.tolist(), states, alive, strict=True) if ok}

    def _call_each(
        self,
        calls: Iterator[tuple[Any, list[Any]]],
        prior: Mapping[int, bytes],
        key_hash: Any,
        key_check: Any,
    ) -> list[Done]:
        """Call the user's function for each key; those that fail are diverted, or raise."""
        processed = []
        with TimeLimit(self.node.declared.timeout) as limit:
            for number, (key, rows) in enumerate(calls):
                limit.calls = number
                handed = Handed(rows)
                try:
                    state = self._load(prior[number]) if number in prior else self._new()
                    if self._parts:
                        self._parts.bind(state, int(key_hash[number]), int(key_check[number]))
                    out = self._process(number, key, handed, state)
                    emitted = [] if out is None else list(out)
                    # a state that can't be saved fails here, with its key and rows at hand
                    saved, changes = self._save(state), self._parts.changes(state) if self._parts else ()
                    processed.append(Done(number, key, rows, emitted, saved, changes))
                except (Exception, SystemExit) as error:
                    self._failed(key, [row._asdict() for row in rows], handed.last, error)
        return processed

    def _failed(self, key: Any, lost: list[Any], row: Any, error: BaseException) -> None:
        """Divert what the user's code failed on, or raise an error that names it."""
        if self.node.declared.on_error != "divert":
            raise failed(self.node, key, row, error) from error
        self.report.diverted += len(lost)
        for one in lost:
            self.context.divert(self.node, key, one, error)

    def _merged(self, view: StateView) -> pa.Table:
        """Partial states of keys that live here, merged with each other and with what was saved."""
        table = pa.Table.from_batches(self.absorbed).combine_chunks()
        key_hash, key_check = table[H1].to_numpy(), table[H2].to_numpy()
        content = hash_columns([one_array(table[STATE])])
        order = np.lexsort((content, key_check, key_hash))
        table, key_hash, key_check = table.take(pa.array(order)), key_hash[order], key_check[order]
        new = np.ones(len(key_hash), np.bool_)
        new[1:] = (key_hash[1:] != key_hash[:-1]) | (key_check[1:] != key_check[:-1])
        first = np.flatnonzero(new)
        prior = self._prior(view, key_hash[first], key_check[first])
        states = table[STATE].to_pylist()
        bounds = [*first.tolist(), len(states)]
        merged: list[bytes] = []
        kept: list[int] = []
        keys = table.select(list(self.node.key)).take(pa.array(first))
        for i in range(len(first)):
            arrived = states[bounds[i] : bounds[i + 1]]
            parts = ([prior[i]] if i in prior else []) + arrived
            try:
                state = self._load(parts[0])
                for part in parts[1:]:
                    state = self.operator.merge(state, self._load(part))
                merged.append(self._save(state))
                kept.append(i)
            except Exception as error:
                key = tuple(keys.slice(i, 1).to_pylist()[0].values())
                lost = [{"partial state": self._plain(part)} for part in arrived]
                self._failed(key[0] if len(key) == 1 else key, lost, lost[0], error)
        self.report.keys_delta += len(kept) - sum(i in prior for i in kept)
        keys, at = keys.take(pa.array(kept, pa.int64())), first[kept]
        data = pa.Table.from_arrays([*keys.columns, pa.array(merged, pa.binary())], schema=self.node.state)
        return entries(data, key_hash[at], key_check[at], deadline=self._deadlines(len(at)))

    def _wake(self, woken: list[Done]) -> list[pa.Table]:
        """Do what is due by now; return state entries, and add what was emitted to ``woken``."""
        # a key that comes back in this very batch has been away, too
        return [] if self.node.ttl is None else self._expire(self.context.view(), woken)

    def _process(self, number: int, key: Any, rows: Sequence[Any], state: Any) -> Iterable[Any] | None:
        return self.operator.process(key, rows, state, *self.extra)

    def _follow_up(
        self,
        processed: list[Done],
        keys: list[pa.Array],
        key_hash: NDArray[np.uint64],
        key_check: NDArray[np.uint64],
    ) -> list[pa.Table]:
        """Return more state entries of keys that have been processed."""
        return []

    def _expire(self, view: StateView, expired: list[Done]) -> list[pa.Table]:
        due = states_in(view.due(self.context.previous_clock, self.context.clock))
        if not due.num_rows:
            return []
        self.report.keys_delta -= due.num_rows
        if self.operator.has("expired"):
            names = [due[k].to_pylist() for k in self.node.key]
            labels = names[0] if len(names) == 1 else list(zip(*names, strict=True))
            hashes = due[H1].to_pylist(), due[H2].to_pylist()
            for key, state, *of in zip(labels, due[STATE].to_pylist(), *hashes, strict=True):
                try:
                    last = self._load(state)
                    if self._parts:
                        self._parts.bind(last, *of)
                    out = self.operator.expired(key, last)
                    expired.append(Done(-1, key, [], [] if out is None else list(out), state))
                except Exception as error:
                    self._failed(key, [{"expired state": self._plain(state)}], None, error)
        key_hash, key_check = due[H1].to_numpy(), due[H2].to_numpy()
        gone = [tombstones(key_hash, key_check, self.node.state)]
        if self._parts:
            gone.append(self._parts.gone(key_hash, key_check))
            self.report.keys_delta -= gone[-1].num_rows
        return gone

    def _emitted(self, expired: list[Done], processed: list[Done]) -> pa.RecordBatch | None:
        """Return all rows that were emitted; keys whose rows do not fit the declared output are diverted, or raise."""

        def batch(*done: Done) -> pa.RecordBatch | None:
            return emitted_batch(self.node.name, self.node.rows_out, [row for d in done for row in d.out])

        try:
            return batch(*expired, *processed)
        except OperatorError:
            if self.node.declared.on_error != "divert":
                raise
        for part in (expired, processed):
            for d in list(part):
                try:
                    batch(d)
                except OperatorError as error:
                    part.remove(d)
                    lost = [row._asdict() for row in d.rows] or [{"expired state": self._plain(d.state)}]
                    self._failed(d.key, lost, None, error)
        return batch(*expired, *processed)

    def _plain(self, state: bytes) -> Any:
        """Return a saved state as plain data, for a dead letter."""
        return msgspec.msgpack.decode(state) if state else None

    def _new(self) -> Any:
        return self.operator.state() if self.operator.state else None

    def _load(self, data: bytes) -> Any:
        return self._decode.decode(data) if self._decode else None

    def _save(self, state: Any) -> bytes:
        if self._decode is None:
            return b""
        self._check_attributes(state)
        return self._encode.encode(state)

    def _data(self, heads: Sequence[pa.Array], names: Sequence[str], states: list[bytes]) -> pa.Table:
        """Return states behind the columns that are before them; they are neither parts nor timers."""
        return completed(pa.table([*heads, pa.array(states, pa.binary())], [*names, STATE]), self.node.state)

    def _deadlines(self, n: int) -> NDArray[np.int64]:
        ttl = self.node.ttl
        return np.full(n, NEVER if ttl is None else self.context.clock + ttl)


@dataclass(frozen=True)
class Done:
    """One call of the user's code that went well: the key, its rows, what it emitted, its state afterwards."""

    number: int  # of the key in this batch; −1 for a key that expired
    key: Any
    rows: list[Any]
    out: list[Any]
    state: bytes
    changes: Sequence[Any] = ()  # of lists and maps in its state


class Handed(Sequence[Any]):
    """A key's rows, remembering the last one looked at, so that an error can name it."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.last: Any = rows[0] if rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        chosen = self._rows[at]
        if not isinstance(at, slice):
            self.last = chosen
        return chosen

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.last = row
            yield row


def emitted_batch(name: str, schema: pa.Schema, emitted: list[Any]) -> pa.RecordBatch | None:
    """Return rows that an operator emitted as a batch of its declared output."""
    if not emitted:
        return None
    if not len(schema):
        raise OperatorError(
            f"operator {name!r} emits rows ({emitted[0]!r}) but declares no output; "
            'declare it: output={"column": "type"}'
        )
    try:
        columns = to_columns(emitted, schema, "it emitted")
    except ValueError as error:
        raise OperatorError(f"operator {name!r}: {error}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class PartialStates:
    """Grows as keys come: the keys in the order of their first rows, and the state of each."""

    def __init__(self) -> None:
        self._keys: list[pa.Table] = []
        self._at: dict[tuple[int, int], int] = {}  # key → where its state is; made when a key may come again
        self.states: list[bytes] = []

    def prior(self, key_hash: Hashes, key_check: Hashes) -> dict[int, bytes]:
        """Return the states of those keys that have one, by their position."""
        if not self.states:
            return {}
        if len(self._at) < len(self.states):
            keys = self.keys()
            pairs = zip(keys[H1].to_pylist(), keys[H2].to_pylist(), strict=True)
            self._at = {key: at for at, key in enumerate(pairs)}
        at = map(self._at.get, zip(key_hash.tolist(), key_check.tolist(), strict=True))
        return {number: self.states[place] for number, place in enumerate(at) if place is not None}

    def keep(
        self,
        processed: Sequence[Done],
        keys: Sequence[pa.Array],
        names: Sequence[str],
        key_hash: Hashes,
        key_check: Hashes,
    ) -> None:
        """Take the states of keys that were worked on; ``processed`` says at which positions these are."""
        fresh = list(processed)
        if self._at:
            fresh = []
            for done in processed:
                at = self._at.get((int(key_hash[done.number]), int(key_check[done.number])))
                if at is None:
                    fresh.append(done)
                else:
                    self.states[at] = done.state
        chosen = np.array([done.number for done in fresh], np.int64)
        columns = [
            pa.array(key_hash[chosen]),
            pa.array(key_check[chosen]),
            *(key.take(pa.array(chosen)) for key in keys),
        ]
        self._keys.append(pa.table(columns, [H1, H2, *names]))
        self.states += [done.state for done in fresh]

    def keys(self) -> pa.Table:
        """Return the hashes and the columns of all keys, in the order of :attr:`states`."""
        return pa.concat_tables(self._keys)
