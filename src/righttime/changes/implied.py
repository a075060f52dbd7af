"""What a condition implies: the one key it names, and ranges of columns.

In: the term of a condition.
Out: key values, or bounds per column.
Promise: sound: a row outside of the bounds never meets the condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as kind

from righttime.changes.schema import TableSchema
from righttime.changes.store_rules import misfit
from righttime.changes.terms import Term

Range = tuple[Any, Any]
_SWAPPED = {"=": "=", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def key_of(term: Term, table: TableSchema) -> tuple[Any, ...] | None:
    """Return the values of the key columns if the condition is exactly that they have these values, and a row can have them; else None."""
    found: dict[str, Any] = {}
    for part in _conjuncts(term):
        compared = _with_literal(part)
        if compared is None or compared[1] not in ("=", "<=>") or compared[0] in found or compared[2] is None:
            return None
        found[compared[0]] = compared[2]
    if not table.keys or set(found) != set(table.keys) or any(_misfits(table.columns.field(key), found[key], table) for key in table.keys):
        return None
    return tuple(found[key] for key in table.keys)


def _misfits(field: pa.Field, value: Any, table: TableSchema) -> bool:
    """Tell a text that is too long for the column, or no value of a partition: it is compared, and only a key is checked as an insert is."""
    return bool(kind.is_string(field.type)) and misfit(field, pa.array([value], field.type), table) is not None


def _conjuncts(term: Term) -> Iterator[Term]:
    open_terms = [term]
    while open_terms:
        part = open_terms.pop()
        if part.kind == "AND":
            open_terms += reversed(part.parts)
        else:
            yield part


def _with_literal(term: Term) -> tuple[str, str, Any] | None:
    """Return column, operator and value of `column operator literal` or the reverse, both of the column's own type."""
    if term.kind not in _SWAPPED:
        return None
    left, right = term.parts
    if left.kind == "column" and right.kind == "literal" and left.type == right.type:
        return left.value, term.kind, right.value
    if right.kind == "column" and left.kind == "literal" and left.type == right.type:
        return right.value, _SWAPPED[term.kind], left.value
    return None


def implied_ranges(term: Term) -> dict[str, Range]:
    """Return inclusive bounds per column, None where there is none."""
    types = {part.value: part.type for part in _columns(term)}
    found = {name: _without_nan(bounds, floating=kind.is_floating(types[name])) for name, bounds in _ranges(term).items()}
    return {name: bounds for name, bounds in found.items() if bounds != (None, None)}


def _columns(term: Term) -> Iterator[Term]:
    if term.kind == "column":
        yield term
    for part in term.parts:
        yield from _columns(part)


def _without_nan(bounds: Range, *, floating: bool) -> Range:
    if not floating:
        return bounds
    low, high = (None if bound is not None and bound != bound else bound for bound in bounds)
    # NaN is above every number, and statistics do not count it: a file whose maximum is 1 may hold a row above 5.
    return (low, high) if high is not None else (None, None)


def _ranges(term: Term) -> dict[str, Range]:
    if term.kind == "AND":
        return _both(_ranges(term.parts[0]), _ranges(term.parts[1]))
    if term.kind == "OR":
        return _either(_ranges(term.parts[0]), _ranges(term.parts[1]))
    if term.kind == "IN" and term.parts[0].kind == "column":
        return _of_choices(term)
    compared = _with_literal(term)
    if compared is None or compared[2] is None:
        return {}
    name, operator, value = compared
    return {name: {"=": (value, value), "<=>": (value, value), "<": (None, value), "<=": (None, value)}.get(operator, (value, None))}


def _of_choices(term: Term) -> dict[str, Range]:
    values = [choice.value for choice in term.parts[1:] if choice.value is not None]
    if not values or any(value != value for value in values):
        return {}
    return {term.parts[0].value: (min(values), max(values))}


def _both(left: dict[str, Range], right: dict[str, Range]) -> dict[str, Range]:
    result = dict(left)
    for name, (low, high) in right.items():
        known_low, known_high = result.get(name, (None, None))
        result[name] = (_chosen(max, known_low, low), _chosen(min, known_high, high))
    return result


def _chosen(choose: Any, one: Any, other: Any) -> Any:
    # NaN has no order in Python; a bound that is NaN says nothing that the other does not.
    known = [bound for bound in (one, other) if bound is not None and bound == bound]
    return choose(known) if known else None


def _either(left: dict[str, Range], right: dict[str, Range]) -> dict[str, Range]:
    result: dict[str, Range] = {}
    for name in left.keys() & right.keys():
        lows, highs = zip(left[name], right[name], strict=True)
        usable = [None if any(bound is None or bound != bound for bound in bounds) else bounds for bounds in (lows, highs)]
        result[name] = (min(usable[0]) if usable[0] else None, max(usable[1]) if usable[1] else None)
    return result
