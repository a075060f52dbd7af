"""The digest of an answer: the same for the same rows in any order, another for anything else.

In: an answer as an Arrow table.
Out: 64 hex digits for the receipt, and the comparison of two digests.
Promise: pure; names, types, values and duplicates count, order does not, floats count to ten digits; no Python runs per row except to hash distinct strings.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]  # one row per value, two 64-bit words each

_ROWS_AT_ONCE = 1 << 17
_DIGITS = 10
# A float that two runs compute a little differently can fall on two sides of a rounding step. Two grids, half a step apart, share no step,
# and neither has one where decimal fractions of a few digits lie.
_GRIDS = (0.2281718, 0.7281718)
_NULL = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)
_STEP = np.array([0xD6E8FEB86659FD93, 0xA0761D6478BD642F], dtype=np.uint64)
_SEED = np.array([0x2545F4914F6CDD1D, 0xE7037ED1A0B428DB], dtype=np.uint64)


def answer_digest(answer: pa.Table) -> str:
    """Return the digest of an answer; compare digests with `digests_agree`."""
    has_floats = any(_holds_floats(field.type) for field in answer.schema)
    digests = [_digest(answer, grid) for grid in (_GRIDS if has_floats else _GRIDS[:1])]
    return digests[0] + digests[-1]


def digests_agree(first: str, second: str) -> bool:
    """Tell whether two digests are of the same rows: equal on one of the two grids that floats are rounded to."""
    if len(first) != 64 or len(second) != 64:
        return False
    return first[:32] == second[:32] or first[32:] == second[32:]


def _digest(answer: pa.Table, grid: float) -> str:
    batches = answer.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE)
    # Sums do not care for order and do for duplicates; four of them over well-mixed words leave no room for chance.
    sums = np.zeros(4, dtype=np.uint64)
    for batch in batches:
        words = _row_words(batch, grid)
        sums += np.concatenate([words.sum(axis=0), _mixed(words + _NULL).sum(axis=0)])
    content = hashlib.blake2b(_shape(answer).encode(), digest_size=16)
    content.update(sums.astype("<u8").tobytes())
    return content.hexdigest()


def _shape(answer: pa.Table) -> str:
    columns = [(field.name, str(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)) for field in answer.schema]
    return repr((answer.num_rows, columns))


def _row_words(batch: pa.RecordBatch, grid: float) -> Words:
    words = np.broadcast_to(_SEED, (batch.num_rows, 2))
    for column in batch.columns:
        words = _mixed(words * _STEP + _words(column, grid))
    return words


def _mixed(words: Words) -> Words:
    """Spread each word's bits over the whole word (the finisher of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _words(column: pa.Array, grid: float) -> Words:
    """Return two words per value that depend on nothing but the value."""
    kind = column.type
    if not len(column):
        return np.empty((0, 2), dtype=np.uint64)
    if pa.types.is_dictionary(kind):
        return _words(column.dictionary_decode(), grid)
    if isinstance(kind, pa.BaseExtensionType):
        return _words(column.storage, grid)
    if pa.types.is_null(kind):
        return np.tile(_NULL, (len(column), 1))
    words = _valid_words(column, grid)
    if column.null_count:
        words[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return words


def _valid_words(column: pa.Array, grid: float) -> Words:
    kind = column.type
    if pa.types.is_floating(kind):
        return _float_words(column, grid)
    if pa.types.is_decimal(kind):
        return _decimal_words(column)
    if pa.types.is_struct(kind):
        return _struct_words(column, grid)
    if pa.types.is_map(kind):
        return _list_words(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))), grid, ordered=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_words(column, grid, ordered=True)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return _integer_words(column)
    return _distinct_words(column)


def _from_parts(*parts: npt.NDArray[Any]) -> Words:
    words = np.broadcast_to(_SEED, (len(parts[0]), 2))
    for part in parts:
        words = _mixed(words * _STEP + part.astype(np.uint64, copy=False)[:, np.newaxis])
    return words


def _integer_words(column: pa.Array) -> Words:
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    zero = False if pa.types.is_boolean(kind) else 0
    values: npt.NDArray[Any] = column.fill_null(zero).to_numpy(zero_copy_only=False)
    # Not mixed here: whoever takes these words in mixes them, once per column instead of twice.
    return np.repeat(values.astype(np.uint64, copy=False)[:, np.newaxis], 2, axis=1)


def _float_words(column: pa.Array, grid: float) -> Words:
    """Round to ten significant digits: mantissa and exponent count, minus zero is zero, all NaN are one value."""
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    ordinary = np.isfinite(values) & (values != 0)
    size = np.where(ordinary, np.abs(values), 1.0)
    exponent = np.floor(np.log10(size))
    shift = _DIGITS - 1 - exponent
    # In two steps, since the power of ten for the smallest floats is itself no float.
    half = np.floor(shift / 2)
    mantissa = np.floor(size * np.power(10.0, half) * np.power(10.0, shift - half) + grid)
    carried = mantissa >= 10.0**_DIGITS
    mantissa, exponent = np.where(carried, 10.0 ** (_DIGITS - 1), mantissa), exponent + carried
    kind = np.select([np.isnan(values), values == np.inf, values == -np.inf, values == 0, values > 0], [1, 2, 3, 4, 5], 6)
    return _from_parts(kind, np.where(ordinary, mantissa, 0).astype(np.int64), np.where(ordinary, exponent, 0).astype(np.int64))


def _decimal_words(column: pa.Array) -> Words:
    wide = column if column.type.bit_width >= 64 else column.cast(pa.decimal128(column.type.precision, column.type.scale))
    width = wide.type.bit_width // 64
    stored = np.frombuffer(wide.buffers()[1], dtype="<u8")[wide.offset * width : (wide.offset + len(wide)) * width].reshape(-1, width)
    return _from_parts(*stored.T)


def _struct_words(column: pa.Array, grid: float) -> Words:
    words = np.broadcast_to(_SEED, (len(column), 2))
    for field in column.flatten():
        words = _mixed(words * _STEP + _words(field, grid))
    return np.array(words)


def _list_words(column: pa.Array, grid: float, *, ordered: bool) -> Words:
    """Add up each list's elements, each with its place; the entries of a map have no place."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = _words(column.flatten(), grid)
    owners = np.repeat(np.arange(len(column)), lengths)
    if ordered:
        places = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        elements = elements * _STEP + places.astype(np.uint64)[:, np.newaxis]
    words = np.tile(_SEED, (len(column), 1))
    np.add.at(words, owners, _mixed(elements))
    return _mixed(words)


def _distinct_words(column: pa.Array) -> Words:
    """Hash each distinct string or binary once; what Arrow cannot tell apart by itself goes by its Python value."""
    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return _hashed(repr(value).encode() for value in column.to_pylist())
    distinct = encoded.dictionary
    texts = distinct.cast(pa.large_binary()).to_pylist() if _is_text(column.type) else [repr(value).encode() for value in distinct.to_pylist()]
    hashed = _hashed([*texts, b""])  # one more, so that a column of nulls has something to point at
    places: npt.NDArray[np.int32] = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return hashed[places]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _hashed(texts: Iterable[bytes]) -> Words:
    joined = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    return np.frombuffer(joined, dtype="<u8").reshape(-1, 2).astype(np.uint64)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_floats(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_floats(kind.storage_type)
    return bool(pa.types.is_floating(kind)) or any(_holds_floats(kind.field(place).type) for place in range(kind.num_fields))
