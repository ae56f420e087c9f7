"""Spark's ``xxhash64``, bit for bit, over Arrow columns; and a keyed hash of the same columns.

Where Spark counts keys (``weir advise``) and where Python routes rows, a key must have the same
hash. So this module computes Spark's very number, vectorised over Arrow buffers, for every type a key may have. It is
the hash behind state look-ups and routing tables, too. Whoever knows how it works can compute keys that share it. So
what tells keys of one hash apart is :func:`keyed_hash`, which nobody can compute without its secret.

Reference: Y. Collet, xxHash (XXH64); Spark's ``XxHash64`` expression folds columns by using the hash of one
as the seed of the next, starts from 42, and passes over nulls. J.-P. Aumasson, D. J. Bernstein, SipHash: a fast
short-input PRF, INDOCRYPT 2012.
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
SECOND_SEED = 0x9E3779B97F4A7C15  # an independent hash of the same columns, for 128 bits in all

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


@helper
def _sip_round(v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    v0 += v1
    v1 = _rotl(v1, 13) ^ v0
    v0 = _rotl(v0, 32)
    v2 += v3
    v3 = _rotl(v3, 16) ^ v2
    v0 += v3
    v3 = _rotl(v3, 21) ^ v0
    v2 += v1
    v1 = _rotl(v1, 17) ^ v2
    v2 = _rotl(v2, 32)
    return v0, v1, v2, v3


@helper
def _sip_word(v0, v1, v2, v3, word):  # type: ignore[no-untyped-def]
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@helper
def _sip_begin(secret, word):  # type: ignore[no-untyped-def]
    v0, v1 = secret[0] ^ np.uint64(0x736F6D6570736575), secret[1] ^ np.uint64(0x646F72616E646F6D)
    v2, v3 = secret[0] ^ np.uint64(0x6C7967656E657261), secret[1] ^ np.uint64(0x7465646279746573)
    return _sip_word(v0, v1, v2, v3, word)


@helper
def _sip_end(v0, v1, v2, v3, word):  # type: ignore[no-untyped-def]
    v0, v1, v2, v3 = _sip_word(v0, v1, v2, v3, word)
    v2 ^= np.uint64(0xFF)
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


# SipHash-1-3 of eight bytes, the hash of the columns before, and the column's own bytes


@compiled("int64[]", "bool[]", "uint64[]", "out uint64[]")
def _sip_long(values, valid, secret, hashes):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        if valid[i]:
            v0, v1, v2, v3 = _sip_begin(secret, hashes[i])
            v0, v1, v2, v3 = _sip_word(v0, v1, v2, v3, np.uint64(values[i]))
            hashes[i] = _sip_end(v0, v1, v2, v3, np.uint64(16) << np.uint64(56))


@compiled("uint8[]", "int64[]", "bool[]", "uint64[]", "out uint64[]")
def _sip_bytes(data, offsets, valid, secret, hashes):  # type: ignore[no-untyped-def]
    for i in range(len(hashes)):
        if valid[i]:
            at, end = offsets[i], offsets[i + 1]
            length = np.uint64(end - at + 8) << np.uint64(56)
            v0, v1, v2, v3 = _sip_begin(secret, hashes[i])
            while at + 8 <= end:
                v0, v1, v2, v3 = _sip_word(v0, v1, v2, v3, _read(data, at, 8))
                at += 8
            hashes[i] = _sip_end(v0, v1, v2, v3, length | _read(data, at, end - at))


def _fold(array: pa.Array, hashes: NDArray[np.uint64], secret: NDArray[np.uint64] | None) -> None:
    """Go on from the hashes of the columns before with one more: by XXH64, or by SipHash with a secret."""
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
        return _fold_numbers(
            pc.cast(array, pa.timestamp("us", kind.tz)).view(pa.int64()), valid, hashes, secret
        )
    elif pa.types.is_date(kind):
        return _fold_numbers(pc.cast(array, pa.date32()).view(pa.int32()), valid, hashes, secret)
    elif pa.types.is_boolean(kind) or kind in (pa.int8(), pa.int16(), pa.int32()):
        return _fold_numbers(pc.cast(array, pa.int32()), valid, hashes, secret)
    elif kind == pa.int64():
        return _fold_numbers(array, valid, hashes, secret)
    else:
        raise TypeError(f"cannot hash a column of type {kind}")
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=width)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.zeros(1, np.uint8)
    offsets = offsets.astype(np.int64, copy=False)
    if secret is None:
        _hash_bytes(data, offsets, valid, hashes)
    else:
        _sip_bytes(data, offsets, valid, secret, hashes)
    return None


def _fold_numbers(
    array: pa.Array, valid: NDArray[np.bool_], hashes: NDArray[np.uint64], secret: NDArray[np.uint64] | None
) -> None:
    values = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    if secret is not None:
        _sip_long(values.astype(np.int64, copy=False), valid, secret, hashes)
    elif values.dtype == np.int32:
        _hash_int(values, valid, hashes)
    else:
        _hash_long(values, valid, hashes)


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = SPARK_SEED) -> NDArray[np.uint64]:
    """Return the hash of each row over one or several Arrow columns of equal length.

    With the default seed this equals Spark's ``xxhash64(*columns)`` (as an unsigned number).

    >>> hash_columns([pa.array(["Spark"]), pa.array([123], pa.int32())]).astype("int64").tolist()
    [-7770970918500510695]
    """
    return _hashes(columns, seed, None)


def keyed_hash(columns: Sequence[pa.Array | pa.ChunkedArray], secret: str) -> NDArray[np.uint64]:
    """Return a hash of each row that nobody can compute who does not know the secret: SipHash-1-3.

    ``secret`` is a key of 128 bits as hexadecimal digits. Without one, this is another XXH64, as it was in checkpoints
    of earlier versions.

    >>> keyed_hash([pa.array(["Spark"])], "00" * 16).tolist() == keyed_hash([pa.array(["Spark"])], "01" * 16).tolist()
    False
    """
    if not secret:
        return _hashes(columns, SECOND_SEED, None)
    return _hashes(columns, 0, np.frombuffer(bytes.fromhex(secret), "<u8").astype(np.uint64))


def _hashes(
    columns: Sequence[pa.Array | pa.ChunkedArray], first: int, secret: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    if not columns:
        raise ParameterError("a hash needs at least one column")
    hashes = np.full(len(columns[0]), first, dtype=np.uint64)
    for column in columns:
        at = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            _fold(chunk, hashes[at : at + len(chunk)], secret)
            at += len(chunk)
    return hashes


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
