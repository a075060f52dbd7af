"""What operands must be: the right type, brought to one type, and nothing that is not known here.

In: terms, and nodes of sqlglot's tree.
Out: terms of the wanted types.
Promise: whatever does not fit is refused with `SqlRefused` and a way out.
"""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa
import pyarrow.types as kind
from sqlglot import exp

from righttime.changes.casts import converted
from righttime.changes.ddl import parse_columns
from righttime.changes.sql_errors import shown
from righttime.changes.sql_literals import fitted, literal
from righttime.changes.sql_text import refuse, type_name
from righttime.changes.terms import Term
from righttime.changes.type_rules import common_type, is_number
from righttime.changes.types import BadType

_ALLOWED = (
    "Conditions and values are made of columns of the table, literals, ?, comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE, "
    "+ - * / %, ||, CASE, CAST, and a few functions"
)
_WAY_OUT = f"{_ALLOWED}; query for the keys first and change rows by key."


def together(left: Term, right: Term, what: str) -> tuple[Term, Term]:
    """Bring two terms to one type; literals give way first."""
    if left.kind == "literal" and right.kind != "literal":
        left = fitted(left, right.type) or left
    elif right.kind == "literal" and left.kind != "literal":
        right = fitted(right, left.type) or right
    if left.type == right.type:
        return left, right
    wanted = common_type(tight(left, right), tight(right, left))
    both = (converted(left, wanted), converted(right, wanted)) if wanted is not None else (None, None)
    if both[0] is None or both[1] is None:
        refuse(f"{what} of {type_name(left.type)} and {type_name(right.type)} is not known here", "CAST one of them to the type of the other.")
    return both[0], both[1]


def tight(part: Term, other: Term) -> pa.DataType:
    """Return the type of a whole number beside a DECIMAL: a literal needs only the digits it has."""
    if part.kind == "literal" and kind.is_integer(part.type) and kind.is_decimal(other.type):
        return pa.decimal128(max(len(str(abs(part.value))), 1), 0)
    return part.type


def boolean(part: Term) -> Term:
    """Return the term as a condition; refuse numbers and texts."""
    if kind.is_null(part.type):
        return literal(None, pa.bool_()) if part.kind == "literal" else part
    if not kind.is_boolean(part.type):
        refuse(f"{part.text[:80]} is of type {type_name(part.type)} and no condition", "Compare it with something.")
    return part


def text_operand(part: Term, what: str) -> Term:
    """Return the term as text; refuse other types."""
    if kind.is_null(part.type):
        return as_type(part, pa.string())
    if not kind.is_string(part.type):
        refuse(f"{what} takes text, and {part.text[:80]} is of type {type_name(part.type)}", "CAST it to STRING.")
    return part


def number(part: Term, what: str) -> Term:
    """Return the term as a number; refuse other types."""
    if kind.is_null(part.type):
        return as_type(part, pa.int32())
    if not is_number(part.type):
        refuse(f"{what} takes numbers, and {part.text[:80]} is of type {type_name(part.type)}", "CAST it to a number.")
    return part


def as_type(part: Term, wanted: pa.DataType) -> Term:
    """Return the term in another type; refuse where there is no conversion."""
    found = converted(part, wanted)
    if found is None:
        refuse(f"{part.text[:80]} cannot be converted to {type_name(wanted)}", "CAST it.")
    return found


def refuse_nested(*parts: Term, what: str) -> None:
    """Refuse arrays, maps and structs."""
    for part in parts:
        if kind.is_nested(part.type):
            refuse(f"{what} with {part.text[:80]}, an array, map or struct, is not known here", "Compare columns of simple types, or test it with IS NULL.")


def cast_type(given: exp.Expr) -> pa.DataType:
    """Return the type that CAST names."""
    name = given.sql("spark")
    try:
        field = parse_columns(f"c {name}").field(0)
    except BadType:
        refuse(f"the type {name} is not known here", "CAST to a type that a column can have.")
    if kind.is_nested(field.type):
        refuse(f"CAST to {name} is not known here", "CAST to STRING or to another simple type.")
    return field.type


def refuse_further(node: exp.Expr, *known: str) -> None:
    """Refuse whatever else a node says: what is not known here has no effect here."""
    if any(value and name not in known for name, value in node.args.items()):
        refuse(f"{shown(node)} is not known here", _WAY_OUT)


def refuse_node(node: exp.Expr) -> NoReturn:
    """Refuse what is not known here."""
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
        refuse("it has a subquery", "Query for the keys first, and change rows by key.")
    if isinstance(node, exp.AggFunc | exp.Window):
        refuse(f"{shown(node)} takes several rows, and a row is changed by its own values", "Query for the value first, and pass it as a parameter.")
    if isinstance(node, exp.Parameter):
        refuse(f"{shown(node)} is no placeholder here", "Write ? and pass the values in order.")
    refuse(f"{shown(node)} is not known here", _WAY_OUT)
