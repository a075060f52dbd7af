"""The digest of an answer: the same for the same rows in any order, another for anything else.

In: an answer as an Arrow table.
Out: 64 hex digits for the receipt, and whether a digest is that of an answer.
Promise: pure; names, types, values and duplicates count, order does not, floats count to ten digits; no Python runs per row except to hash distinct strings.
"""

import hashlib
import re
from functools import partial

import numpy as np
import pyarrow as pa

from righttime.catalyst.segments import joined
from righttime.changes.hashing import NULL, Rules, Words, distinct_texts, mixed, row_words, words_of_parts

_ROWS_AT_ONCE = 1 << 17
_DIGITS = 10
# A float that two runs compute a little differently can fall on two sides of a rounding step. Two grids, half a step apart, share no step,
# and neither has one where decimal fractions of a few digits lie.
_GRIDS = (0.2281718, 0.7281718)
_NOT_NULL = re.compile(r" not null(?=[,>])")  # after the type of a part of a value; in a name, a colon would follow


def answer_digest(answer: pa.Table) -> str:
    """Return the digest of an answer; compare digests with `digests_agree`."""
    return _on_grids(answer, _NOT_NULL.sub("", _shape(answer)))


def is_digest_of(digest: str, answer: pa.Table) -> bool:
    """Tell whether a digest is that of an answer, also one from when it counted which parts of a value cannot be null."""
    if digests_agree(answer_digest(answer), digest):
        return True
    shape = _shape(answer)
    return _NOT_NULL.search(shape) is not None and digests_agree(_on_grids(answer, shape), digest)


def digests_agree(first: str, second: str) -> bool:
    """Tell whether two digests are of the same rows: equal on one of the two grids that floats are rounded to."""
    if len(first) != 64 or len(second) != 64:
        return False
    return first[:32] == second[:32] or first[32:] == second[32:]


def _on_grids(answer: pa.Table, shape: str) -> str:
    digests = [_digest(answer, shape, grid) for grid in (_GRIDS if holds_floats(answer.schema) else _GRIDS[:1])]
    return digests[0] + digests[-1]


def _digest(answer: pa.Table, shape: str, grid: float) -> str:
    batches = joined(answer).to_batches(max_chunksize=_ROWS_AT_ONCE)
    # Sums do not care for order and do for duplicates; four of them over well-mixed words leave no room for chance.
    sums = np.zeros(4, dtype=np.uint64)
    rules = Rules(floats=partial(_float_words, grid=grid), texts=distinct_texts)
    for batch in batches:
        words = row_words(batch, rules)
        sums += np.concatenate([words.sum(axis=0), mixed(words + NULL).sum(axis=0)])
    content = hashlib.blake2b(shape.encode(), digest_size=16)
    content.update(sums.astype("<u8").tobytes())
    return content.hexdigest()


def _shape(answer: pa.Table) -> str:
    columns = [(field.name, str(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)) for field in answer.schema]
    return repr((answer.num_rows, columns))


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
    return words_of_parts(kind, np.where(ordinary, mantissa, 0).astype(np.int64), np.where(ordinary, exponent, 0).astype(np.int64))


def holds_floats(columns: pa.Schema) -> bool:
    """Tell whether some column has floats, be it within its values."""
    return any(_holds_floats(field.type) for field in columns)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_floats(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_floats(kind.storage_type)
    return bool(pa.types.is_floating(kind)) or any(_holds_floats(kind.field(place).type) for place in range(kind.num_fields))
