"""HyperLogLog over whole columns: approximate distinct counts per group.

Reference: P. Flajolet, É. Fusy, O. Gandouet, F. Meunier, "HyperLogLog: the analysis of a near-optimal
cardinality estimation algorithm", 2007; small counts by linear counting.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.compiled import compiled
from weir.hashing import hash_columns

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
