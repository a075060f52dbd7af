"""Simple SQL expressions in plain Python: arithmetic, comparisons, three-valued logic, and a few functions.

In: text such as `qty * price` or `qty > 0 and not void`.
Out: a function of a row.
Promise: null in, null out, as in SQL; what is not known here is refused, never guessed.
"""

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from math import floor, fmod
from typing import Any

import sqlglot
from sqlglot import exp

from righttime.errors import SqlRefused

Value = Any
Evaluate = Callable[[Mapping[str, Value]], Value]


@cache
def compiled(text: str) -> Evaluate:
    """Return the expression as a function of a row."""
    return _build(sqlglot.parse_one(text, dialect="spark"))


def _build(node: exp.Expr) -> Evaluate:
    if type(node) in _BINARY:
        return _strict(_BINARY[type(node)], node.this, node.expression)
    if type(node) in _FUNCTIONS:
        return _strict(_FUNCTIONS[type(node)], *_arguments(node))
    build = _SPECIAL.get(type(node))
    if build is None:
        raise SqlRefused(reason=f"the reference engine does not know {node.sql()!r} ({type(node).__name__})", way_out="Test this flow on Spark.")
    return build(node)


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    return [node.this, *node.expressions] if node.this is not None else list(node.expressions)


def _strict(function: Callable[..., Value], *nodes: exp.Expr) -> Evaluate:
    """Return a function that gives null if any argument is null."""
    arguments = [_build(node) for node in nodes]

    def evaluate(row: Mapping[str, Value]) -> Value:
        values = [argument(row) for argument in arguments]
        return None if None in values else function(*values)

    return evaluate


def _numeric(function: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return the function on both numbers as floats if one is a float."""

    def evaluate(left: Value, right: Value) -> Value:
        if isinstance(left, float) or isinstance(right, float):
            return function(float(left), float(right))
        return function(left, right)

    return evaluate


def _remainder(left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return int(fmod(left, right))  # the sign of the dividend, as in SQL
    return left % right if not isinstance(left, float) else fmod(left, right)


def _column(node: exp.Expr) -> Evaluate:
    name = node.name

    def evaluate(row: Mapping[str, Value]) -> Value:
        if name in row:
            return row[name]
        return next(value for key, value in row.items() if key.lower() == name.lower())

    return evaluate


def _literal(node: exp.Expr) -> Evaluate:
    text = str(node.this)
    value: Value = text if node.args.get("is_string") else Decimal(text) if "." in text else float(text) if "e" in text.lower() else int(text)
    return lambda row: value


def _boolean(node: exp.Expr) -> Evaluate:
    value = bool(node.this)
    return lambda row: value


def _and(node: exp.Expr) -> Evaluate:
    left, right = _build(node.this), _build(node.args["expression"])

    def evaluate(row: Mapping[str, Value]) -> Value:
        values = (left(row), right(row))
        return False if False in values else None if None in values else True

    return evaluate


def _or(node: exp.Expr) -> Evaluate:
    left, right = _build(node.this), _build(node.args["expression"])

    def evaluate(row: Mapping[str, Value]) -> Value:
        values = (left(row), right(row))
        return True if True in values else None if None in values else False

    return evaluate


def _is(node: exp.Expr) -> Evaluate:
    left, right = _build(node.this), _build(node.args["expression"])
    return lambda row: left(row) is right(row)


def _in(node: exp.Expr) -> Evaluate:
    value, options = _build(node.this), [_build(option) for option in node.expressions]

    def evaluate(row: Mapping[str, Value]) -> Value:
        found, known = value(row), [option(row) for option in options]
        if found is None:
            return None
        return True if found in [one for one in known if one is not None] else None if None in known else False

    return evaluate


def _between(node: exp.Expr) -> Evaluate:
    return _strict(lambda value, low, high: low <= value <= high, node.this, node.args["low"], node.args["high"])


def _coalesce(node: exp.Expr) -> Evaluate:
    arguments = [_build(argument) for argument in _arguments(node)]
    return lambda row: next((value for value in (argument(row) for argument in arguments) if value is not None), None)


def _case(node: exp.Expr) -> Evaluate:
    if node.this is not None:
        raise SqlRefused(reason="the reference engine does not know CASE with a value", way_out="Write CASE WHEN condition THEN value.")
    branches = [(_build(branch.this), _build(branch.args["true"])) for branch in node.args["ifs"]]
    default = node.args.get("default")
    otherwise: Evaluate = _build(default) if default is not None else lambda row: None
    return lambda row: next((value(row) for condition, value in branches if condition(row) is True), otherwise(row))


_BINARY: dict[type[exp.Expr], Callable[[Value, Value], Value]] = {
    exp.Add: _numeric(operator.add),
    exp.Sub: _numeric(operator.sub),
    exp.Mul: _numeric(operator.mul),
    exp.Div: _numeric(operator.truediv),
    exp.Mod: _remainder,
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_FUNCTIONS: dict[type[exp.Expr], Callable[..., Value]] = {
    exp.Neg: operator.neg,
    exp.Not: operator.not_,
    exp.Abs: abs,
    exp.Floor: floor,
    exp.Upper: str.upper,
    exp.Lower: str.lower,
    exp.Length: len,
    exp.Concat: lambda *parts: "".join(map(str, parts)),
}
_SPECIAL: dict[type[exp.Expr], Callable[[exp.Expr], Evaluate]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: _boolean,
    exp.Null: lambda node: lambda row: None,
    exp.Paren: lambda node: _build(node.this),
    exp.And: _and,
    exp.Or: _or,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Coalesce: _coalesce,
    exp.Case: _case,
}
