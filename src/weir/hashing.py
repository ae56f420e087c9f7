"""Spark's ``xxhash64``, bit for bit, over Arrow columns.

Where Spark counts keys (``weir advise``) and where Python routes rows, a key must have the same
hash. So this module computes Spark's very number, vectorised over Arrow buffers, for every type a key may have. It is
the hash behind state look-ups and routing tables, too.

Reference: Y. Collet, xxHash (XXH64); Spark's ``XxHash64`` expression folds columns by using the hash of one
as the seed of the next, starts from 42, and passes over nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from weir.compiled import compiled, helper
from weir.errors import ParameterError

SPARK_SEED = 42
SECOND_SEED = 0x9E3779B97F4A7C15  # an independent hash of the same key, for 128 bits in all

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_MASK32 = np.uint64(0xFFFFFFFF)


@helper
def _rotl(x, r):  # type: ignore[no-untyped-def]
    return (x << np.uint64(r)) | (x >> np.uint64(64 - r))


@helper
def _avalanche(h):  # type: ignore[no-untyped-def]
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


@helper
def _read(data, at, width):  # type: ignore[no-untyped-def]
    out = np.uint64(0)
    for i in range(width):
        out |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return out


@compiled("int32[]", "bool[]", "out uint64[]")
def _hash_int(values, valid, seeds):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        if valid[i]:
            h = seeds[i] + _P5 + np.uint64(4)
            h ^= (np.uint64(values[i]) & _MASK32) * _P1
            h = _rotl(h, 23) * _P2 + _P3
            seeds[i] = _avalanche(h)


@compiled("int64[]", "bool[]", "out uint64[]")
def _hash_long(values, valid, seeds):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        if valid[i]:
            h = seeds[i] + _P5 + np.uint64(8)
            h ^= _rotl(np.uint64(values[i]) * _P2, 31) * _P1
            h = _rotl(h, 27) * _P1 + _P4
            seeds[i] = _avalanche(h)


@compiled("uint8[]", "int64[]", "bool[]", "out uint64[]")
def _hash_bytes(data, offsets, valid, seeds):  # type: ignore[no-untyped-def]
    for i in range(len(seeds)):
        if not valid[i]:
            continue
        seed = seeds[i]
        at = offsets[i]
        length = offsets[i + 1] - at
        end = at + length
        if length >= 32:
            v1 = seed + _P1 + _P2
            v2 = seed + _P2
            v3 = seed
            v4 = seed - _P1
            while at + 32 <= end:
                v1 = _rotl(v1 + _read(data, at, 8) * _P2, 31) * _P1
                v2 = _rotl(v2 + _read(data, at + 8, 8) * _P2, 31) * _P1
                v3 = _rotl(v3 + _read(data, at + 16, 8) * _P2, 31) * _P1
                v4 = _rotl(v4 + _read(data, at + 24, 8) * _P2, 31) * _P1
                at += 32
            h = _rotl(v1, 1) + _rotl(v2, 7) + _rotl(v3, 12) + _rotl(v4, 18)
            h = (h ^ (_rotl(v1 * _P2, 31) * _P1)) * _P1 + _P4
            h = (h ^ (_rotl(v2 * _P2, 31) * _P1)) * _P1 + _P4
            h = (h ^ (_rotl(v3 * _P2, 31) * _P1)) * _P1 + _P4
            h = (h ^ (_rotl(v4 * _P2, 31) * _P1)) * _P1 + _P4
        else:
            h = seed + _P5
        h += np.uint64(length)
        while at + 8 <= end:
            h ^= _rotl(_read(data, at, 8) * _P2, 31) * _P1
            h = _rotl(h, 27) * _P1 + _P4
            at += 8
        if at + 4 <= end:
            h ^= _read(data, at, 4) * _P1
            h = _rotl(h, 23) * _P2 + _P3
            at += 4
        while at < end:
            h ^= np.uint64(data[at]) * _P5
            h = _rotl(h, 11) * _P1
            at += 1
        seeds[i] = _avalanche(h)


def _fold(array: pa.Array, seeds: NDArray[np.uint64]) -> None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if len(array) == 0:
        return None
    valid = np.ones(len(array), np.bool_)
    if array.null_count:
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        width: type[np.signedinteger] = np.int32
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        width = np.int64
    elif pa.types.is_timestamp(kind):
        return _hash_long(_filled(pc.cast(array, pa.timestamp("us", kind.tz)).view(pa.int64())), valid, seeds)
    elif pa.types.is_date(kind):
        return _hash_int(_filled(pc.cast(array, pa.date32()).view(pa.int32())), valid, seeds)
    elif pa.types.is_boolean(kind) or kind in (pa.int8(), pa.int16(), pa.int32()):
        return _hash_int(_filled(pc.cast(array, pa.int32())), valid, seeds)
    elif kind == pa.int64():
        return _hash_long(_filled(array), valid, seeds)
    else:
        raise TypeError(f"cannot hash a column of type {kind}")
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=width)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.zeros(1, np.uint8)
    return _hash_bytes(data, offsets.astype(np.int64, copy=False), valid, seeds)


def _filled(array: pa.Array) -> NDArray[np.generic]:
    if array.null_count:
        array = array.fill_null(0)
    return array.to_numpy(zero_copy_only=False)


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = SPARK_SEED) -> NDArray[np.uint64]:
    """Return the hash of each row over one or several Arrow columns of equal length.

    With the default seed this equals Spark's ``xxhash64(*columns)`` (as an unsigned number).

    >>> hash_columns([pa.array(["Spark"]), pa.array([123], pa.int32())]).astype("int64").tolist()
    [-7770970918500510695]
    """
    if not columns:
        raise ParameterError("hash_columns needs at least one column")
    seeds = np.full(len(columns[0]), seed, dtype=np.uint64)
    for column in columns:
        if isinstance(column, pa.ChunkedArray):
            at = 0
            for chunk in column.chunks:
                _fold(chunk, seeds[at : at + len(chunk)])
                at += len(chunk)
        else:
            _fold(column, seeds)
    return seeds


def hash_home(
    hashes: NDArray[np.uint64], n: int, key_groups: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """Return where keys live that no table lists: by their hash, or where their key group has been moved.

    >>> hash_home(np.array([0, 2**63, 2**64 - 1], np.uint64), 2, np.array([0, 1, 1, 0], np.int32)).tolist()
    [0, 1, 0]
    """
    return key_group(hashes, n) if key_groups is None else key_groups[key_group(hashes, len(key_groups))]


def key_group(hashes: NDArray[np.uint64], n: int) -> NDArray[np.int32]:
    """Return which of ``n`` ranges each hash lies in: contiguous, even, in order.

    State is sorted by hash, so a key group is a slice of every file of it. ``m * n`` groups refine ``n`` groups.

    >>> key_group(np.array([0, 2**62, 2**63, 2**64 - 1], np.uint64), 3).tolist()
    [0, 0, 1, 2]
    """
    return ((hashes >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int32)


def group_starts(n: int) -> NDArray[np.uint64]:
    """Return the lowest hash of each of ``n`` key groups.

    >>> starts = group_starts(6)
    >>> key_group(starts, 6).tolist(), key_group(starts[1:] - np.uint64(1), 6).tolist()
    ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    """
    return ((np.arange(n, dtype=np.uint64) << np.uint64(32)) + np.uint64(n - 1)) // np.uint64(n) << np.uint64(
        32
    )


def _mix(key, salt):  # type: ignore[no-untyped-def]
    x = key + (salt + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


mixed = helper(_mix)  # the same as `mix`, for compiled functions


def mix(key: Any, salt: Any) -> Any:
    """A well-mixed 64-bit number from a key's hash and a salt (the finaliser of SplitMix64), or an array of them.

    >>> int(mix(np.uint64(7), np.uint64(1)))
    309689372594955804
    """
    with np.errstate(over="ignore"):
        return _mix(key, salt)
