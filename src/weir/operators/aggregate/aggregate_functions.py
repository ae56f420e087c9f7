"""The functions of :class:`~weir.Aggregate`: how each begins, merges and finishes, on whole columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.columns import to_type
from weir.compiled import compiled
from weir.errors import OperatorError, TopologyError, renamed
from weir.extras import install
from weir.hashing import hash_columns
from weir.operators.grouped import Groups, extreme_rows, reduce_groups, sort_key
from weir.values import to_array

BITS = 10
REGISTERS = 1 << BITS
_SEED = 0x5EED


@compiled("uint64[]", "bool[]", "int64[]", "out uint8[,]")
def _fill(hashes, valid, groups, registers):  # type: ignore[no-untyped-def]
    for i in range(len(hashes)):
        if not valid[i]:
            continue
        h = hashes[i]
        at = h >> np.uint64(64 - BITS)
        rest = (h << np.uint64(BITS)) | np.uint64(1 << (BITS - 1))
        rank = 1
        while not rest >> np.uint64(63):
            rest <<= np.uint64(1)
            rank += 1
        if registers[groups[i], at] < rank:
            registers[groups[i], at] = rank


@compiled("uint8[,]", "bool[]", "int64[]", "out uint8[,]")
def _merge(states, valid, groups, registers):  # type: ignore[no-untyped-def]
    for i in range(len(groups)):
        if valid[i]:
            mine, all_of = states[i], registers[groups[i]]
            for r in range(REGISTERS):
                all_of[r] = max(all_of[r], mine[r])


@compiled("uint8[,]", "float64[]", "out float64[]", "out int64[]")
def _sums(registers, powers, sums, zeros):  # type: ignore[no-untyped-def]
    """Add up 2⁻ʳ over the registers of each row, and how many of them are zero."""
    for i in range(len(registers)):
        for register in registers[i]:
            sums[i] += powers[register]
            zeros[i] += register == 0


def _hashes(column: pa.Array) -> NDArray[np.uint64]:
    kind = column.type
    if pa.types.is_floating(kind):
        # as in Spark, −0.0 equals 0.0, and NaN equals NaN
        numbers = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        column = pa.array(numbers.view(np.int64))
    elif pa.types.is_decimal(kind) or pa.types.is_time(kind) or pa.types.is_unsigned_integer(kind):
        column = pc.cast(column, pa.string())
    return hash_columns([column], _SEED)


def fill(column: pa.Array, groups: NDArray[np.int64], n: int) -> pa.Array:
    """Return the registers of each group after seeing its values; nulls are passed over."""
    registers = np.zeros((n, REGISTERS), np.uint8)
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    _fill(_hashes(column), valid, groups, registers)
    return _to_arrow(registers)


def merge_registers(states: pa.Array, groups: NDArray[np.int64], n: int) -> pa.Array:
    """Merge the registers of rows of equal group."""
    registers = np.zeros((n, REGISTERS), np.uint8)
    valid = np.asarray(states.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    _merge(_to_numpy(states), valid, groups, registers)
    return _to_arrow(registers)


def estimate(states: pa.Array) -> pa.Array:
    """Return the number of distinct values behind each set of registers.

    >>> values = pa.array([f"user {i % 5000}" for i in range(20_000)])
    >>> n = estimate(fill(values, np.zeros(20_000, np.int64), 1))[0].as_py()
    >>> abs(n - 5000) < 500
    True
    """
    m = float(REGISTERS)
    sums, zeros = np.zeros(len(states)), np.zeros(len(states), np.int64)
    _sums(_to_numpy(states), np.exp2(-np.arange(65.0)), sums, zeros)
    raw = (0.7213 / (1 + 1.079 / m)) * m * m / sums
    with np.errstate(divide="ignore"):
        linear = m * np.log(m / np.maximum(zeros, 1e-9))
    value = np.where((raw <= 2.5 * m) & (zeros > 0), linear, raw)
    return pa.array(np.rint(value).astype(np.int64))


def _to_arrow(registers: NDArray[np.uint8]) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(registers))
    return pa.Array.from_buffers(pa.binary(REGISTERS), len(registers), [None, buffer])


def _to_numpy(states: pa.Array) -> NDArray[np.uint8]:
    data = np.frombuffer(states.buffers()[1], np.uint8)
    start = states.offset * REGISTERS
    return data[start : start + len(states) * REGISTERS].reshape(-1, REGISTERS)


Columns = list[pa.Array]
Kinds = Sequence[pa.DataType]


class AggregateFunction:
    """One value of an :class:`~weir.Aggregate`: subclass it for one of your own, on whole Arrow columns.

    Rows arrive in groups, one per key: ``groups`` has for each row the number of its group, below ``n``. State is one
    or more Arrow columns with one row per group. Merging must not depend on order: partial states of a key meet in any.
    State columns may be null, for a key that was there before the value was added to the application; a null state has
    seen no row. For a function of plain Python values, see :class:`~weir.operators.PythonAggregate`.

    * ``columns``: the columns that it reads.
    * ``suffixes``: one per state column, appended to the value's name.
    * ``value``: the type of the value that users see; that of its first column if it is None.
    * ``state``: the types of the state columns; by default it keeps the value itself.
    * ``takes``: which types of columns it works on.

    >>> class Product(AggregateFunction):
    ...     value = pa.float64()
    ...     def begin(self, columns, groups, n):
    ...         return [reduce_groups(columns[0].cast(pa.float64()), groups, n, "product")]
    ...     def merge(self, states, groups, n):
    ...         return [reduce_groups(states[0], groups, n, "product")]
    >>> from weir import Aggregate
    >>> Aggregate(chance=Product("p")).describe()
    'Aggregate(chance=Product(p))'
    """

    suffixes: Sequence[str] = ("",)
    value: pa.DataType | None = None
    state: Sequence[pa.DataType] = ()
    takes: Callable[[pa.DataType], bool] = staticmethod(lambda kind: True)
    function: str  # what a checkpoint calls it: the name of its class, or of those below

    def __init_subclass__(cls) -> None:
        cls.function = cls.__name__

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def accepts(self, kinds: Kinds) -> bool:
        """Return whether it works on columns of these types."""
        return all(map(self.takes, kinds))

    def result(self, kinds: Kinds) -> pa.DataType:
        """Return the type of the value that users see."""
        return kinds[0] if self.value is None else self.value

    def types(self, kinds: Kinds) -> Kinds:
        """Return the types of its state columns."""
        return self.state or [self.result(kinds)]

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        """Return the state columns of ``n`` groups of rows."""
        raise NotImplementedError

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        """Merge states: rows of equal group become one."""
        raise NotImplementedError

    def finish(self, states: Columns) -> pa.Array:
        """Return the values that users see."""
        return states[0]

    @property
    def keeps_value(self) -> bool:
        """Whether its state is the value that users see, so that it can go on from that alone."""
        return type(self).finish is AggregateFunction.finish and tuple(self.suffixes) == ("",)

    @property
    def arguments(self) -> str | None:
        """What stands between the parentheses where it is written as text; part of what a checkpoint is known by."""
        return ", ".join(self.columns) or None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_ordered(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        is_number(kind) or t.is_string(kind) or t.is_binary(kind) or t.is_temporal(kind) or t.is_boolean(kind)
    )


class SavedAsBytes(AggregateFunction):
    """Base of functions whose states are Python objects, saved as bytes; null for one that has seen no value."""

    state = (pa.binary(),)

    def read(self, data: bytes) -> Any:
        raise NotImplementedError

    def write(self, state: Any) -> bytes:
        raise NotImplementedError

    def seen(self, values: Any) -> Any:
        """Return the state that has seen some values."""
        raise NotImplementedError

    def join(self, one: Any, other: Any) -> Any:
        """Return the state that has seen what both have seen."""
        raise NotImplementedError

    def of_sorted(self, values: Any, groups: Groups, n: int) -> Columns:
        """Return the states of groups, given values in the order of their groups."""
        bounds = pairwise(np.searchsorted(groups, np.arange(n + 1)).tolist())
        states = [None if a == b else self.write(self.seen(values[a:b])) for a, b in bounds]
        return [pa.array(states, pa.binary())]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        out: list[bytes | None] = [None] * n
        merged: dict[int, Any] = {}  # only groups that have several are read and written
        for group, data in zip(groups.tolist(), states[0].to_pylist(), strict=True):
            before = out[group]
            if data is None or before is None:
                out[group] = data or before
            else:
                known = merged[group] if group in merged else self.read(before)
                merged[group] = self.join(known, self.read(data))
        for group, state in merged.items():
            out[group] = self.write(state)
        return [pa.array(out, pa.binary())]


def valid_rows(columns: Columns) -> NDArray[np.bool_]:
    """Return which rows have a value in every column."""
    out: Any = True
    for column in columns:
        out = out & np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return np.asarray(out)


def _doubles(column: pa.Array, groups: Groups) -> tuple[NDArray[np.float64], Groups]:
    """Return the numbers of a column that are there, and their groups."""
    valid = valid_rows([column])
    numbers = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
    return numbers[valid], groups[valid]


class Counted(AggregateFunction):
    """``count`` and ``count(c)``: rows, or those with a value."""

    value = pa.int64()
    keeps_value = True

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        if columns and columns[0].null_count:
            groups = groups[valid_rows(columns)]
        return [pa.array(np.bincount(groups, minlength=n).astype(np.int64))]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        return [reduce_groups(states[0], groups, n, "sum")]

    def finish(self, states: Columns) -> pa.Array:
        return pc.fill_null(states[0], 0)


class Sum(AggregateFunction):
    """``sum(c)``: 64 bits wide for integers."""

    how = "sum"
    takes = staticmethod(is_number)

    def result(self, kinds: Kinds) -> pa.DataType:
        if pa.types.is_decimal(kinds[0]):
            return pa.decimal128(38, kinds[0].scale)
        return pa.float64() if pa.types.is_floating(kinds[0]) else pa.int64()

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        return [reduce_groups(columns[0].cast(self.result([columns[0].type])), groups, n, self.how)]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        return [reduce_groups(states[0], groups, n, self.how)]


class Min(Sum):
    """``min(c)``."""

    how = "min"
    takes = staticmethod(is_ordered)

    def result(self, kinds: Kinds) -> pa.DataType:
        return kinds[0]


class Max(Min):
    """``max(c)``."""

    how = "max"


class Mean(AggregateFunction):
    """``mean(c)``, also ``avg(c)``."""

    suffixes, state = (".sum", ".count"), (pa.float64(), pa.int64())
    value, takes = pa.float64(), staticmethod(is_number)

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        total = reduce_groups(columns[0].cast(pa.float64(), safe=False), groups, n, "sum")
        return [pc.fill_null(total, 0.0), *Counted().begin(columns, groups, n)]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        return [reduce_groups(state, groups, n, "sum") for state in states]

    def finish(self, states: Columns) -> pa.Array:
        total, count = states
        return pc.if_else(pc.greater(count, 0), pc.divide(total, pc.cast(count, pa.float64())), None)


class Variance(AggregateFunction):
    """``variance(c)``: of a sample (divided by n − 1), null for fewer than two values.

    Kept as count, mean and sum of squared distances from the mean; merged as T. Chan, G. Golub, R. LeVeque,
    "Updating formulae and a pairwise algorithm for computing sample variances", 1979, so that large values with
    small differences lose nothing.
    """

    suffixes, state = (".count", ".mean", ".squares"), (pa.int64(), pa.float64(), pa.float64())
    value, takes = pa.float64(), staticmethod(is_number)

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        values, groups = _doubles(columns[0], groups)
        return self._merged(np.ones(len(values), np.int64), values, np.zeros(len(values)), groups, n)

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        count, mean, squares = (s.fill_null(0).to_numpy(zero_copy_only=False) for s in states)
        return self._merged(count, mean, squares, groups, n)

    @staticmethod
    def _merged(count: Any, mean: Any, squares: Any, groups: Groups, n: int) -> Columns:
        total = np.bincount(groups, count, n)
        average = np.bincount(groups, count * mean, n) / np.maximum(total, 1)
        with np.errstate(invalid="ignore"):  # infinite values have no variance
            apart = np.bincount(groups, squares + count * (mean - average[groups]) ** 2, n)
        return [pa.array(total.astype(np.int64)), pa.array(average), pa.array(apart)]

    def finish(self, states: Columns) -> pa.Array:
        count, _, squares = (s.fill_null(0).to_numpy(zero_copy_only=False) for s in states)
        return pa.array(squares / np.maximum(count - 1, 1), mask=count < 2)


class Stddev(Variance):
    """``stddev(c)``: the square root of ``variance(c)``."""

    def finish(self, states: Columns) -> pa.Array:
        return pc.sqrt(super().finish(states))


class ApproxDistinct(AggregateFunction):
    """``approx_distinct(c)``: HyperLogLog, see :mod:`weir.operators.aggregate.aggregate_functions`."""

    suffixes, state = (".registers",), (pa.binary(REGISTERS),)
    value, takes = pa.int64(), staticmethod(lambda kind: not pa.types.is_nested(kind))

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        return [fill(columns[0], groups, n)]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        return [merge_registers(states[0], groups, n)]

    def finish(self, states: Columns) -> pa.Array:
        (registers,) = states
        if registers.null_count:
            registers = merge_registers(registers, np.arange(len(registers)), len(registers))
        return estimate(registers)


class First(AggregateFunction):
    """``first(c, order)``: the value of ``c`` in the row with the least ``order``; of equals the least value.

    So the answer depends on the rows alone, not on the order in which they arrive. Rows in which either is null don't
    count.
    """

    suffixes, takes = (".value", ".order"), staticmethod(is_ordered)
    greatest = False

    def types(self, kinds: Kinds) -> Kinds:
        return kinds

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        value, order = columns
        rows = extreme_rows(order, value, groups, n, self.greatest)
        chosen = pa.array(rows, mask=rows < 0)
        return [column.take(chosen) for column in columns]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        return self.begin(states, groups, n)


class Last(First):
    """``last(c, order)``: the value of ``c`` in the row with the greatest ``order``; of equals the greatest value."""

    greatest = True


class TopK(AggregateFunction):
    """``top_k(c, k)``: the ``k`` greatest values of ``c``, in descending order; with ``top_k(c, k, by)``, the values of
    ``c`` in the ``k`` rows with the greatest ``by``, of equals those with the greater value."""

    takes = staticmethod(is_ordered)

    def __init__(self, column: str, k: int, by: str | None = None) -> None:
        super().__init__(column, *([by] if by else []))
        self.k = k
        self.suffixes = (".values", ".orders") if by else (".values",)

    @property
    def arguments(self) -> str:
        return ", ".join([self.columns[0], str(self.k), *self.columns[1:]])

    def result(self, kinds: Kinds) -> pa.DataType:
        return _list_of(kinds[0])

    def types(self, kinds: Kinds) -> Kinds:
        return [_list_of(kind) for kind in kinds]

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        rows = np.flatnonzero(valid_rows(columns))
        table = pa.table({"g": groups, **{f"c{i}": sort_key(c) for i, c in enumerate(reversed(columns))}})
        table = table.take(pa.array(rows))
        by = [("g", "ascending"), *((name, "descending") for name in table.column_names[1:])]
        order = pc.sort_indices(table, sort_keys=by).to_numpy()
        numbers = groups[rows[order]]
        starts = np.searchsorted(numbers, numbers, "left")
        kept = np.arange(len(order)) - starts < self.k
        at = pa.array(rows[order[kept]])
        offsets = np.concatenate([[0], np.cumsum(np.bincount(numbers[kept], minlength=n))]).astype(np.int32)
        ends = pa.array(offsets, pa.int32())
        return [pa.ListArray.from_arrays(ends, c.take(at), type=_list_of(c.type)) for c in columns]

    def merge(self, states: Columns, groups: Groups, n: int) -> Columns:
        parents = pc.list_parent_indices(states[0]).to_numpy()
        return self.begin([pc.list_flatten(state) for state in states], groups[parents], n)

    def finish(self, states: Columns) -> pa.Array:
        if states[0].null_count:
            states = self.merge(states, np.arange(len(states[0])), len(states[0]))
        return states[0]


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def _number(text: str, kind: Callable[[str], Any], allowed: Callable[[Any], bool], expected: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not allowed(value):
        raise TopologyError(f"expected {expected}, not {text!r}")
    return value


def _top_k(column: str, k: str, by: str | None = None) -> AggregateFunction:
    return TopK(column, _number(k, int, lambda n: 0 < n <= 10_000, "a number from 1 to 10,000"), by)


def _approx_quantile(column: str, *ranks: str) -> AggregateFunction:
    expected = "a rank from 0 to 1, such as 0.5 for the median"
    return ApproxQuantile(column, *(_number(r, float, lambda x: 0 <= x <= 1, expected) for r in ranks))


# name → how it is made from its arguments, how many of these there may be, how it is written
FUNCTIONS: dict[str, tuple[Callable[..., AggregateFunction], range, str]] = {
    "count": (Counted, range(2), "count or count(column)"),
    "sum": (Sum, range(1, 2), "sum(column)"),
    "min": (Min, range(1, 2), "min(column)"),
    "max": (Max, range(1, 2), "max(column)"),
    "mean": (Mean, range(1, 2), "mean(column)"),
    "avg": (Mean, range(1, 2), "avg(column)"),
    "variance": (Variance, range(1, 2), "variance(column)"),
    "stddev": (Stddev, range(1, 2), "stddev(column)"),
    "first": (First, range(2, 3), "first(column, order): in a stream, only an order makes one row the first"),
    "last": (Last, range(2, 3), "last(column, order): in a stream, only an order makes one row the last"),
    "top_k": (_top_k, range(2, 4), "top_k(column, 3) or top_k(column, 3, by)"),
    "approx_distinct": (ApproxDistinct, range(1, 2), "approx_distinct(column)"),
    "approx_quantile": (_approx_quantile, range(2, 100), "approx_quantile(column, 0.5)"),
}


def named(function: str, *arguments: str) -> AggregateFunction:
    """Return one of these functions.

    >>> named("sum", "n").arguments
    'n'
    """
    for text in arguments:
        if not isinstance(text, str) or not text.strip() or {*text} & {*",()"}:
            raise TopologyError(
                f"{function}: expected a column's name without commas and parentheses, not {text!r}"
            )
    rule = FUNCTIONS[function][0](*arguments)
    rule.function = function
    return rule


class PythonAggregate(SavedAsBytes):
    """A value of an :class:`~weir.Aggregate` in plain Python.

    Parameters
    ----------
    column
        The column whose values it sees; nulls are left out.
    zero
        Returns the state that has seen nothing: numbers, text, lists, dicts, whatever msgspec can write.
    add
        ``add(state, values)`` returns the state that has seen some more values, given as a sorted list.
    merge
        ``merge(one, other)`` returns the state that has seen what both have seen, in whichever order they come.
    finish
        Returns the value of a state; the state itself if not given.
    result
        The type of that value, by Spark's name.

    Notes
    -----
    What is saved is known by the value's name and column alone: functions may change as long as states still fit.

    Examples
    --------
    >>> from weir import Aggregate
    >>> spread = PythonAggregate(
    ...     "price",
    ...     zero=lambda: None,
    ...     add=lambda state, values: [values[0], values[-1]] if state is None
    ...     else [min(state[0], values[0]), max(state[1], values[-1])],
    ...     merge=lambda a, b: [min(a[0], b[0]), max(a[1], b[1])],
    ...     finish=lambda state: state[1] - state[0],
    ...     result="double",
    ... )
    >>> Aggregate(spread=spread).describe()
    'Aggregate(spread=PythonAggregate(price))'
    """

    suffixes, takes = (".state",), staticmethod(is_ordered)

    @renamed(start="zero")
    def __init__(
        self,
        column: str,
        *,
        zero: Callable[[], Any],
        add: Callable[[Any, list[Any]], Any],
        merge: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any] | None = None,
        result: str | pa.DataType = "double",
    ) -> None:
        super().__init__(column)
        self._zero, self._add, self._join, self._finish = zero, add, merge, finish
        self.value = to_type(result)

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        rows = np.flatnonzero(valid_rows(columns))
        table = pa.table({"g": groups, "v": columns[0]}).take(pa.array(rows))
        order = pc.sort_indices(table, sort_keys=[("g", "ascending"), ("v", "ascending")])
        values = table["v"].take(order).to_pylist()
        return self.of_sorted(values, groups[rows][order.to_numpy()], n)

    def seen(self, values: Any) -> Any:
        return self._add(self._zero(), values)

    def join(self, one: Any, other: Any) -> Any:
        return self._join(one, other)

    def read(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data)

    def write(self, state: Any) -> bytes:
        return msgspec.msgpack.encode(state, order="deterministic")

    def finish(self, states: Columns) -> pa.Array:
        finish = self._finish or (lambda state: state)
        values = [None if s is None else finish(self.read(s)) for s in states[0].to_pylist()]
        try:
            return to_array(values, self.value)
        except ValueError as error:
            raise OperatorError(f"the finish of PythonAggregate({self.columns[0]}): {error}") from None


def _kll() -> Any:
    try:
        from datasketches import kll_doubles_sketch
    except ImportError:
        raise TopologyError(
            "approx_quantile needs Apache DataSketches where the driver and the executors run: "
            + install("sketches")
        ) from None
    return kll_doubles_sketch


class ApproxQuantile(SavedAsBytes):
    """``approx_quantile(c, 0.5)``: the value at a rank; with several ranks, the values as a list.

    A KLL sketch from Apache DataSketches: Z. Karnin, K. Lang, E. Liberty, "Optimal quantile approximation in streams",
    FOCS 2016.

    The rank of the answer is within 1.33 % of the one asked for, 99 times in 100 (KLL with k = 200); up to some 200
    values it is exact. The sketch draws random numbers: a batch that runs again may answer differently, within that
    error. Some 2 to 5 kB of state per key.
    """

    suffixes, takes = (".sketch",), staticmethod(is_number)

    def __init__(self, column: str, *ranks: float) -> None:
        super().__init__(column)
        self.ranks = ranks
        self.value = pa.float64() if len(ranks) == 1 else _list_of(pa.float64())
        _kll()

    @property
    def arguments(self) -> str:
        return ", ".join([self.columns[0], *(f"{rank:g}" for rank in self.ranks)])

    def begin(self, columns: Columns, groups: Groups, n: int) -> Columns:
        values, groups = _doubles(columns[0], groups)
        order = np.argsort(groups, kind="stable")
        return self.of_sorted(values[order], groups[order], n)

    def seen(self, values: Any) -> Any:
        sketch = _kll()()
        sketch.update(values)
        return sketch

    def join(self, one: Any, other: Any) -> Any:
        one.merge(other)
        return one

    def read(self, data: bytes) -> Any:
        return _kll().deserialize(data)

    def write(self, state: Any) -> bytes:
        return bytes(state.serialize())

    def finish(self, states: Columns) -> pa.Array:
        ranks, saved = list(self.ranks), states[0].to_pylist()
        values = [None if s is None else self.read(s).get_quantiles(ranks) for s in saved]
        if len(ranks) == 1:
            values = [None if v is None else v[0] for v in values]
        return pa.array(values, self.value)
