"""Rows divided by the values of their partition columns, and those values as Delta writes them.

In: a table of rows.
Out: one table per combination of values, with the values as text.
Promise: every row in exactly one part, in the order it came; two values share a text only if they are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

_FLOAT_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def split(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
    """Yield each combination of partition values with its rows; without partition columns, the rows as they are."""
    if not partition_by or rows.num_rows == 0:
        yield {}, rows
        return
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    values: list[pa.Array] = []
    numbers: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for name in partition_by:
        encoded = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        values.append(_texts(encoded.dictionary))
        numbers.append(np.asarray(encoded.indices, dtype=np.int64))
        # Renumbered after every column, the codes stay below the number of rows and cannot overflow.
        codes = np.unique(codes * len(encoded.dictionary) + numbers[-1], return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ordered = rows.take(pa.array(order)) if len(starts) > 1 else rows
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        first = order[start]
        partition = {name: text[int(number[first])].as_py() for name, text, number in zip(partition_by, values, numbers, strict=True)}
        yield partition, ordered.slice(start, end - start)


def _texts(values: pa.Array) -> pa.Array:
    """Return partition values as text; null for null, and for an empty text too, which Delta reads as null."""
    if kind.is_decimal(values.type):
        return pa.array([None if value is None else format(value, "f") for value in values.to_pylist()], pa.string())
    texts = pc.cast(values, pa.string())
    if kind.is_floating(values.type):
        return pa.array([_FLOAT_WORDS.get(text, text) for text in texts.to_pylist()], pa.string())
    if kind.is_timestamp(values.type) and values.type.tz:
        # ISO 8601 with Z: the other form that Delta allows depends on the reader's time zone.
        return pc.replace_substring(texts, " ", "T")
    if kind.is_string(values.type):
        return pc.if_else(pc.equal(texts, ""), None, texts)
    return texts
