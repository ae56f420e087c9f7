"""Running copies of operators: one per operator placed on a server, alive for one step of one batch.

An instance is pushed rows as they arrive, may emit at once, and finishes when no more rows can come in this
step. Aggregates reduce what they see to one partial state per key and touch the saved state once, in the step
in which it becomes final; until then partials travel to their own server with the exchange.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.engine.documents import OperatorReport
from weir.errors import OperatorError, SourceError, WeirError
from weir.graph.model import Node
from weir.hashing import SECOND_SEED, hash_columns
from weir.operators.aggregate import Aggregate
from weir.operators.base import WINDOW_START, Operator
from weir.operators.file_reader import CHUNK_ROWS, read_file
from weir.operators.process import STATE, Process
from weir.operators.read import BYTES, MODIFIED, PARTITION, PATH, Read
from weir.operators.stateless import Filter
from weir.rows import Rows, row_hashes
from weir.state.index import group_rows
from weir.state.segment import DEADLINE, H1, H2, NEVER, StateView, entries, stored_schema, tombstones

KEYED = (pa.field(H1, pa.uint64(), nullable=False), pa.field(H2, pa.uint64(), nullable=False))
REDUCE_AT = 1 << 20
CHUNK_BYTES = 16 << 20


class Context:
    """What an instance may know of the batch it runs in."""

    def __init__(
        self,
        *,
        step: int,
        clock: int,
        previous_clock: int,
        watermark: int | None,
        previous_watermark: int | None,
        view: Callable[[], StateView],
        divert: Callable[[Node, Any, Any, BaseException], None],
        want_updates: bool,
        passes_on: bool,
    ) -> None:
        self.step = step
        self.clock = clock
        self.previous_clock = previous_clock
        self.watermark = watermark
        self.previous_watermark = previous_watermark
        self.view = view
        self.divert = divert
        self.want_updates = want_updates
        self.passes_on = passes_on


class Instance(ABC):
    """One operator on one server in one step."""

    works_at_end: ClassVar[bool] = False  # rows are only put by when pushed; the work is done in finish

    def __init__(self, node: Node, context: Context, report: OperatorReport) -> None:
        self.node = node
        self.context = context
        self.report = report

    @abstractmethod
    def push(self, rows: Rows) -> Iterator[Rows]:
        """Takes rows; yields what goes on at once."""

    def absorb(self, partial: pa.RecordBatch) -> None:
        """Takes partial states of keys that live here."""
        raise NotImplementedError

    def finish(self) -> Iterator[Rows]:
        """Called when no more rows can come in this step; yields what goes on."""
        return iter(())

    def partials(self) -> pa.Table | None:
        """What must travel to the keys' homes with the next exchange."""
        return None

    def updates(self) -> pa.RecordBatch | None:
        """What a sink gets of this step."""
        return None

    def written(self) -> pa.Table | None:
        """The state entries this step makes."""
        return None


class StatelessInstance(Instance):
    """Applies a user's Arrow function; a row that it fails on is found by halving."""

    def push(self, rows: Rows) -> Iterator[Rows]:
        if not len(rows):
            return
        for out in self._apply(rows):
            if len(out):
                self.report.rows_out += len(out)
                yield out

    def _apply(self, rows: Rows) -> Iterator[Rows]:
        operator: Any = self.node.operator
        batch = rows.to_batch(self.node.input)
        try:
            if isinstance(operator, Filter):
                out = rows.select(np.asarray(operator.mask(batch).to_numpy(zero_copy_only=False)))
            else:
                made, parents = operator.apply(batch, self.node.rows_out)
                known = rows.origin is not None and parents is not None
                out = Rows(made, origin=(rows.origin[0], rows.origin[1][parents]) if known else None)  # type: ignore[index]
        except Exception as error:
            if batch.num_rows > 1:
                middle = batch.num_rows // 2
                positions = np.arange(batch.num_rows)
                yield from self._apply(rows.select(positions[:middle]))
                yield from self._apply(rows.select(positions[middle:]))
                return
            row = batch.to_pylist()[0]
            if self.node.declared.on_error == "divert":
                self.report.diverted += 1
                self.context.divert(self.node, None, row, error)
                return
            raise failed(self.node, None, row, error) from error
        yield out


class ReadInstance(Instance):
    """Reads the files that are assigned to its server; rows come from the partition of their file."""

    def push(self, rows: Rows) -> Iterator[Rows]:
        operator, schema = self.node.operator, self.node.rows_out
        assert isinstance(operator, Read)
        listed = [rows.column(c).to_pylist() for c in (PATH, PARTITION, BYTES)]
        listed.append(rows.column(MODIFIED).cast(pa.int64()).to_pylist())
        hashes = rows.hash(self.node.key)
        kept: list[pa.RecordBatch] = []
        origins: list[NDArray[np.uint64]] = []
        count = size = 0
        # small files are put together: what one of them sends to one server would be a message of few rows
        for at in np.argsort(np.array(listed[0], object)):
            path, partition, length, modified = (column[at] for column in listed)
            self._check(operator, path, partition)
            for batch in read_file(path, operator.format, schema, size=length, modified=modified):
                kept.append(batch)
                origins.append(np.full(batch.num_rows, hashes[at]))
                count, size = count + batch.num_rows, size + batch.nbytes
                if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    yield self._together(kept, origins)
                    kept, origins, count, size = [], [], 0, 0
        if kept:
            yield self._together(kept, origins)

    def _check(self, operator: Read, path: str, partition: str | None) -> None:
        if not partition:
            raise SourceError(
                f"{path}: the pattern by= finds no partition in this path; mend it, or move the file"
            )
        if operator.base and path.rpartition("/")[0] == operator.base:
            raise SourceError(
                f'{path}: lies in no folder of its own, which by="folder" takes for its partition; put files into '
                'folders by partition, or say by="file" or by=r"a pattern with a (group)"'
            )

    def _together(self, batches: list[pa.RecordBatch], origins: list[NDArray[np.uint64]]) -> Rows:
        batch = batches[0]
        if len(batches) > 1:
            batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        self.report.rows_in += batch.num_rows
        self.report.rows_out += batch.num_rows
        return Rows(batch, origin=(self.node.name, np.concatenate(origins)))


class AggregateInstance(Instance):
    """Reduces rows to partial states per key, and merges them into the saved state once per batch."""

    def __init__(self, node: Node, context: Context, report: OperatorReport) -> None:
        super().__init__(node, context, report)
        assert isinstance(node.operator, Aggregate)
        self.operator = node.operator
        self.schema = node.state
        self.width = len(node.key) + (1 if node.window else 0)  # key columns and the window's start
        self.pieces: list[pa.Table] = []
        self.piece_rows = 0
        self._result: pa.Table | None = None
        self._written: pa.Table | None = None

    def push(self, rows: Rows) -> Iterator[Rows]:
        node, window = self.node, self.node.window
        if self.context.passes_on:
            self.report.rows_out += len(rows)
            yield rows
        starts: NDArray[np.int64] | None = None
        if window:
            times = rows.column(window.column)
            if times.null_count:
                self.report.late += times.null_count
                rows = rows.select(np.asarray(times.is_valid().to_numpy(zero_copy_only=False)))
                times = rows.column(window.column)
            if not len(rows):
                return
            micros = times.cast(pa.int64()).to_numpy()
            newest = int(micros.max())
            seen = self.report.max_event_time
            self.report.max_event_time = newest if seen is None else max(seen, newest)
            starts = micros - np.mod(micros, window.size)
            if self.context.watermark is not None:
                on_time = starts + window.size > self.context.watermark
                if not on_time.all():
                    self.report.late += int((~on_time).sum())
                    rows, starts = rows.select(on_time), starts[on_time]
        if not len(rows):
            return
        h1, h2 = rows.hash(node.key), rows.second_hash(node.key)
        if starts is not None:
            h2 = hash_columns([pa.array(h2.view(np.int64)), pa.array(starts)], SECOND_SEED)
        groups, first = group_rows(h1, h2)
        at = pa.array(first)
        keys = [rows.column(k).take(at) for k in node.key]
        if starts is not None:
            keys.append(pa.array(starts[first]).cast(self.schema.field(WINDOW_START).type))
        states = self.operator.begin(rows.column, groups, len(first))
        self._add(
            pa.Table.from_arrays(
                [pa.array(h1[first]), pa.array(h2[first]), *keys, *states], schema=self._wire
            )
        )

    @property
    def _wire(self) -> pa.Schema:
        return pa.schema([*KEYED, *self.schema])

    def _add(self, piece: pa.Table) -> None:
        self.pieces.append(piece)
        self.piece_rows += piece.num_rows
        if self.piece_rows > REDUCE_AT and len(self.pieces) > 1:
            self.pieces = [self._reduced()]
            self.piece_rows = self.pieces[0].num_rows

    def absorb(self, partial: pa.RecordBatch) -> None:
        self._add(pa.Table.from_batches([partial]))

    def _reduced(self) -> pa.Table:
        """All pieces so far, one row per key."""
        table = pa.concat_tables(self.pieces).combine_chunks()
        if len(self.pieces) == 1:
            return table
        return self._merge(table)

    def _merge(self, table: pa.Table) -> pa.Table:
        h1, h2 = table[H1].to_numpy(), table[H2].to_numpy()
        groups, first = group_rows(h1, h2)
        if len(first) == len(h1):
            return table
        keys = table.select(range(2 + self.width)).take(pa.array(first))
        states = [_array(table.column(i)) for i in range(2 + self.width, table.num_columns)]
        merged = self.operator.merge(states, groups, len(first))
        return pa.Table.from_arrays([*keys.columns, *merged], schema=table.schema)

    def hold(self, held: StateView) -> pa.Table | None:
        """Partial states stay on this server until their aggregation: as entries, merged with what waits here."""
        if not self.pieces:
            return None
        table = self._reduced()
        self.report.pairs += table.num_rows
        before, _ = held.take(*held.find(table[H1].to_numpy(), table[H2].to_numpy()))
        merged = self._merge(pa.concat_tables([before.select(self._wire.names), table]).combine_chunks())
        self.pieces = []
        return entries(merged.select(self.schema.names), merged[H1].to_numpy(), merged[H2].to_numpy())

    def release(self, held: StateView) -> pa.Table | None:
        """Adds all that waits here to what goes to the keys' homes now; returns what marks it as gone."""
        waiting = held.everything()
        if not waiting.num_rows:
            return None
        self._add(waiting.select(self._wire.names))
        return tombstones(waiting[H1].to_numpy(), waiting[H2].to_numpy(), self.schema)

    def partials(self) -> pa.Table | None:
        if self.context.step >= self.node.state_level or not self.pieces:
            return None
        table = self._reduced()
        if self.node.splits and self.context.step == self.node.level:
            self.report.pairs += table.num_rows
        return table

    def finish(self) -> Iterator[Rows]:
        context, node = self.context, self.node
        if context.step != node.state_level:
            return
        made: list[pa.Table] = []
        results: list[pa.Table] = []
        view: StateView | None = None
        touched: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
        if self.pieces:
            table = self._reduced()
            h1, h2 = table[H1].to_numpy(), table[H2].to_numpy()
            if not node.splits:
                self.report.pairs += len(h1)
            view = context.view()
            found = view.find(h1, h2)
            prior, _ = view.take(*found)
            living = prior
            if node.ttl is not None and prior.num_rows:
                living = prior.filter(pc.greater(prior[DEADLINE], context.clock))
            if living.num_rows:
                merged = self._merge(
                    pa.concat_tables([living.select(self._wire.names), table]).combine_chunks()
                )
            else:
                merged = table
            self.report.keys_delta += merged.num_rows - prior.num_rows
            h1, h2 = merged[H1].to_numpy(), merged[H2].to_numpy()
            touched = (h1, h2)
            made.append(entries(merged.select(self.schema.names), h1, h2, deadline=self._deadlines(merged)))
            if node.window is None and (context.want_updates or self.operator.emit == "updates"):
                results.append(merged)
        closed = self._due(view, touched)
        if closed is not None and closed.num_rows:
            gone1, gone2 = closed[H1].to_numpy(), closed[H2].to_numpy()
            made.append(tombstones(gone1, gone2, self.schema))
            self.report.keys_delta -= closed.num_rows
            if node.window is not None:
                results.append(closed.select(self._wire.names))
        self._closed_now(made, results)
        self._written = pa.concat_tables(made) if made else None
        if results:
            self._result = pa.concat_tables(results).combine_chunks()
            out = self.updates()
            assert out is not None
            if node.window is not None or self.operator.emit == "updates":
                self.report.rows_out += out.num_rows
                yield Rows(out)

    def _closed_now(self, made: list[pa.Table], results: list[pa.Table]) -> None:
        """At the end of a bounded input, windows that this very batch touched close as well."""
        window = self.node.window
        if window is None or self.context.watermark is None or not made:
            return
        fresh = made[0]
        if fresh[WINDOW_START].null_count == fresh.num_rows:
            return
        ends = fresh[DEADLINE].to_numpy()
        due = ends <= self.context.watermark
        if due.any():
            table = fresh.filter(pa.array(due))
            results.append(table.select(self._wire.names))
            gone = tombstones(table[H1].to_numpy(), table[H2].to_numpy(), self.schema)
            made[0] = pa.concat_tables([fresh.filter(pa.array(~due)), gone])
            self.report.keys_delta -= table.num_rows

    def _deadlines(self, table: pa.Table) -> NDArray[np.int64]:
        if self.node.window is not None:
            return table[WINDOW_START].cast(pa.int64()).to_numpy() + self.node.window.size
        if self.node.ttl is not None:
            return np.full(table.num_rows, self.context.clock + self.node.ttl)
        return np.full(table.num_rows, NEVER)

    def _due(self, view: StateView | None, touched: Any) -> pa.Table | None:
        """Entries whose time is up and that this batch did not touch."""
        context, node = self.context, self.node
        if node.window is not None:
            after, until = context.previous_watermark, context.watermark
        elif node.ttl is not None:
            after, until = context.previous_clock, context.clock
        else:
            return None
        if until is None:
            return None
        due = (view or context.view()).due(NO_TIME if after is None else after, until)
        return due if touched is None else due.filter(pa.array(~_among(due, *touched)))

    def updates(self) -> pa.RecordBatch | None:
        if self._result is None:
            return None
        table, node = self._result, self.node
        keys = [_array(table[k]) for k in node.key]
        if node.window is not None:
            start = _array(table[WINDOW_START])
            end = pc.add(start.cast(pa.int64()), node.window.size).cast(start.type)
            keys += [start, end]
        states = [_array(table.column(i)) for i in range(2 + self.width, table.num_columns)]
        values = self.operator.finish(states)
        return pa.RecordBatch.from_arrays([*keys, *values], schema=node.sink_out)

    def written(self) -> pa.Table | None:
        return self._written


NO_TIME = int(np.iinfo(np.int64).min)


class ProcessInstance(Instance):
    """Calls a user's function once per key, with the key's rows in a defined order."""

    works_at_end = True

    def __init__(self, node: Node, context: Context, report: OperatorReport) -> None:
        super().__init__(node, context, report)
        assert isinstance(node.operator, Process)
        self.operator = node.operator
        self.batches: list[pa.RecordBatch] = []
        self.absorbed: list[pa.RecordBatch] = []
        self._decode = msgspec.msgpack.Decoder(self.operator.state) if self.operator.state else None
        self._encode = msgspec.msgpack.Encoder(order="deterministic")
        self._written: pa.Table | None = None
        self._partials: pa.Table | None = None

    @property
    def _wire(self) -> pa.Schema:
        return pa.schema([*KEYED, *self.node.state])

    def push(self, rows: Rows) -> Iterator[Rows]:
        if len(rows):
            self.batches.append(rows.to_batch(self.node.input))
        return iter(())

    def absorb(self, partial: pa.RecordBatch) -> None:
        self.absorbed.append(partial)

    def finish(self) -> Iterator[Rows]:
        node, context = self.node, self.context
        emitted: list[Any] = []
        made: list[pa.Table] = []
        if node.ttl is not None and context.step == 1:
            # before any row is looked at: a key that comes back in this very batch has been away, too
            made += self._expire(context.view(), emitted)
        if self.batches:
            keys, h1, h2, calls = self._by_key()
            self.report.pairs += len(h1)
            prior = {} if node.splits else self._prior(context.view(), h1, h2)
            known = len(prior)
            states: list[bytes] = []
            kept: list[int] = []
            for number, (key, rows) in enumerate(calls):
                before = prior.get(number)
                state = self._new() if before is None else self._load(before)
                out, ok = self._call(key, rows, state)
                emitted.extend(out)
                if ok:
                    states.append(self._save(state))
                    kept.append(number)
                elif number in prior:
                    known -= 1
            if len(kept) < len(h1):  # keys whose rows were diverted keep the state they had
                keys = [k.take(pa.array(kept, pa.int64())) for k in keys]
                h1, h2 = h1[kept], h2[kept]
            table = pa.Table.from_arrays([*keys, pa.array(states, pa.binary())], schema=node.state)
            if node.splits:
                self._partials = pa.Table.from_arrays(
                    [pa.array(h1), pa.array(h2), *table.columns], schema=self._wire
                )
            else:
                made.append(entries(table, h1, h2, deadline=self._deadlines(len(h1))))
                self.report.keys_delta += len(kept) - known
        if self.absorbed and context.step == node.state_level:
            made.append(self._merged(context.view()))
        self._written = pa.concat_tables(made) if made else None
        if emitted:
            yield Rows(self._emitted(emitted))

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
        table = pa.Table.from_batches(self.batches).combine_chunks()
        batch = table.to_batches()[0]
        rows = Rows(batch)
        h1, h2 = rows.hash(self.node.key), rows.second_hash(self.node.key)
        r1, r2 = row_hashes(batch)
        if self.operator.order_by:
            ordering = pa.table(
                {
                    "a": h1,
                    "b": h2,
                    **{f"o{i}": batch.column(c) for i, c in enumerate(self.operator.order_by)},
                    "y": r1,
                    "z": r2,
                }
            )
            order = pc.sort_indices(
                ordering, sort_keys=[(n, "ascending") for n in ordering.column_names]
            ).to_numpy()
        else:
            order = np.lexsort((r2, r1, h2, h1))
        batch = batch.take(pa.array(order))
        h1, h2 = h1[order], h2[order]
        new = np.ones(len(h1), np.bool_)
        new[1:] = (h1[1:] != h1[:-1]) | (h2[1:] != h2[:-1])
        first = np.flatnonzero(new)
        keys = [batch.column(k).take(pa.array(first)) for k in self.node.key]
        make = namedtuple("Row", batch.schema.names, rename=True)._make  # type: ignore[misc, attr-defined]
        everything = list(map(make, zip(*(c.to_pylist() for c in batch.columns), strict=True)))
        names = [k.to_pylist() for k in keys]
        labels = names[0] if len(names) == 1 else list(zip(*names, strict=True))
        bounds = [*first.tolist(), len(everything)]

        def calls() -> Iterator[tuple[Any, list[Any]]]:
            for i, label in enumerate(labels):
                yield label, everything[bounds[i] : bounds[i + 1]]

        return keys, h1[first], h2[first], calls()

    def _prior(self, view: StateView, h1: NDArray[np.uint64], h2: NDArray[np.uint64]) -> dict[int, bytes]:
        """The saved state of keys, by their position; expired ones are not among them."""
        table, positions = view.take(*view.find(h1, h2))
        states = table[STATE].to_pylist()
        if self.node.ttl is None:
            return dict(zip(positions.tolist(), states, strict=True))
        alive = table[DEADLINE].to_numpy() > self.context.clock
        return {p: s for p, s, ok in zip(positions.tolist(), states, alive, strict=True) if ok}

    def _call(self, key: Any, rows: list[Any], state: Any) -> tuple[list[Any], bool]:
        handed = _Handed(rows)
        try:
            out = self.operator.process(key, handed, state)
            return ([] if out is None else list(out)), True
        except Exception as error:
            if self.node.declared.on_error == "divert":
                self.report.diverted += len(rows)
                for row in rows:
                    self.context.divert(self.node, key, row._asdict(), error)
                return [], False
            raise failed(self.node, key, handed.last, error) from error

    def _merged(self, view: StateView) -> pa.Table:
        """Partial states of keys that live here, merged with each other and with what was saved."""
        table = pa.Table.from_batches(self.absorbed).combine_chunks()
        h1, h2 = table[H1].to_numpy(), table[H2].to_numpy()
        content = hash_columns([_array(table[STATE])])
        order = np.lexsort((content, h2, h1))
        table, h1, h2 = table.take(pa.array(order)), h1[order], h2[order]
        new = np.ones(len(h1), np.bool_)
        new[1:] = (h1[1:] != h1[:-1]) | (h2[1:] != h2[:-1])
        first = np.flatnonzero(new)
        prior = self._prior(view, h1[first], h2[first])
        self.report.keys_delta += len(first) - len(prior)
        states = table[STATE].to_pylist()
        bounds = [*first.tolist(), len(states)]
        merged = []
        for i in range(len(first)):
            parts = [prior[i]] if i in prior else []
            parts += states[bounds[i] : bounds[i + 1]]
            state = self._load(parts[0])
            for part in parts[1:]:
                state = self.operator.merge(state, self._load(part))
            merged.append(self._save(state))
        keys = table.select(list(self.node.key)).take(pa.array(first))
        data = pa.Table.from_arrays([*keys.columns, pa.array(merged, pa.binary())], schema=self.node.state)
        return entries(data, h1[first], h2[first], deadline=self._deadlines(len(first)))

    def _expire(self, view: StateView, emitted: list[Any]) -> list[pa.Table]:
        due = view.due(self.context.previous_clock, self.context.clock)
        if not due.num_rows:
            return []
        self.report.keys_delta -= due.num_rows
        if type(self.operator).expired is not Process.expired:
            names = [due[k].to_pylist() for k in self.node.key]
            labels = names[0] if len(names) == 1 else list(zip(*names, strict=True))
            for key, state in zip(labels, due[STATE].to_pylist(), strict=True):
                try:
                    emitted.extend(self.operator.expired(key, self._load(state)) or ())
                except Exception as error:
                    raise failed(self.node, key, None, error) from error
        return [tombstones(due[H1].to_numpy(), due[H2].to_numpy(), self.node.state)]

    def _emitted(self, emitted: list[Any]) -> pa.RecordBatch:
        schema = self.node.rows_out
        if not len(schema):
            raise OperatorError(
                f"operator {self.node.name!r} emits rows ({emitted[0]!r}) but declares no output; "
                'declare it: output={"column": "type"}'
            )
        try:
            if isinstance(emitted[0], dict):
                columns = [[row[name] for row in emitted] for name in schema.names]
            else:
                columns = [list(c) for c in zip(*emitted, strict=True)]
                if len(columns) != len(schema):
                    raise ValueError(f"rows of {len(columns)} values for {len(schema)} columns")
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise OperatorError(
                f"operator {self.node.name!r} declares the output {', '.join(f'{f.name} {f.type}' for f in schema)}, "
                f"but emitted {emitted[0]!r}: {type(error).__name__}: {error}"
            ) from None
        self.report.rows_out += len(emitted)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _new(self) -> Any:
        return self.operator.state() if self.operator.state else None

    def _load(self, data: bytes) -> Any:
        return self._decode.decode(data) if self._decode else None

    def _save(self, state: Any) -> bytes:
        return self._encode.encode(state) if self._decode else b""

    def _deadlines(self, n: int) -> NDArray[np.int64]:
        ttl = self.node.ttl
        return np.full(n, NEVER if ttl is None else self.context.clock + ttl)


class _Handed(Sequence[Any]):
    """A key's rows, remembering the last one looked at, so that an error can name it."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.last: Any = rows[0] if rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        found = self._rows[at]
        if not isinstance(at, slice):
            self.last = found
        return found

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.last = row
            yield row


def failed(node: Node, key: Any, row: Any, error: BaseException) -> WeirError:
    """The error that a user sees when a function of theirs fails."""
    if isinstance(error, WeirError) and not isinstance(error, OperatorError):
        error_text = str(error)
    else:
        error_text = f"{type(error).__name__}: {error}"
    what = row._asdict() if hasattr(row, "_asdict") else row
    about = f", key {key!r}" if key is not None else ""
    return OperatorError(
        f"operator {node.name!r}{about}: {error_text}; at row {what!r}. "
        'Mend the function, or set on_error="divert" to send such rows to the dead letters.'
    )


def _among(table: pa.Table, h1: NDArray[np.uint64], h2: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which entries of a table belong to the given keys."""
    both = np.concatenate([table[H1].to_numpy(), h1]), np.concatenate([table[H2].to_numpy(), h2])
    groups, _ = group_rows(*both)
    n = table.num_rows
    known = np.zeros(len(groups) + 1, np.bool_)
    known[groups[n:]] = True
    return known[groups[:n]]


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def make_instance(node: Node, context: Context, report: OperatorReport) -> Instance:
    operator: Operator = node.operator
    if isinstance(operator, Aggregate):
        return AggregateInstance(node, context, report)
    if isinstance(operator, Process):
        return ProcessInstance(node, context, report)
    if isinstance(operator, Read):
        return ReadInstance(node, context, report)
    return StatelessInstance(node, context, report)


__all__ = ["Context", "Instance", "make_instance", "stored_schema"]
