"""SQL expressions as text: read into sqlglot's tree, and the notation of names and literals.

In: the text of one expression, as Spark reads it; Python values.
Out: a tree for `binder.py`; canonical text of names and literals.
Promise: pure; text that Spark might read otherwise than we do is refused; a written literal reads back as the same value and type.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from math import isfinite, isnan
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as kind
import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from righttime.changes.ddl import format_columns
from righttime.changes.sql_errors import why_unreadable
from righttime.errors import SqlRefused

EXPRESSION_CHARS_MAX = 1_000_000
_INTEGER_SUFFIXES = {pa.int8(): "Y", pa.int16(): "S", pa.int32(): "", pa.int64(): "L"}


def refuse(reason: str, way_out: str, *, syntax: bool = False) -> NoReturn:
    """Raise `SqlRefused`."""
    raise SqlRefused(reason=reason, way_out=way_out, **({"syntax": True} if syntax else {}))


def expression_tree(text: str) -> exp.Expr:
    """Read one expression."""
    if not isinstance(text, str):
        refuse(f"a {type(text).__name__} is not SQL text", "Pass the expression as text, or a mapping from columns to values.")
    refuse_long(text)
    try:
        tokens = list(sqlglot.tokenize(text, read="spark"))
        _check_tokens(tokens)
        # The line break keeps a comment at the end from swallowing the bracket.
        root = sqlglot.parse_one(f"SELECT ({_readable(text, tokens)}\n)", read="spark")
    except RecursionError:
        refuse("it is nested too deeply", "Write it in several operations.")
    except SqlglotError as error:
        refuse(f"it cannot be read ({why_unreadable(error, text)})", "Correct the expression.", syntax=True)
    if not isinstance(root, exp.Select) or {name for name, value in root.args.items() if value} - {"expressions"} or len(root.expressions) != 1:
        refuse("it is not one expression", "Write one condition or one value.", syntax=True)
    node = root.expressions[0]
    if isinstance(node, exp.Subquery):
        refuse("it is a subquery", "Query for the value first, and pass it as a parameter.")
    if not isinstance(node, exp.Paren):
        refuse("it is not one expression", "Write one condition or one value, without subqueries.", syntax=True)
    return node


def refuse_long(*texts: str) -> None:
    """Refuse texts that could not be read: also those that are written here, with literals for `?`, and are read again when they are settled."""
    longest = max(map(len, texts), default=0)
    if longest > EXPRESSION_CHARS_MAX:
        refuse(f"it has {longest} characters, over the bound {EXPRESSION_CHARS_MAX}", "Write it shorter, in several operations, or give values by key.")


def _check_tokens(tokens: list[Token]) -> None:
    if not tokens:
        refuse("it is empty", "Write a condition or a value.", syntax=True)
    depth = 0
    for token in tokens:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if token.token_type is TokenType.SEMICOLON or depth < 0:
            refuse("it is not one expression", "Write one condition or one value.", syntax=True)
        for comment in token.comments:
            if "/*" in comment or comment.rstrip().endswith("\\") or re.search(r"\r(?!\n)", comment.rstrip()):
                refuse("a comment holds /*, a lone carriage return or a backslash at its end", "Take the comment out.")


def _readable(text: str, tokens: list[Token]) -> str:
    """Return the text with doubled quotes written with a backslash, which sqlglot reads as Spark does."""
    pieces, done = [], 0
    for before, token in pairwise(tokens):
        strings = before.token_type is TokenType.STRING and token.token_type is TokenType.STRING
        if strings and before.end + 1 == token.start and text[before.end] == text[token.start]:
            pieces += [text[done : token.start - 1], "\\", text[token.start]]
            done = token.start + 1
    return "".join([*pieces, text[done:]])


def name_text(name: str) -> str:
    """Return a column's name as SQL."""
    return f"`{name}`"


def type_name(given: pa.DataType) -> str:
    """Return the type as Spark SQL writes it."""
    return format_columns(pa.schema([("c", given)])).removeprefix("`c` ")


def literal_text(value: Any, given: pa.DataType, *, fitted: bool = False) -> str:
    """Return a value of a primitive type as a literal that reads back as the same value of the same type.

    `fitted` leaves off an integer's suffix: where the literal is fitted to the type of what it is compared with, it says nothing.
    """
    if value is None:
        return "NULL" if kind.is_null(given) else f"CAST(NULL AS {type_name(given)})"
    if kind.is_boolean(given):
        return "TRUE" if value else "FALSE"
    if kind.is_integer(given):
        return f"{int(value)}{'' if fitted else _INTEGER_SUFFIXES[given]}"
    if kind.is_floating(given):
        return _float_text(float(value), given)
    if kind.is_decimal(given):
        digits = f"{value:f}"
        return digits if "." in digits else f"{digits}BD"
    if kind.is_string(given):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if kind.is_binary(given):
        return f"X'{bytes(value).hex().upper()}'"
    if kind.is_date(given):
        return f"DATE '{value.isoformat()}'"
    return _timestamp_text(value, given)


def _float_text(value: float, given: pa.DataType) -> str:
    if not isfinite(value):
        word = "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return f"CAST('{word}' AS {type_name(given)})"
    if given == pa.float32():
        return f"{value!r}F"
    shown = repr(value)
    return shown if "e" in shown else f"{shown}E0"


def decimal_type_of(value: Decimal) -> pa.DataType | None:
    """Return the type of a DECIMAL literal; None if it has too many digits."""
    if not value.is_finite():
        return None
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    shown = "".join(map(str, digits)).lstrip("0") + "0" * max(exponent, 0)
    precision = max(len(shown.lstrip("0") or "0") if value == 0 else len(shown), scale, 1)
    return pa.decimal128(precision, scale) if precision <= 38 else None


def _timestamp_text(value: datetime | date, given: pa.DataType) -> str:
    assert isinstance(value, datetime)
    if given.tz is None:
        return f"TIMESTAMP_NTZ '{value.replace(tzinfo=None).isoformat(sep=' ')}'"
    instant = value.astimezone(UTC) if value.tzinfo else value
    return f"TIMESTAMP '{instant.replace(tzinfo=None).isoformat(sep=' ')}+00:00'"
