"""Which Python values fit which column types: strictly, so that nothing is cut off on the way in.

In: an Arrow type and a value.
Out: whether the value fits.
Promise: pure. Arrow by itself turns 1.5 into the integer 1 and a time of day into midnight; here they do not fit.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...] = (
    (pa.types.is_integer, frozenset({int})),
    (pa.types.is_float64, frozenset({float, int})),
    (pa.types.is_boolean, frozenset({bool})),
    (pa.types.is_string, frozenset({str})),
    (pa.types.is_binary, frozenset({bytes})),
    (pa.types.is_decimal, frozenset({Decimal, int})),
    (pa.types.is_date, frozenset({date})),
    (pa.types.is_timestamp, frozenset({datetime})),
)


def plain_classes(kind: pa.DataType) -> frozenset[type]:
    """Return the classes whose every value can be handed to Arrow as it is; none for types that need a closer look."""
    return next((classes | {type(None)} for is_kind, classes in _PLAIN if is_kind(kind)), frozenset())


def fits(kind: pa.DataType, value: Any) -> bool:
    """Tell whether `value` is of a class that the type takes without loss; ranges are Arrow's to check."""
    if value is None:
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list | tuple | np.ndarray) and all(
            fits(kind.value_type, element) and (element is not None or kind.value_field.nullable) for element in value
        )
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return isinstance(value, Mapping | list | tuple) and all(
            isinstance(pair, tuple | list) and len(pair) == 2 and pair[0] is not None and fits(kind.key_type, pair[0]) and fits(kind.item_type, pair[1])
            for pair in pairs
        )
    if pa.types.is_struct(kind):
        names = {field.name: field.type for field in kind}
        return (
            isinstance(value, Mapping)
            and all(name in names and fits(names[name], inner) for name, inner in value.items())
            and all(field.nullable or value.get(field.name) is not None for field in kind)
        )
    return _fits_leaf(kind, value)


def inner_nulls(column: pa.Array) -> bool:
    """Tell whether a struct or list column holds a null where its inner fields allow none."""
    kind = column.type
    if pa.types.is_struct(kind):
        children = zip(kind, column.drop_null().flatten(), strict=True)
        return any((child.null_count > 0 and not field.nullable) or inner_nulls(child) for field, child in children)
    if pa.types.is_list(kind):
        elements = column.flatten()
        return (elements.null_count > 0 and not kind.value_field.nullable) or inner_nulls(elements)
    return False


def _fits_leaf(kind: pa.DataType, value: Any) -> bool:
    is_number = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if pa.types.is_integer(kind):
        return is_number
    if pa.types.is_floating(kind):
        return is_number or (isinstance(value, float | np.floating) and (kind != pa.float32() or not _FLOAT32_MAX < abs(float(value)) < float("inf")))
    if pa.types.is_decimal(kind):
        return is_number or isinstance(value, Decimal)
    if pa.types.is_date(kind):
        return isinstance(value, date) and not isinstance(value, datetime)
    classes: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
        (pa.types.is_boolean, (bool, np.bool_)),
        (pa.types.is_string, (str,)),
        (pa.types.is_binary, (bytes, bytearray, memoryview)),
        (pa.types.is_timestamp, (datetime, np.datetime64)),
    )
    return any(is_kind(kind) and isinstance(value, wanted) for is_kind, wanted in classes)
