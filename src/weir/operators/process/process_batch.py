"""ProcessBatch: the user's own NumPy or Arrow, called with the rows and states of many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.columns import canonical, check_columns, column_names, to_schema
from weir.errors import OperatorError, TopologyError, did_you_mean
from weir.operators.base import Operator
from weir.operators.initial import plain_entries
from weir.operators.instance import Context, Instance, TimeLimit, failed, keyed_schema
from weir.operators.process.process_instance import BufferedInstance, Hashes
from weir.operators.stateless import conform
from weir.rows import Rows, one_batch, row_hashes
from weir.state.segment import DEADLINE, H1, H2, entries, tombstones

if TYPE_CHECKING:
    from weir.graph.model import Node

Numbers = NDArray[np.int64]
Made = tuple[Numbers, pa.Table, list[pa.RecordBatch]]  # keys' numbers, their states, rows


class KeyedBatch:
    """Rows of many keys, sorted by key, and what is remembered of each key.

    ``keys`` and ``states`` have one row per key, ``rows`` has all rows; each is a ``pyarrow.RecordBatch``. The rows of
    key ``i`` are those from ``offsets[i]`` to ``offsets[i + 1]``, at least one. The state of a new key is null.
    ``batch`` is the number of the micro-batch, ``clock`` its time; ``watermark`` is the event time up to which all rows
    are taken to have come, None if the stream has none. Both are in µs since 1970.

    >>> rows, states = pa.record_batch({"n": [1, 2, 5]}), pa.record_batch({"total": pa.array([10, None])})
    >>> batch = KeyedBatch(pa.record_batch({"k": ["a", "b"]}), rows, np.array([0, 2, 3]), states)
    >>> sums = np.add.reduceat(batch.values("n"), batch.offsets[:-1])
    >>> (batch.state("total", 0) + sums).tolist(), batch.new.tolist(), batch.numbers.tolist()
    ([13, 5], [False, True], [0, 0, 1])
    """

    def __init__(
        self,
        keys: pa.RecordBatch,
        rows: pa.RecordBatch,
        offsets: Numbers,
        states: pa.RecordBatch,
        batch: int = 0,
        clock: int = 0,
        watermark: int | None = None,
        order: Numbers | None = None,
    ) -> None:
        self.keys, self.offsets, self.states = keys, offsets, states
        self.batch, self.clock, self.watermark = batch, clock, watermark
        # rows that are still to be put in order: a function that reads one column need not wait for the others
        self._rows, self._order = rows, None if order is None else pa.array(order)
        self._sorted: dict[str, pa.RecordBatch] = {}

    def __len__(self) -> int:
        return self.keys.num_rows

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """All rows, sorted by key."""
        return self._rows if self._order is None else self._rows.take(self._order)

    @cached_property
    def numbers(self) -> Numbers:
        """The number of its key, for each row."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @cached_property
    def new(self) -> NDArray[np.bool_]:
        """Which keys have no state yet."""
        return ~_remembered(self.states)

    def values(self, column: str, fill: Any = None) -> NDArray[Any]:
        """Return a column of the rows for NumPy; ``fill`` stands for nulls."""
        if self._order is None or column not in self._rows.schema.names:
            return _numpy(self._rows, column, fill)
        if column not in self._sorted:
            self._sorted[column] = self._rows.select([column]).take(self._order)
        return _numpy(self._sorted[column], column, fill)

    def state(self, column: str, fill: Any = None) -> NDArray[Any]:
        """Return a column of the states for NumPy, one value per key; ``fill`` stands for nulls, as of new keys."""
        return _numpy(self.states, column, fill)

    def part(self, start: int, end: int) -> KeyedBatch:
        """Return the keys from one number to another."""
        first, last = int(self.offsets[start]), int(self.offsets[end])
        offsets = self.offsets[start : end + 1] - first
        at = (self.batch, self.clock, self.watermark)
        return KeyedBatch(self.keys[start:end], self.rows[first:last], offsets, self.states[start:end], *at)


def _numpy(batch: pa.RecordBatch, name: str, fill: Any) -> NDArray[Any]:
    if name not in batch.schema.names:
        raise KeyError(f"no column {name!r}; {did_you_mean(name, batch.schema.names)}")
    column = batch.column(name)
    if column.null_count and fill is not None:
        column = column.fill_null(pa.scalar(fill).cast(column.type))
    if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise ValueError(f"column {name!r} has nulls, {column.type} none: say what stands for them, e.g. 0")
    return column.to_numpy(zero_copy_only=False)


class ProcessBatch(Operator):
    """Your own operator on columns: a function that is called with many keys at once, without any Python per key.

    Parameters
    ----------
    function
        Takes a :class:`KeyedBatch`. Returns the new states, as a dict of columns or anything Arrow takes for a table,
        with one row per key; or a tuple of states and rows to emit; or of states, rows, and the number of the key that
        each row belongs to. Without these numbers there is one row per key. A key whose state is null in all columns
        is forgotten. None leaves all as it is. Keys must be treated independently of each other: how they are cut into
        calls is not defined.
    state
        What is remembered of a key, as ``{"column": "type"}``.
    output
        The rows that it emits; leave out if it emits none. Columns of the key that the rows lack are filled in.
    order_by, columns
        As for :class:`~weir.Process`.
    merge
        ``merge(one, other)`` takes two batches of states, row by row of the same keys, and returns the states that have
        seen what both have seen. With it, the operator may stand behind groupings that split keys.

    Examples
    --------
    >>> def totals(batch):
    ...     total = batch.state("total", 0) + np.add.reduceat(batch.values("n"), batch.offsets[:-1])
    ...     return {"total": total}, {"total": total}
    >>> ProcessBatch(totals, state={"total": "long"}, output="user string, total long").describe()
    'ProcessBatch(totals)'
    """

    stateful = True
    takes_side = True
    takes_watermark = True

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        state: Any,
        output: Any = None,
        order_by: str | Sequence[str] = (),
        columns: Sequence[str] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        if not callable(function):
            raise TopologyError(f"process_batch(…) takes a function first, not {function!r}")
        self.function, self.merge = function, merge
        self.state = canonical(to_schema(state))
        if not len(self.state):
            raise TopologyError('process_batch: name the columns of its state, e.g. state={"n": "long"}')
        self.output_columns = pa.schema([]) if output is None else canonical(to_schema(output))
        self.order_by = column_names("order_by", order_by)
        self.columns = None if columns is None else column_names("columns", columns)

    @property
    def mergeable(self) -> bool:
        return self.merge is not None

    @property
    def emits_early(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        return bool(self.order_by)

    def needs(self, schema: pa.Schema) -> set[str] | None:
        return None if self.columns is None else {*self.columns, *self.order_by}

    def check(self, schema: pa.Schema, where: str) -> None:
        check_columns({*(self.columns or ()), *self.order_by}, schema, where)

    def emits(self, schema: pa.Schema) -> pa.Schema:
        return self.output_columns

    def updates(self, schema: pa.Schema, heads: Sequence[pa.Field]) -> pa.Schema | None:
        for head in heads:
            if head.name in self.state.names:
                raise TopologyError(
                    f"{self.describe()}: its state and its key both have a column {head.name!r}"
                )
        return None

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        return self.state

    def initial(self, node: Node, rows: pa.Table, clock: int) -> pa.Table:
        return plain_entries(node, rows, clock)

    def signature(self) -> dict[str, Any]:
        return {"kind": "ProcessBatch", "state": {f.name: str(f.type) for f in self.state}}

    def accepts(self, saved: dict[str, Any]) -> bool:
        """Go on if every column from before is still there; a new one is null at first."""
        now = self.signature()["state"]
        return saved["kind"] == "ProcessBatch" and saved["state"].items() <= now.items()

    def instance(self, context: Context) -> Instance:
        return ProcessBatchInstance(self, context)

    def describe(self) -> str:
        return f"ProcessBatch({getattr(self.function, '__name__', 'function')})"


class ProcessBatchInstance(BufferedInstance):
    """Calls a user's function once with all keys; with fewer, to find a key that it fails on."""

    def finish(self) -> Iterator[Rows]:
        node, context = self.node, self.context
        written: list[pa.Table] = []
        # a key that comes back in this very batch has been away, too
        if context.first and node.ttl is not None:
            due = context.view().due(context.previous_clock, context.clock, [H1, H2])
            self.report.keys_delta -= due.num_rows
            written.append(tombstones(due[H1].to_numpy(), due[H2].to_numpy(), node.state))
        emitted: list[pa.RecordBatch] = []
        if self.batches:
            tables, emitted = self._called()
            written += tables
        if self.absorbed and context.step == node.state_level:
            written += self._merged()
        self._written = pa.concat_tables(written) if written else None
        yield from self._counted(one_batch(emitted) if emitted else None)

    def _called(self) -> tuple[list[pa.Table], list[pa.RecordBatch]]:
        """Call the function with the rows that are here; return state entries, and rows that it emitted."""
        node, context = self.node, self.context
        with self.spending("encoding"):
            batch, order, first, columns, key_hash, key_check = self._sorted()
        if node.splits:
            prior = pa.table([pa.nulls(len(first), f.type) for f in self.operator.state], self.operator.state)
        else:
            with self.spending("fetching"):
                prior, known = self._prior(key_hash, key_check)
        given = KeyedBatch(
            pa.record_batch(columns, list(node.key)),
            batch,
            np.append(first, batch.num_rows),
            one_batch(prior.combine_chunks().to_batches()),
            context.batch,
            context.clock,
            context.watermark,
            order,
        )
        self.report.pairs += len(given)
        with TimeLimit(node.declared.timeout):
            made = list(
                self._tried(lambda a, b: self._call(given, a, b), self._lose_rows(given), 0, len(given))
            )
        if not made:
            return [], []
        numbers, states = np.concatenate([m[0] for m in made]), pa.concat_tables([m[1] for m in made])
        rows = [batch for m in made for batch in m[2] if batch.num_rows]
        if len(numbers) < len(given):
            columns = [column.take(pa.array(numbers)) for column in columns]
            key_hash, key_check = key_hash[numbers], key_check[numbers]
        table = pa.Table.from_arrays([*columns, *states.columns], schema=node.state)
        if not node.splits:
            with self.spending("writing"):
                return self._saved(table, key_hash, key_check, prior, known, numbers), rows
        hashes = [pa.array(key_hash), pa.array(key_check)]
        held = pa.Table.from_arrays([*hashes, *table.columns], schema=keyed_schema(node.state))
        self._partials = held.filter(pa.array(_remembered(states)))
        return [], rows

    def _prior(self, key_hash: Hashes, key_check: Hashes) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return the states of keys, null for those that have none, and which have one."""
        names = self.operator.state.names
        found = self.context.view().look_up(key_hash, key_check, [*names, DEADLINE])
        known = found[DEADLINE].is_valid()
        if self.node.ttl is not None:
            known = pc.fill_null(pc.greater(found[DEADLINE], self.context.clock), False)
            found = found.take(pc.if_else(known, pa.array(np.arange(len(key_hash))), None))
        return found.select(names), known.to_numpy()

    def _call(self, given: KeyedBatch, start: int, end: int) -> Made:
        """Call the user's function with some of the keys."""
        part = given if (start, end) == (0, len(given)) else given.part(start, end)
        with self.spending("calling"):
            result = self.operator.function(part, *self.extra)
        states, rows, numbers = _apart(result, part)
        who, schema = self.operator.describe(), self.operator.state
        kept = conform(states, schema, who)
        if kept.num_rows != len(part):
            raise OperatorError(f"{who} returned {kept.num_rows} states for {len(part)} keys")
        emitted = [] if rows is None else [self._rows(rows, numbers, part)]
        return np.arange(start, end), pa.Table.from_batches([kept]), emitted

    def _rows(self, rows: Any, numbers: Any, part: KeyedBatch) -> pa.RecordBatch:
        """Return rows that the user's function emitted, with the columns of their keys."""
        who, schema = self.operator.describe(), self.operator.output_columns
        if not len(schema):
            raise OperatorError(
                f'{who} emits rows but declares no output; declare it: output={{"column": "type"}}'
            )
        if isinstance(rows, pa.RecordBatch | pa.Table):
            rows = dict(zip(rows.schema.names, rows.columns, strict=True))
        at = np.arange(len(part)) if numbers is None else np.asarray(numbers)
        for column in rows.values() if isinstance(rows, dict) else ():
            if len(column) != len(at):
                text = f"{who} returned {len(column)} rows for {len(at)} keys"
                raise OperatorError(text + ("; say the number of each row's key" if numbers is None else ""))
        if len(at) and not (at.dtype.kind in "iu" and 0 <= at.min() <= at.max() < len(part)):
            raise OperatorError(
                f"{who} numbers the keys of its rows otherwise than from 0 to {len(part) - 1}"
            )
        lacking = [k for k in self.node.key if k in schema.names and isinstance(rows, dict) and k not in rows]
        keys = part.keys if numbers is None else part.keys.take(pa.array(at))
        return conform({**rows, **{k: keys.column(k) for k in lacking}} if lacking else rows, schema, who)

    def _saved(
        self,
        table: pa.Table,
        key_hash: Hashes,
        key_check: Hashes,
        prior: pa.Table,
        known: NDArray[np.bool_],
        numbers: Numbers,
    ) -> list[pa.Table]:
        """Return entries of keys whose state has changed or whose time starts anew; tombstones of forgotten ones."""
        node, states = self.node, table.select(self.operator.state.names)
        if len(numbers) < len(known):
            prior, known = prior.take(pa.array(numbers)), known[numbers]
        there = _remembered(states)
        fresh = there if node.ttl is not None else there & (~known | _differ(states, prior))
        gone = known & ~there
        self.report.keys_delta += int((there & ~known).sum()) - int(gone.sum())
        data = table if fresh.all() else table.filter(pa.array(fresh))
        at = (key_hash, key_check) if fresh.all() else (key_hash[fresh], key_check[fresh])
        saved = entries(data, *at, deadline=self._deadlines(data.num_rows))
        return [saved, tombstones(key_hash[gone], key_check[gone], node.state)] if gone.any() else [saved]

    def _merged(self) -> list[pa.Table]:
        """Return partial states of keys that live here, merged with each other and with what was saved."""
        names = self.operator.state.names
        table = pa.Table.from_batches(self.absorbed).combine_chunks()
        key_hash, key_check = table[H1].to_numpy(), table[H2].to_numpy()
        content = row_hashes(one_batch(table.select(names).to_batches()), 1)[0]
        order = np.lexsort((content, key_check, key_hash))  # of partial states, whoever came first
        table, key_hash, key_check = table.take(pa.array(order)), key_hash[order], key_check[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (key_hash[1:] != key_hash[:-1]) | (key_check[1:] != key_check[:-1])
        first = np.flatnonzero(new)
        counts = np.diff(np.append(first, len(order)))
        key_hash, key_check = key_hash[first], key_check[first]
        keys, parts = table.select(list(self.node.key)).take(pa.array(first)), table.select(names)
        saved, known = self._prior(key_hash, key_check)

        def merge(start: int, end: int) -> Made:
            states, merged = saved[start:end], known[start:end].copy()
            for rank in range(int(counts[start:end].max())):
                here = np.flatnonzero(counts[start:end] > rank)
                other = parts.take(pa.array(first[start:end][here] + rank))
                both = merged[here]
                if both.any():
                    one, two = states.take(pa.array(here[both])), other.filter(pa.array(both))
                    result = self.operator.merge(
                        *(one_batch(t.combine_chunks().to_batches()) for t in (one, two))
                    )
                    joined = conform(result, self.operator.state, "merge")
                    if joined.num_rows != one.num_rows:
                        raise OperatorError(
                            f"merge returned {joined.num_rows} states for {one.num_rows} keys"
                        )
                    other = pa.concat_tables([other.filter(pa.array(~both)), pa.Table.from_batches([joined])])
                    here = np.concatenate([here[~both], here[both]])
                at = np.arange(end - start)
                at[here] = end - start + np.arange(len(here))
                states, merged[here] = pa.concat_tables([states, other]).take(pa.array(at)), True
            return np.arange(start, end), states, []

        def lose(number: int, error: BaseException) -> None:
            lost = parts.slice(int(first[number]), int(counts[number])).to_pylist()
            where = f"its {len(lost)} partial states of batch {self.context.batch}"
            self._failed(_label(keys, number), [{"partial state": one} for one in lost], where, error)

        with TimeLimit(self.node.declared.timeout):
            made = list(self._tried(merge, lose, 0, len(first)))
        if not made:
            return []
        numbers, states = np.concatenate([m[0] for m in made]), pa.concat_tables([m[1] for m in made])
        columns = [*keys.take(pa.array(numbers)).columns, *states.columns]
        table = pa.Table.from_arrays(columns, schema=self.node.state)
        return self._saved(table, key_hash[numbers], key_check[numbers], saved, known, numbers)

    def _tried(
        self,
        act: Callable[[int, int], Made],
        lose: Callable[[int, BaseException], None],
        start: int,
        end: int,
    ) -> Iterator[Made]:
        """Do something for the keys from one number to another; those that fail are found by halving."""
        try:
            done = act(start, end)
        except TimeoutError as error:
            # to look for the key that it waits at would take as long again, many times
            text = f"one of {end - start} keys of batch {self.context.batch}"
            raise failed(self.node, None, text, error) from error
        except OperatorError as error:  # of ours: what it returned has no such shape, whatever the keys
            raise OperatorError(
                f"operator {self.node.name!r}: {error}; in batch {self.context.batch}"
            ) from None
        except (Exception, SystemExit) as error:
            if end - start == 1:
                lose(start, error)
                return
            middle = (start + end) // 2
        else:
            yield done
            return
        yield from self._tried(act, lose, start, middle)
        yield from self._tried(act, lose, middle, end)

    def _lose_rows(self, given: KeyedBatch) -> Callable[[int, BaseException], None]:
        def lose(number: int, error: BaseException) -> None:
            rows = given.part(number, number + 1).rows.to_pylist()
            where = f"its {len(rows)} rows of batch {given.batch}"
            self._failed(_label(given.keys, number), rows, where, error)

        return lose


def _label(keys: pa.Table | pa.RecordBatch, number: int) -> Any:
    """Return a key as users know it."""
    (row,) = keys.slice(number, 1).to_pylist()
    return next(iter(row.values())) if len(row) == 1 else tuple(row.values())


def _apart(result: Any, part: KeyedBatch) -> tuple[Any, Any, Any]:
    """Return the states, rows and numbers that a user's function returned."""
    if result is None:
        return part.states, None, None
    if not isinstance(result, tuple):
        return result, None, None
    states, rows, *numbers = (*result, None)[:3] if len(result) < 3 else result
    if len(numbers) > 1:
        raise OperatorError("it returned more than states, rows, and the numbers of their keys")
    return part.states if states is None else states, rows, numbers[0] if numbers else None


def _remembered(states: pa.Table | pa.RecordBatch) -> NDArray[np.bool_]:
    """Return which states have a value in any column."""
    if any(not column.null_count for column in states.columns):
        return np.ones(states.num_rows, np.bool_)
    out = np.zeros(states.num_rows, np.bool_)
    for column in states.columns:
        out |= column.is_valid().to_numpy(zero_copy_only=False)
    return out


def _differ(states: pa.Table, others: pa.Table) -> NDArray[np.bool_]:
    """Return which states are not equal to others."""
    out = np.zeros(states.num_rows, np.bool_)
    for one, other in zip(states.columns, others.columns, strict=True):
        if pa.types.is_nested(one.type):
            return np.ones(states.num_rows, np.bool_)
        if not one.null_count and not other.null_count:
            out |= pc.not_equal(one, other).to_numpy()
            continue
        unequal = pc.fill_null(pc.not_equal(one, other), False)
        out |= pc.or_(unequal, pc.xor(one.is_null(), other.is_null())).to_numpy()
    return out
