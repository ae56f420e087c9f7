"""A Process on a server: calls a user's function once per key, and keeps what it leaves as state.

What a batch needs of the saved state is fetched in one look for all its keys. These are then worked on some hundred at
a time: their states are decoded, the function is called for each, and what it left is encoded and checked.

Where keys are split, a copy has a part of a key's rows anyway, so it may begin before all of them are here: the
function is then called several times, each time with the partial state that it left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, compress, repeat
from operator import ne
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.errors import OperatorError
from weir.hashing import hash_columns
from weir.operators.grouped import sort_key
from weir.operators.instance import Context, Instance, TimeLimit, failed, keyed_schema, one_array
from weir.operators.process.parts import STATE, Change, PartEntries, state_type
from weir.operators.process.state_types import cleared
from weir.operators.timers import states_in
from weir.rows import Rows, one_batch, row_hashes
from weir.state.index import by_group, group_rows, hash_order, sort_within
from weir.state.segment import DEADLINE, H1, H2, NEVER, completed, entries, tombstones
from weir.state.view import StateView
from weir.values import Row, rows_of, to_columns, to_python

Hashes = NDArray[np.uint64]
Index = NDArray[np.int64]
Given = Callable[[range], Iterable[Any]]  # what a function gets for each of some keys, besides its state
Lost = Callable[[int], list[Any]]  # what becomes dead letters if the call for a key, by its number, fails
AT_ONCE = 256  # keys whose states are decoded at a time,
BYTES_AT_ONCE = 1 << 20  # or fewer: some so many bytes of them


class Keys:
    """The keys of some rows in the order of their hashes, each with its rows."""

    def __init__(self, columns: list[pa.Array], key_hash: Hashes, key_check: Hashes) -> None:
        self.columns, self.key_hash, self.key_check = columns, key_hash, key_check
        values = [to_python(column) for column in columns]
        self.labels: list[Any] = values[0] if len(values) == 1 else list(zip(*values, strict=True))
        self.leads = np.empty(0, np.int64)  # a row of each, as rows came
        self.rows: list[Row] = []
        self.bounds: list[int] = []

    def __len__(self) -> int:
        return len(self.key_hash)

    def rows_of(self, number: int) -> list[Row]:
        return self.rows[self.bounds[number] : self.bounds[number + 1]]

    def rows_of_some(self, numbers: range) -> Iterator[list[Row]]:
        """Yield the rows of each of some keys."""
        bounds = self.bounds[numbers.start : numbers.stop + 1]
        return map(self.rows.__getitem__, map(slice, bounds, bounds[1:]))

    def some(self, numbers: Sequence[int]) -> tuple[list[pa.Array], Hashes, Hashes]:
        """Return columns and hashes of the keys with these numbers."""
        if len(numbers) == len(self):
            return self.columns, self.key_hash, self.key_check
        at = np.array(numbers, np.int64)
        return [c.take(pa.array(at)) for c in self.columns], self.key_hash[at], self.key_check[at]


class Calls:
    """What calls of a user's code came to: rows, and a state for each key whose call did not fail."""

    def __init__(
        self,
        labels: Sequence[Any] = (),
        lost: Lost = lambda number: [],
        at: Callable[[int, BaseException], Any] = lambda number, error: None,
    ) -> None:
        self.labels, self.lost = labels, lost
        self.at = at  # what an error says that it was at, for the call of a key by its number
        self.key_hash: Hashes | None = None  # of the keys, where calls of theirs are to be timed
        self.numbers: list[int] = []  # of the keys, in the order of their calls
        self.states: list[bytes] = []
        self.out: list[Any] = []  # rows of all calls
        self.ends: list[int] = []  # where in it those of each call end
        self.changes: dict[int, list[Change]] = {}  # key's number → of long lists and maps

    def add(self, number: int, state: bytes, out: Any) -> None:
        """Note one call."""
        if out is not None:
            self.out.extend(out)
        self.numbers.append(number)
        self.states.append(state)
        self.ends.append(len(self.out))

    def drop(self, failing: set[int]) -> None:
        """Forget the calls for keys with these numbers."""
        rows = [self.out[a:b] for a, b in zip([0, *self.ends[:-1]], self.ends, strict=True)]
        calls = list(zip(self.numbers, self.states, rows, strict=True))
        self.numbers, self.states, self.out, self.ends = [], [], [], []
        for number, state, out in calls:
            if number not in failing:
                self.add(number, state, out)


class BufferedInstance(Instance):
    """Puts rows and partial states by until all have come, and then works on them key by key."""

    buffers_rows = True

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(context)
        self.operator = operator
        self.batches: list[Rows] = []
        self.absorbed: list[pa.RecordBatch] = []
        self._written: pa.Table | None = None
        self._partials: pa.Table | None = None

    def push(self, rows: Rows) -> Iterator[Rows]:
        if len(rows):
            self.batches.append(Rows(rows.to_batch(self.node.input), key_hash=rows.hash(self.node.key)))
        return iter(())

    def absorb(self, partial: pa.RecordBatch) -> None:
        self.absorbed.append(partial)

    def partials(self) -> pa.Table | None:
        if self.absorbed and self.context.step < self.node.state_level:
            tables = [pa.Table.from_batches(self.absorbed)] + (
                [self._partials] if self._partials is not None else []
            )
            return pa.concat_tables(tables)
        return self._partials

    def written(self) -> pa.Table | None:
        return self._written

    def _counted(self, emitted: pa.RecordBatch | None) -> Iterator[Rows]:
        if emitted is not None:
            self.report.rows_out += emitted.num_rows
            yield Rows(emitted)

    def _arrived(self) -> Rows:
        """Return the rows that were put by, as one batch."""
        parts, self.batches = self.batches, []
        hashes = [part.hash(self.node.key) for part in parts]
        return Rows(one_batch([part.batch for part in parts]), key_hash=np.concatenate(hashes))

    def _sorted(self) -> tuple[pa.RecordBatch, Index, Index, list[pa.Array], Hashes, Hashes]:
        """Return rows, their order by key, and where in it each key begins; the keys' columns and hashes."""
        rows = self._arrived()
        batch, (key_hash, key_check) = rows.batch, self._hashes(rows)
        order, first = in_order(batch, key_hash, key_check, self.operator.order_by, self.node.key)
        leads = order[first]
        columns = [
            batch.column(k).take(pa.array(leads)).cast(self.node.state.field(k).type) for k in self.node.key
        ]
        return batch, order, first, columns, key_hash[leads], key_check[leads]

    def _hashes(self, rows: Rows) -> tuple[Hashes, Hashes]:
        """Return what tells apart the states that rows belong to."""
        return rows.hash(self.node.key), self.node.second_hash(rows)

    def _failed(self, key: Any, lost: list[Any], row: Any, error: BaseException) -> None:
        """Divert what the user's code failed on, or raise an error that names it."""
        if self.node.declared.on_error != "divert":
            raise failed(self.node, key, row, error) from error
        self.report.diverted += len(lost)
        for one in lost:
            self.context.divert(self.node, key, one, error)

    def _deadlines(self, n: int) -> NDArray[np.int64]:
        ttl = self.node.ttl
        return np.full(n, NEVER if ttl is None else self.context.clock + ttl)


class ProcessInstance(BufferedInstance):
    """Calls a user's function once per key, with the key's rows in a defined order."""

    def __init__(self, operator: Any, context: Context) -> None:
        super().__init__(operator, context)
        self._type = state_type(operator.state, operator.mergeable)
        self._parts = PartEntries(operator.state, self.node.state, context.view)
        self._partial = PartialStates()  # where keys are split

    @property
    def waiting(self) -> int:
        if not self.node.splits or self.operator.waits:
            return 0
        return sum(map(len, self.batches))

    def work(self, most: int) -> Iterator[Rows]:
        whole = self._arrived()
        self.batches = [whole.slice(0, most)]
        emitted, _ = self._called([])
        if len(whole) > most:
            self.batches = [whole.slice(most, len(whole))]
        yield from self._counted(emitted)

    def finish(self) -> Iterator[Rows]:
        node, context = self.node, self.context
        written: list[pa.Table] = []
        woken: list[Calls] = []
        if context.first:  # before any row is looked at
            woken, written = self._wake()
        if self.batches:
            emitted, tables = self._called(woken)
            written += tables
        else:
            emitted = self._emitted(*woken)
        if self._partial.states:
            key_hash, key_check, *keys = self._partial.keys().columns
            table = self._data(keys, node.key, self._partial.states)
            wire = keyed_schema(node.state)
            self._partials = pa.Table.from_arrays([key_hash, key_check, *table.columns], schema=wire)
        if self.absorbed and context.step == node.state_level:
            written.append(self._merged(context.view()))
        self._written = pa.concat_tables(written) if written else None
        yield from self._counted(emitted)

    def _called(self, woken: list[Calls]) -> tuple[pa.RecordBatch | None, list[pa.Table]]:
        """Call the function for the rows that are here; return what it and calls before emit, and state entries."""
        node, report = self.node, self.report
        with self.spending("encoding"):
            keys = self._by_key()
        if node.splits:
            prior = self._partial.prior(keys.key_hash, keys.key_check)
            report.pairs += prior.count(None)
        else:
            with self.spending("fetching"):
                prior = self._prior(self.context.view(), keys)
            report.pairs += len(keys)
        calls = self._process_each(keys, prior)
        with self.spending("encoding"):
            emitted = self._emitted(*woken, calls)
        if node.splits:
            self._partial.keep(calls, keys, node.key)
            return emitted, []
        report.keys_delta += prior.count(None)
        if len(calls.numbers) < len(keys):
            report.keys_delta += sum(prior[n] is None for n in calls.numbers) - prior.count(None)
        with self.spending("writing"):
            written = [self._saved(keys, calls, prior)]
            if calls.changes:  # but for those of keys whose rows were diverted, which keep what they had
                kept = set(calls.numbers)
                elements, more = self._parts.written((n, c) for n, c in calls.changes.items() if n in kept)
                written.append(elements)
                report.keys_delta += more
            return emitted, written + self._follow_up(keys, calls)

    def _saved(self, keys: Keys, calls: Calls, prior: Sequence[bytes | None]) -> pa.Table:
        """Return the entries of keys whose state has changed, or whose time starts anew."""
        numbers, states = calls.numbers, calls.states
        gone = None
        if self.operator.state is not None and b"" in states:
            forgotten = [n for n, state in zip(numbers, states, strict=True) if not state]
            self.report.keys_delta -= len(forgotten)  # those that were new have been counted, too
            _, key_hash, key_check = keys.some([n for n in forgotten if prior[n] is not None])
            gone = tombstones(key_hash, key_check, self.node.state)
            numbers, states = list(compress(numbers, states)), list(filter(None, states))
        if self.node.ttl is None:
            changed = list(map(ne, states, map(prior.__getitem__, numbers)))
            numbers, states = list(compress(numbers, changed)), list(compress(states, changed))
        columns, key_hash, key_check = keys.some(numbers)
        table = self._data(columns, self.node.key, states)
        saved = entries(table, key_hash, key_check, deadline=self._deadlines(len(numbers)))
        return saved if gone is None else pa.concat_tables([gone, saved])

    def _by_key(self) -> Keys:
        """Return the keys of the rows that are here, in the order of their hashes; rows in canonical order."""
        batch, order, first, columns, key_hash, key_check = self._sorted()
        keys = Keys(columns, key_hash, key_check)
        keys.leads, keys.bounds = order[first], [*first.tolist(), batch.num_rows]
        keys.rows = list(rows_of(batch.take(pa.array(order))))
        return keys

    def _prior(self, view: StateView, keys: Keys) -> list[bytes | None]:
        """Return the saved state of each key; None where there is none, or it has expired."""
        columns = [STATE] if self.node.ttl is None else [STATE, DEADLINE]
        found = view.look_up(keys.key_hash, keys.key_check, columns)
        states = found[STATE]
        if self.node.ttl is not None:
            states = pc.if_else(pc.greater(found[DEADLINE], self.context.clock), states, None)
        return list(states.to_pylist())

    def _process_each(self, keys: Keys, prior: Sequence[bytes | None]) -> Calls:
        """Call the user's function for each key that has rows."""
        calls = Calls(
            keys.labels,
            lambda number: [row._asdict() for row in keys.rows_of(number)],
            lambda number, error: _looked_at(error, keys.rows_of(number)),
        )
        if self._parts:
            self._parts.begin(keys.key_hash, keys.key_check)
        calls.key_hash = keys.key_hash
        self._call_each(self.operator.process, keys.rows_of_some, prior, calls)
        return calls

    def _call_each(
        self, function: Callable[..., Any], given: Given, prior: Sequence[bytes | None], calls: Calls
    ) -> None:
        """Call a function of the user's for each key; those that fail are diverted, or raise."""
        start, most = 0, AT_ONCE
        with TimeLimit(self.node.declared.timeout) as limit:
            while start < len(prior):
                end = min(start + most, len(prior))
                before = len(calls.states)
                self._call_some(function, given, prior, range(start, end), calls, limit)
                size = sum(map(len, calls.states[before:]))
                most = max(1, min(AT_ONCE, BYTES_AT_ONCE * (end - start) // max(1, size)))
                start = end

    def _call_some(
        self,
        function: Callable[..., Any],
        given: Given,
        prior: Sequence[bytes | None],
        some: range,
        calls: Calls,
        limit: TimeLimit,
    ) -> None:
        """Decode the states of some keys, call the function for each of them, encode what it has left."""
        out, began = calls.out, time.perf_counter()
        failing: list[tuple[int, BaseException]] = []
        ends: list[int] = []
        limit.begin(ends)
        try:
            states = self._load(prior, some)
        except Exception as error:  # a type of the user's that refuses what it was
            for number in some if len(some) > 1 else ():
                self._call_some(function, given, prior, range(number, number + 1), calls, limit)
            if len(some) > 1:
                return
            states, failing = [], [(some.start, error)]
        loaded, fetched = time.perf_counter(), self._parts.seconds
        before, labels = len(out), calls.labels[some.start : some.stop]
        calling = map(function, labels, given(some), states, *self._arguments(some))
        clock = None if self.key_times is None or calls.key_hash is None else [loaded]
        cleared.states = []
        for number in some[: len(states)]:
            try:
                emitted = next(calling)
                if emitted is not None:
                    out.extend(emitted)
                ends.append(len(out))
                if clock is not None:
                    clock.append(time.perf_counter())
            except (Exception, SystemExit) as error:
                clock = None
                del out[ends[-1] if ends else before :]
                failing.append((number, error))
                if self.node.declared.on_error != "divert":
                    break
                limit.begin(ends)
        called, fetched = time.perf_counter(), self._parts.seconds - fetched
        if clock is not None and self.key_times is not None and calls.key_hash is not None:
            self.key_times.append((calls.key_hash[some.start : some.stop], np.diff(clock).tolist()))
        done: Sequence[int] = some
        if failing:
            lost = {number for number, _ in failing}
            done = [number for number in some if number not in lost][: len(ends)]
            states = [states[number - some.start] for number in done]
        then, cleared.states = {id(state): copy for state, copy in cleared.states}, None
        self._keep(calls, done, ends, states, failing, then)
        self.report.encoding += time.perf_counter() - called + loaded - began
        self.report.fetching += fetched  # when the function asked for elements
        self.report.calling += called - loaded - fetched
        for number, why in failing:
            self._failed(calls.labels[number], calls.lost(number), calls.at(number, why), why)

    def _load(self, prior: Sequence[bytes | None], some: range) -> list[Any]:
        """Return the states of some keys."""
        load, new, saved = self._type.load, self._type.new, prior[some.start : some.stop]
        if None in saved:
            states = [new() if data is None else load(data) for data in saved]
        else:
            states = list(map(load, saved))  # type: ignore[arg-type]
        if self._parts:
            for number, state in zip(some, states, strict=True):
                self._parts.bind(state, number)
        return states

    def _encoded(self, states: list[Any]) -> tuple[list[bytes], list[tuple[int, Exception]]]:
        """Return states as they are saved, and which of them can't be, by their positions, and why."""
        bad: list[tuple[int, Exception]] = []
        try:
            saved = list(map(self._type.save, states))
            return saved, list(self._type.wrong(states, saved))
        except Exception:  # one after the other, to see which one it is
            saved = []
            for at, state in enumerate(states):
                try:
                    saved.append(self._type.save(state))
                    bad += ((at, why) for _, why in self._type.wrong([state], saved[-1:]))
                except Exception as error:
                    saved.append(b"")
                    bad.append((at, error))
            return saved, bad

    def _keep(
        self,
        calls: Calls,
        numbers: Sequence[int],
        ends: list[int],
        states: list[Any],
        failing: list[Any],
        cleared: dict[int, Any],
    ) -> None:
        """Encode what calls have left, with what they emitted; a state that can't be saved is failing.

        ``cleared`` are states that were cleared, by identity, as they were then: one that still is so is not kept.
        """
        wrong: set[int] = set()
        saved, bad = self._encoded(states)
        for at, state in enumerate(states) if cleared else ():
            if id(state) not in cleared:
                continue
            if self.node.splits or self.node.window is not None:
                where = "an event-time window" if self.node.window else "routing that splits keys"
                bad.append(
                    (
                        at,
                        OperatorError(
                            f"clear() of a state behind {where}, which is one of several of its key"
                        ),
                    )
                )
            elif saved[at] == self._type.save(cleared[id(state)]):
                saved[at] = b""  # nothing is kept
        for at, why in bad:
            wrong.add(numbers[at])
            failing.append((numbers[at], why))
        if self._parts:
            for number, state in zip(numbers, states, strict=True):
                try:
                    if number not in wrong and (changes := self._parts.changes(state, number)):
                        calls.changes[number] = changes
                except Exception as error:
                    wrong.add(number)
                    failing.append((number, error))
        calls.numbers += numbers
        calls.states += saved
        calls.ends += ends
        if wrong:
            calls.drop(wrong)

    def _arguments(self, numbers: Sequence[int]) -> list[Iterable[Any]]:
        """Return what the function gets besides rows and state: of each argument, those for some keys."""
        return list(map(repeat, self.extra))

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
        leads = table.select(list(self.node.key)).take(pa.array(first))
        keys = Keys([one_array(c) for c in leads.columns], key_hash[first], key_check[first])
        prior = self._prior(view, keys)
        states = table[STATE].to_pylist()
        bounds = [*first.tolist(), len(states)]
        merged = Calls()

        def lose(number: int, error: Exception) -> None:
            lost = [{"partial state": self._plain(p)} for p in states[bounds[number] : bounds[number + 1]]]
            self._failed(keys.labels[number], lost, lost[0], error)

        for start in range(0, len(prior), AT_ONCE):
            whole: dict[int, Any] = {}
            for number in range(start, min(start + AT_ONCE, len(prior))):
                saved, arrived = prior[number], states[bounds[number] : bounds[number + 1]]
                try:
                    parts = map(self._type.load, arrived if saved is None else [saved, *arrived])
                    whole[number] = reduce(self.operator.merge, parts)
                except Exception as error:
                    lose(number, error)
            encoded, bad = self._encoded(list(whole.values()))
            wrong = {list(whole)[at]: why for at, why in bad}
            for number, data in zip(whole, encoded, strict=True):
                if number in wrong:
                    lose(number, wrong[number])
                else:
                    merged.add(number, data, None)
        self.report.keys_delta += sum(prior[number] is None for number in merged.numbers)
        return self._saved(keys, merged, prior)

    def _wake(self) -> tuple[list[Calls], list[pa.Table]]:
        """Do what is due by now; return calls that were made, and state entries."""
        # a key that comes back in this very batch has been away, too
        return ([], []) if self.node.ttl is None else self._expire(self.context.view())

    def _follow_up(self, keys: Keys, calls: Calls) -> list[pa.Table]:
        """Return more state entries of keys for which calls were made."""
        return []

    def _expire(self, view: StateView) -> tuple[list[Calls], list[pa.Table]]:
        due = states_in(view.due(self.context.previous_clock, self.context.clock))
        if not due.num_rows:
            return [], []
        self.report.keys_delta -= due.num_rows
        key_hash, key_check = due[H1].to_numpy(), due[H2].to_numpy()
        calls = Calls()
        if self.operator.has("expired"):
            keys = Keys([one_array(due[k]) for k in self.node.key], key_hash, key_check)
            states = due[STATE].to_pylist()
            calls = Calls(keys.labels, lambda number: [{"expired state": self._plain(states[number])}])
            if self._parts:
                self._parts.begin(key_hash, key_check)
            for number, (key, data) in enumerate(zip(keys.labels, states, strict=True)):
                try:
                    state = self._type.load(data)
                    if self._parts:
                        self._parts.bind(state, number)
                    out = self.operator.expired(key, state)
                    calls.add(number, data, None if out is None else list(out))
                except Exception as error:
                    self._failed(key, calls.lost(number), None, error)
        gone = [tombstones(key_hash, key_check, self.node.state)]
        if self._parts:
            gone.append(self._parts.gone(key_hash, key_check))
            self.report.keys_delta -= gone[-1].num_rows
        return [calls], gone

    def _emitted(self, *parts: Calls) -> pa.RecordBatch | None:
        """Return all rows that were emitted; keys whose rows do not fit the declared output are diverted, or raise."""
        name, schema = self.node.name, self.node.rows_out
        try:
            return emitted_batch(name, schema, [calls.out for calls in parts])
        except OperatorError:
            pass  # whose was it?
        for calls in parts:
            failing = set()
            for number, start, end in zip(calls.numbers, [0, *calls.ends], calls.ends, strict=False):
                try:
                    emitted_batch(name, schema, [calls.out[start:end]])
                except OperatorError as error:
                    if self.node.declared.on_error != "divert":
                        raise OperatorError(f"{error}; at key {calls.labels[number]!r}") from None
                    failing.add(number)
                    self._failed(calls.labels[number], calls.lost(number), None, error)
            calls.drop(failing)
        return emitted_batch(name, schema, [calls.out for calls in parts])

    def _plain(self, state: bytes) -> Any:
        """Return a saved state as plain data, for a dead letter."""
        return msgspec.msgpack.decode(state) if state else None

    def _data(self, heads: Sequence[pa.Array], names: Sequence[str], states: list[bytes]) -> pa.Table:
        """Return states behind the columns that are before them; they are neither parts nor timers."""
        return completed(pa.table([*heads, pa.array(states, pa.binary())], [*names, STATE]), self.node.state)


def _looked_at(error: BaseException, rows: list[Row]) -> Row:
    """Return the row that a function had in its hands when it failed: the last that a variable of its own names."""
    at = {id(row): row for row in rows}
    found, trace = rows[0], error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            found = at.get(id(value), found)
        trace = trace.tb_next
    return found


def in_order(
    batch: pa.RecordBatch,
    key_hash: Hashes,
    key_check: Hashes,
    order_by: Sequence[str] = (),
    key: Sequence[str] = (),
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows in the order of their keys' hashes, and where those of each key begin.

    The rows of a key are in the order that is asked for, and equal ones by their content, so that the result is one of
    the set of rows, however they have come.
    """
    rows, found = len(key_hash), hash_order(key_hash, key_check)
    if found is None:  # some key has many rows: its keys are grouped before they are sorted
        groups, leads = group_rows(key_hash, key_check)
        even = hash_order(key_hash[leads], key_check[leads])
        rank = np.empty(len(leads), np.int64)
        rank[np.lexsort((key_check[leads], key_hash[leads])) if even is None else even[0]] = np.arange(
            len(leads)
        )
        found = by_group(rank[groups], len(leads), np.arange(rows))
    order, first = found
    if len(first) == rows:
        return order, first
    others = batch.drop_columns([k for k in key if _is_exact(batch.column(k))])
    if not others.num_columns:  # rows of a key are all alike
        return order, first
    wanted = _ranks(batch, order_by) if order_by else np.empty(0, np.int64)
    content, ends = row_hashes(others, 1)[0], np.append(first[1:], rows)
    tied = np.zeros(rows, np.bool_)
    sort_within(first, ends, wanted, content, order, tied)
    alike = others.num_columns == 1 and pa.types.is_integer(others.schema.field(0).type)
    if tied.any() and not (alike and _is_exact(others.column(0))):  # as far as we have looked
        at = order[tied]
        content[at] = row_hashes(others.take(pa.array(at)))[1]
        sort_within(first, ends, wanted, content, order, tied)
    return order, first


def _is_exact(column: pa.Array) -> bool:
    """Whether values with equal hashes are equal to the last bit, so that rows of one key do not differ in them."""
    kind = column.type
    return not column.null_count and (pa.types.is_string(kind) or pa.types.is_integer(kind))


def _ranks(batch: pa.RecordBatch, columns: Sequence[str]) -> NDArray[np.int64]:
    """Return the rank of each row by some columns, equal for rows that are equal in them."""
    if len(columns) == 1 and pa.types.is_timestamp(batch.column(columns[0]).type):
        batch = pa.record_batch([batch.column(columns[0]).view(pa.int64())], columns)
    if len(columns) == 1 and pa.types.is_int64(batch.column(0).type) and not batch.column(0).null_count:
        return batch.column(columns[0]).to_numpy()
    table = pa.table([batch.column(c) for c in columns], names=[f"o{i}" for i in range(len(columns))])
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    new = np.zeros(len(order), np.bool_)
    for column in map(one_array, table.take(order).columns):
        if pa.types.is_floating(column.type):
            column = sort_key(column)
        differs = pc.fill_null(pc.not_equal(column[1:], column[:-1]), False)
        either = pc.xor(column[1:].is_null(), column[:-1].is_null())
        new[1:] |= pc.or_(differs, either).to_numpy(zero_copy_only=False)
    ranks = np.empty(len(order), np.int64)
    ranks[order.to_numpy()] = np.cumsum(new)
    return ranks


def emitted_batch(name: str, schema: pa.Schema, parts: list[list[Any]]) -> pa.RecordBatch | None:
    """Return rows that an operator emitted as a batch of its declared output."""
    emitted = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
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
    """Partial states of keys that are split: what one server has made of its part of a batch's rows so far.

    Grows as keys come: the keys in the order of their first rows, and the state of each.
    """

    def __init__(self) -> None:
        self._keys: list[pa.Table] = []
        self._at: dict[tuple[int, int], int] = {}  # key → where its state is; made when a key may come again
        self.states: list[bytes] = []

    def prior(self, key_hash: Hashes, key_check: Hashes) -> list[bytes | None]:
        """Return the state of each key, None where there is none yet."""
        if not self.states:
            return [None] * len(key_hash)
        if len(self._at) < len(self.states):
            keys = self.keys()
            pairs = zip(keys[H1].to_pylist(), keys[H2].to_pylist(), strict=True)
            self._at = {key: at for at, key in enumerate(pairs)}
        at = map(self._at.get, zip(key_hash.tolist(), key_check.tolist(), strict=True))
        return [None if place is None else self.states[place] for place in at]

    def keep(self, calls: Calls, keys: Keys, names: Sequence[str]) -> None:
        """Take the states that calls have left."""
        fresh: list[int] = []
        for number, state in zip(calls.numbers, calls.states, strict=True):
            at = self._at.get((int(keys.key_hash[number]), int(keys.key_check[number]))) if self._at else None
            if at is None:
                fresh.append(number)
                self.states.append(state)
            else:
                self.states[at] = state
        columns, key_hash, key_check = keys.some(fresh)
        self._keys.append(pa.table([pa.array(key_hash), pa.array(key_check), *columns], [H1, H2, *names]))

    def keys(self) -> pa.Table:
        """Return the hashes and the columns of all keys, in the order of :attr:`states`."""
        return pa.concat_tables(self._keys)
