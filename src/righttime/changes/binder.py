"""Expressions bound to one table: names become columns, operators get their types, everything unknown is refused.

In: sqlglot's tree, a table's schema, the values of `?`.
Out: a typed `Term`.
Promise: pure; an operation that is not written down here is refused with `SqlRefused`, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.types as kind
from sqlglot import exp

from righttime.changes import operators, text_functions
from righttime.changes.casts import converted
from righttime.changes.choices import case_of, coalesce_of, nullif_of
from righttime.changes.long_lists import LongList, without_long_lists
from righttime.changes.operands import (
    as_type,
    boolean,
    cast_type,
    number,
    refuse_further,
    refuse_nested,
    refuse_node,
    text_operand,
    tight,
    together,
)
from righttime.changes.schema import TableSchema
from righttime.changes.sql_errors import shown
from righttime.changes.sql_literals import fitted, literal, literal_of, read_literal, read_typed
from righttime.changes.sql_text import expression_tree, name_text, refuse, type_name
from righttime.changes.terms import Term
from righttime.changes.type_rules import arithmetic_type, as_decimal, common_type
from righttime.errors import RightTimeError, SqlRefused, UnknownColumn

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_CHAINED: tuple[type[exp.Expr], ...] = (*_COMPARISONS, exp.NullSafeNEQ, exp.In, exp.Between, exp.Like, exp.Escape, exp.Is)
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}


def bind(text: str, table: TableSchema, parameters: Sequence[Any] = ()) -> Term:
    """Return what the text means for rows of the table; each `?` takes the next parameter."""
    short, lists = without_long_lists(text)
    if lists:
        try:
            return _bound(short, table, parameters, lists)
        except RightTimeError:
            pass  # the whole text shows better what is wrong
    return _bound(text, table, parameters, {})


def _bound(text: str, table: TableSchema, parameters: Sequence[Any], lists: Mapping[str, LongList]) -> Term:
    tree = expression_tree(text)
    found = list(tree.find_all(exp.Placeholder))
    named = next((one for one in found if one.this), None)
    if named is not None:
        refuse(f":{named.name} is a named parameter", "Write ? and pass the values in order.")
    placeholders = len(found) + sum(one.parameters for one in lists.values())
    if placeholders != len(parameters):
        refuse(f"it has {placeholders} ?, and {len(parameters)} values were passed", "Pass one value for each ?.")
    try:
        return Binder(table, parameters, lists).term(tree)
    except RecursionError:
        raise SqlRefused(reason="it is nested too deeply", way_out="Write it in several operations.") from None


def column(table: TableSchema, name: str) -> Term:
    """Return a column of the table, whatever its letters' case."""
    lowered = name.lower()
    place = next((place for place, known in enumerate(table.columns.names) if known.lower() == lowered), None)
    if place is None:
        raise UnknownColumn(table=table.name, column=name, known=", ".join(table.columns.names))
    field = table.columns.field(place)
    return Term("column", field.type, name_text(field.name), lambda rows: rows.column(field.name), (), field.name, field.nullable)


class Binder:
    """Turns one tree into terms; holds the table and the parameters that are not used yet."""

    def __init__(self, table: TableSchema, parameters: Sequence[Any], lists: Mapping[str, LongList]) -> None:
        self._table = table
        self._parameters: Iterator[Any] = iter(parameters)
        self._lists = lists

    def term(self, node: exp.Expr) -> Term:
        """Return what one node means."""
        while isinstance(node, exp.Paren):
            node = node.this
        found = read_literal(node)
        if found is not None:
            return found
        if type(node) in _COMPARISONS:
            refuse_further(node, "this", "expression")
            _refuse_chained(node)
            operator = _COMPARISONS[type(node)]
            left, right = self.term(node.this), self.term(node.expression)
            refuse_nested(left, right, what=operator)
            return operators.comparison(operator, *together(left, right, f"comparing ({operator})"))
        if type(node) in _ARITHMETIC:
            refuse_further(node, "this", "expression", "typed", "safe")
            return self._arithmetic(_ARITHMETIC[type(node)], self.term(node.this), self.term(node.expression))
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            refuse_node(node)
        made = method(node)
        assert isinstance(made, Term)
        return made

    def _arithmetic(self, operator: str, left: Term, right: Term) -> Term:
        left, right = number(left, operator), number(right, operator)
        type_ = arithmetic_type(operator, tight(left, right), tight(right, left))
        if type_ is None:
            refuse(f"{operator} of {type_name(left.type)} and {type_name(right.type)} is not known here", "CAST one of them.")
        if not kind.is_decimal(type_):
            return operators.arithmetic(operator, as_type(left, type_), as_type(right, type_), type_)
        left_type, right_type = as_decimal(tight(left, right)), as_decimal(tight(right, left))
        if not operators.digits_fit(operator, left_type, right_type, type_):
            refuse(
                f"{operator} of {type_name(left_type)} and {type_name(right_type)} takes more than 76 digits", "CAST one of them to DOUBLE or to fewer digits."
            )
        return operators.arithmetic(operator, as_type(left, left_type), as_type(right, right_type), type_)

    def _column(self, node: exp.Column) -> Term:
        refuse_further(node, "this", "table")
        if not isinstance(node.this, exp.Identifier):
            refuse_node(node)
        if node.table and node.table.lower() != self._table.name:
            refuse(f"{shown(node)} is not a column of {self._table.name}", "Name columns of the changed table only.")
        return column(self._table, node.name)

    def _placeholder(self, _node: exp.Placeholder) -> Term:
        return literal_of(next(self._parameters))

    def _nullsafeneq(self, node: exp.NullSafeNEQ) -> Term:
        refuse_further(node, "this", "expression")
        _refuse_chained(node)
        left, right = self.term(node.this), self.term(node.expression)
        refuse_nested(left, right, what="IS DISTINCT FROM")
        return operators.negation(operators.comparison("<=>", *together(left, right, "comparing (IS DISTINCT FROM)")))

    def _and(self, node: exp.And) -> Term:
        refuse_further(node, "this", "expression")
        return operators.logic("AND", [self.condition(node.this), self.condition(node.expression)])

    def _or(self, node: exp.Or) -> Term:
        refuse_further(node, "this", "expression")
        return operators.logic("OR", [self.condition(node.this), self.condition(node.expression)])

    def _not(self, node: exp.Not) -> Term:
        refuse_further(node, "this")
        return operators.negation(self.condition(node.this))

    def condition(self, node: exp.Expr) -> Term:
        """Return a term that is true, false or null."""
        return boolean(self.term(node))

    def _is(self, node: exp.Is) -> Term:
        refuse_further(node, "this", "expression")
        wanted = node.expression
        if isinstance(wanted, exp.Null):
            return operators.null_test(self.term(node.this))
        if not isinstance(wanted, exp.Boolean):
            refuse_node(node)
        return operators.comparison("<=>", self.condition(node.this), literal(bool(wanted.this), pa.bool_()))

    def _in(self, node: exp.In) -> Term:
        if node.args.get("query"):
            refuse_node(node.args["query"])
        refuse_further(node, "this", "expressions")
        part = self.term(node.this)
        refuse_nested(part, what="IN")
        choices = self._choices(node.expressions)
        if not choices or any(choice.kind != "literal" for choice in choices):
            refuse("IN has something else than a list of literals", "List literals and ?, or write the comparisons with OR.")
        fits = [choice if choice.value is None else fitted(choice, part.type) for choice in choices]
        inside = [choice for choice in fits if choice is not None]
        # One alone is compared: so a key is known as one.
        alone = len(inside) == 1 and inside[0].value is not None
        found = [operators.comparison("=", part, inside[0]) if alone else operators.membership(part, inside)] if inside else []
        # A literal that the column's type cannot hold is compared on its own, with the types that this takes.
        others = [choice for choice, fit in zip(choices, fits, strict=True) if fit is None]
        found += [operators.comparison("=", *together(part, choice, "comparing (IN)")) for choice in others]
        return _any_of(found)

    def _choices(self, nodes: Sequence[exp.Expr]) -> list[Term]:
        """Return what a list names, which may be written out or stand in one of the long lists."""
        long = self._lists.get(nodes[0].name) if len(nodes) == 1 else None
        if long is None:
            return [self.term(choice) for choice in nodes]
        given = list(islice(self._parameters, long.parameters))
        assert len(given) == long.parameters, "each ? takes one parameter, and they were counted"
        return [literal_of(value) for value in chain(long.values, given)]

    def _between(self, node: exp.Between) -> Term:
        refuse_further(node, "this", "low", "high")
        part, low, high = self.term(node.this), self.term(node.args["low"]), self.term(node.args["high"])
        refuse_nested(part, low, high, what="BETWEEN")
        least = operators.comparison(">=", *together(part, low, "comparing (BETWEEN)"))
        most = operators.comparison("<=", *together(part, high, "comparing (BETWEEN)"))
        return operators.logic("AND", [least, most])

    def _like(self, node: exp.Like, escape: str = "\\") -> Term:
        refuse_further(node, "this", "expression", "negate")
        part, pattern = text_operand(self.term(node.this), "LIKE"), self.term(node.expression)
        if pattern.kind != "literal" or not isinstance(pattern.value, str):
            refuse("the pattern of LIKE is not a text", "Write the pattern as a literal or ?.")
        found = text_functions.like(part, pattern.value, escape)
        return operators.negation(found) if node.args.get("negate") else found

    def _escape(self, node: exp.Escape) -> Term:
        refuse_further(node, "this", "expression")
        escape = read_literal(node.expression)
        if not isinstance(node.this, exp.Like) or escape is None or not isinstance(escape.value, str) or len(escape.value) != 1:
            refuse("ESCAPE takes one character", "Write LIKE '10#%' ESCAPE '#'.")
        return self._like(node.this, escape.value)

    def _neg(self, node: exp.Neg) -> Term:
        refuse_further(node, "this")
        made = self._typed_literal(node.this, negative=True) if isinstance(node.this, exp.Cast) else None
        return made if made is not None else operators.minus(number(self.term(node.this), "-"))

    def _abs(self, node: exp.Abs) -> Term:
        refuse_further(node, "this")
        return operators.absolute(number(self.term(node.this), "abs"))

    def _trycast(self, node: exp.TryCast) -> Term:
        if node.args.get("safe"):
            refuse("TRY_CAST is not known here", "Write CAST.")
        return self._cast(node)

    def _cast(self, node: exp.Cast) -> Term:
        made = self._typed_literal(node)
        if made is not None:
            return made
        wanted, part = cast_type(node.to), self.term(node.this)
        result = converted(part, wanted, written=True)
        if result is None:
            refuse(f"CAST from {type_name(part.type)} to {type_name(wanted)} is not known here", "Compute the value before and pass it as a parameter.")
        return result

    def _typed_literal(self, node: exp.Cast, *, negative: bool = False) -> Term | None:
        """Return a cast that is itself a literal, such as `5L` or `DATE '…'`; None if it takes a conversion. It takes no parameter."""
        refuse_further(node, "this", "to")
        typed = type(node) is exp.Cast and isinstance(node.this, exp.Literal) and node.this.is_string
        return read_typed(node.this, cast_type(node.to), negative=negative, typed=typed)

    def _dpipe(self, node: exp.DPipe) -> Term:
        refuse_further(node, "this", "expression", "safe")
        return text_functions.joined([text_operand(self.term(part), "||") for part in (node.this, node.expression)])

    def _concat(self, node: exp.Concat) -> Term:
        refuse_further(node, "expressions", "safe")
        parts = [text_operand(self.term(part), "concat") for part in node.expressions]
        if all(part.kind == "literal" and part.value is not None for part in parts):
            return literal("".join(part.value for part in parts), pa.string())
        return text_functions.joined(parts)

    def _lower(self, node: exp.Lower) -> Term:
        refuse_further(node, "this")
        return text_functions.folded("lower", text_operand(self.term(node.this), "lower"))

    def _upper(self, node: exp.Upper) -> Term:
        refuse_further(node, "this")
        return text_functions.folded("upper", text_operand(self.term(node.this), "upper"))

    def _trim(self, node: exp.Trim) -> Term:
        refuse_further(node, "this", "position")
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
        return text_functions.trimmed(name, text_operand(self.term(node.this), "trim"))

    def _length(self, node: exp.Length) -> Term:
        refuse_further(node, "this")
        part = self.term(node.this)
        if not (kind.is_string(part.type) or kind.is_binary(part.type)):
            refuse(f"length of {type_name(part.type)} is not known here", "CAST it to STRING.")
        return text_functions.length(part)

    def _case(self, node: exp.Case) -> Term:
        refuse_further(node, "this", "ifs", "default")
        subject = self.term(node.this) if node.this else None
        tests, values = [], []
        for branch in node.args["ifs"]:
            test = self.term(branch.this)
            tests.append(boolean(test) if subject is None else operators.comparison("=", *together(subject, test, "comparing (CASE)")))
            values.append(self.term(branch.args["true"]))
        default = node.args.get("default")
        values.append(self.term(default) if default is not None else literal(None, pa.null()))
        return case_of(tests, self._alike(values, "CASE"), has_else=default is not None)

    def _if(self, node: exp.If) -> Term:
        refuse_further(node, "this", "true", "false")
        test = self.condition(node.this)
        false = node.args.get("false")
        values = [self.term(node.args["true"]), self.term(false) if false is not None else literal(None, pa.null())]
        return case_of([test], self._alike(values, "if"), has_else=false is not None)

    def _coalesce(self, node: exp.Coalesce) -> Term:
        refuse_further(node, "this", "expressions")
        return coalesce_of(self._alike([self.term(part) for part in (node.this, *node.expressions)], "coalesce"))

    def _nullif(self, node: exp.Nullif) -> Term:
        refuse_further(node, "this", "expression")
        left, right = self.term(node.this), self.term(node.expression)
        refuse_nested(left, right, what="nullif")
        return nullif_of(left, right, operators.comparison("=", *together(left, right, "comparing (nullif)")))

    def _alike(self, parts: list[Term], what: str) -> list[Term]:
        """Bring alternatives to one type."""
        type_: pa.DataType | None = parts[0].type
        for part in parts[1:]:
            type_ = common_type(type_, part.type) if type_ is not None else None
        alike = [converted(part, type_) if type_ is not None else None for part in parts]
        found = [part for part in alike if part is not None]
        if type_ is None or len(found) < len(parts):
            refuse(f"{what} of {', '.join(dict.fromkeys(type_name(part.type) for part in parts))} is not known here", "CAST the values to one type.")
        return found


def _refuse_chained(node: exp.Expr) -> None:
    """Refuse a comparison of comparisons without brackets: Spark reads them from left to right, then IN, BETWEEN and LIKE; the tree has ranks of its own."""
    for part in (node.this, node.expression):
        while isinstance(part, exp.Not):
            part = part.this  # a NOT IN (…) is a NOT around it
        if isinstance(part, _CHAINED):
            refuse(f"{shown(part)} is compared with something, and what belongs together is not said", "Put brackets around it.")


def _any_of(terms: Sequence[Term]) -> Term:
    """Return that one of them is true, as a tree of little depth."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return operators.logic("OR", [_any_of(terms[:half]), _any_of(terms[half:])])
