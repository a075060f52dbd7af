"""Rows and values as 128-bit words: equal values have equal words, and no Python runs per row.

In: Arrow arrays and record batches of any type, and the rules for floats and texts.
Out: two 64-bit words per row.
Promise: pure; words depend on nothing but the values. Rows of two batches can be compared by their words alone.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]  # one row per value, two 64-bit words each

NULL = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)
_STEP = np.array([0xD6E8FEB86659FD93, 0xA0761D6478BD642F], dtype=np.uint64)
_SEED = np.array([0x2545F4914F6CDD1D, 0xE7037ED1A0B428DB], dtype=np.uint64)
_BEGUN = _SEED * _STEP
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_LONG_TEXT = 512  # bytes; longer texts are rare, and each of them is hashed by itself
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)  # so many of eight


@dataclass(frozen=True, slots=True)
class Rules:
    """How two kinds of values become words: a digest rounds floats, an index does not."""

    floats: Callable[[pa.Array], Words]
    texts: Callable[[pa.Array], Words]


def row_words(batch: pa.RecordBatch, rules: Rules) -> Words:
    """Return two words per row."""
    return combined([value_words(column, rules) for column in batch.columns], batch.num_rows)


def combined(columns: Sequence[Words], rows: int) -> Words:
    """Return two words per row from those of its values."""
    if not columns:
        return np.tile(_SEED, (rows, 1))
    words = mixed(_BEGUN + columns[0])
    for column in columns[1:]:
        words = mixed(words * _STEP + column)
    return words


def mixed(words: Words) -> Words:
    """Spread each word's bits over the whole word (the finisher of splitmix64)."""
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])


def value_words(column: pa.Array, rules: Rules) -> Words:
    """Return two words per value that depend on nothing but the value."""
    kind = column.type
    if not len(column):
        return np.empty((0, 2), dtype=np.uint64)
    if pa.types.is_dictionary(kind):
        return value_words(column.dictionary_decode(), rules)
    if isinstance(kind, pa.BaseExtensionType):
        return value_words(column.storage, rules)
    if pa.types.is_null(kind):
        return np.tile(NULL, (len(column), 1))
    words = _valid_words(column, rules)
    if column.null_count:
        words[column.is_null().to_numpy(zero_copy_only=False)] = NULL
    return words


def _valid_words(column: pa.Array, rules: Rules) -> Words:
    kind = column.type
    if pa.types.is_floating(kind):
        return rules.floats(column)
    if pa.types.is_decimal(kind):
        return _decimal_words(column)
    if pa.types.is_struct(kind):
        return _struct_words(column, rules)
    if pa.types.is_map(kind):
        return _list_words(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))), rules, ordered=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_words(column, rules, ordered=True)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return _integer_words(column)
    return rules.texts(column)


def words_of_parts(*parts: npt.NDArray[Any]) -> Words:
    """Return two words for each place of some arrays of numbers."""
    return combined([part.astype(np.uint64, copy=False)[:, np.newaxis] for part in parts], len(parts[0]))


def _integer_words(column: pa.Array) -> Words:
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    # Not mixed here: whoever takes these words in mixes them, once per column instead of twice.
    return np.repeat(values.astype(np.uint64, copy=False)[:, np.newaxis], 2, axis=1)


def exact_floats(column: pa.Array) -> Words:
    """Return the bits of floats, with one zero and one NaN, as Spark compares them."""
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
    return np.repeat(bits[:, np.newaxis], 2, axis=1)


def _decimal_words(column: pa.Array) -> Words:
    wide = column if column.type.bit_width >= 64 else column.cast(pa.decimal128(column.type.precision, column.type.scale))
    width = wide.type.bit_width // 64
    stored = np.frombuffer(wide.buffers()[1], dtype="<u8")[wide.offset * width : (wide.offset + len(wide)) * width].reshape(-1, width)
    return words_of_parts(*stored.T)


def _struct_words(column: pa.Array, rules: Rules) -> Words:
    return combined([value_words(field, rules) for field in column.flatten()], len(column))


def _list_words(column: pa.Array, rules: Rules, *, ordered: bool) -> Words:
    """Add up each list's elements, each with its place; the entries of a map have no place."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = value_words(column.flatten(), rules)
    owners = np.repeat(np.arange(len(column)), lengths)
    if ordered:
        places = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        elements = elements * _STEP + places.astype(np.uint64)[:, np.newaxis]
    words = np.tile(_SEED, (len(column), 1))
    np.add.at(words, owners, mixed(elements))
    return mixed(words)


def distinct_texts(column: pa.Array) -> Words:
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


def many_texts(column: pa.Array) -> Words:
    """Hash strings or binaries eight bytes at a time, all of them at once; for columns whose texts mostly differ."""
    if not _is_text(column.type):
        return distinct_texts(column)
    starts, lengths, eights = _eights(column)
    words = words_of_parts(lengths)
    longest = int(lengths.max())
    for done in range(0, min(longest, _LONG_TEXT), 8):
        left = lengths - done
        rows: Any = slice(None)
        if longest > _LONG_TEXT or left.min() <= 0:
            rows = np.flatnonzero((left > 0) & (lengths <= _LONG_TEXT))
            left = left[rows]
        # The bytes behind a text are those of the next one.
        part = eights[starts[rows] + done] & _FIRST_BYTES[np.minimum(left, 8)]
        words[rows] = mixed(words[rows] * _STEP + part[:, np.newaxis])
    if longest > _LONG_TEXT:
        long = np.flatnonzero(lengths > _LONG_TEXT)
        words[long] = distinct_texts(column.take(pa.array(long)))
    return words


def _eights(texts: pa.Array) -> "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Words]":
    """Return start and length of each text, and the eight bytes from every byte on as one number."""
    _, offsets, content = texts.buffers()
    is_large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    bounds = np.frombuffer(offsets, dtype=np.int64 if is_large else np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    size = int(bounds[-1] - bounds[0])
    padded = np.zeros(size + 8, dtype=np.uint8)
    if size:
        padded[:size] = np.frombuffer(content, dtype=np.uint8)[bounds[0] : bounds[-1]]
    starts = bounds[:-1]
    return starts - bounds[0], bounds[1:] - starts, np.ndarray((size + 1,), dtype="<u8", buffer=padded.data, strides=(1,))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _hashed(texts: Iterable[bytes]) -> Words:
    joined = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    return np.frombuffer(joined, dtype="<u8").reshape(-1, 2).astype(np.uint64)


EXACT = Rules(floats=exact_floats, texts=many_texts)
"""For an index: values are the same or they are not."""
