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


def castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether Arrow's checked cast between the two types loses nothing; it would turn 5 into true, 1.239 into 1.24 and a time into its date."""
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return castable(given.value_type, wanted)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        names = {field.name: field.type for field in wanted}
        return all(field.name in names and castable(field.type, names[field.name]) for field in given)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return castable(given.key_type, wanted.key_type) and castable(given.item_type, wanted.item_type)
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(given) or pa.types.is_large_list(given) or pa.types.is_fixed_size_list(given)
        return bool(is_list) and castable(given.value_type, wanted.value_type)
    return any(is_given(given) and is_wanted(wanted) for is_given, is_wanted in _CASTS)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind))


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


_Kind = Callable[[pa.DataType], bool]
_CASTS: tuple[tuple[_Kind, _Kind], ...] = (
    (_is_exact, _is_exact),
    (pa.types.is_integer, pa.types.is_floating),
    (pa.types.is_floating, pa.types.is_floating),
    (_is_text, pa.types.is_string),
    (_is_bytes, pa.types.is_binary),
    (pa.types.is_date, pa.types.is_date),
    (pa.types.is_timestamp, pa.types.is_timestamp),
)


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
