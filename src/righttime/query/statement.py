"""What a statement reads or inserts, found in its text before any engine sees it.

In: SQL text as Spark reads it.
Out: the free table names of a query (`read_statement`), the rows of an INSERT (`insert_statement`), a query's CURRENCY BOUND (`split_currency`).
Promise: pure; a statement that writes, has side effects or hides a table's name is refused, also where Spark's reading of the text could differ.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import count, pairwise
from typing import NoReturn, TypeVar

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from righttime.changes.durations import duration_us
from righttime.changes.sql_errors import why_unreadable
from righttime.errors import SqlRefused
from righttime.query.literals import Value, literal_value

STATEMENT_CHARS_MAX = 1_000_000
_KNOWN_MAX = 512
_KNOWN_CHARS_MAX = 10_000

_DIALECT = "spark"
_OPENINGS = frozenset({"select", "with", "values", "table", "from"})
_SET_OPERATORS = frozenset({"union", "except", "intersect", "minus"})
_STRINGS = frozenset({TokenType.STRING, TokenType.RAW_STRING, TokenType.NATIONAL_STRING})
_SIGNS = frozenset({TokenType.DASH, TokenType.PLUS})
_WAYS_OUT = {
    "insert": "Load rows with Warehouse.producer() or through a righttime.connect() connection.",
    "update": "Change rows with Warehouse.producer(), or with UPDATE, DELETE and INSERT … ON CONFLICT over a righttime.connect() connection.",
    "delete": "Change rows with Warehouse.producer(), or with UPDATE, DELETE and INSERT … ON CONFLICT over a righttime.connect() connection.",
    "merge": "Change rows with Warehouse.producer(), or with UPDATE, DELETE and INSERT … ON CONFLICT over a righttime.connect() connection.",
    "create": "Declare tables with Warehouse.create_table().",
    "explain": "Run the query and call explain() on the answer's df.",
    "set": "Put Spark configuration into the setting spark_conf.",
}
_QUERIES_ONLY = "Ask with one SELECT, WITH, VALUES, TABLE or FROM statement."
_VALUES_ONLY = "Write INSERT INTO table VALUES (…) with literals and ?, or load with Warehouse.producer()."
_HIDING = {
    "java_method": "java_method() calls arbitrary code",
    "reflect": "reflect() calls arbitrary code",
    "try_reflect": "try_reflect() calls arbitrary code",
    "identifier": "IDENTIFIER() hides which table, column or function is meant",
    "table": "TABLE() as an argument hides which table is read",
    "stream": "STREAM() asks for a stream, and an answer is one snapshot",
}
# What these return may differ between two runs over the same rows.
_VOLATILE_WORDS = frozenset({"current_date", "current_time", "current_timestamp", "current_user", "localtimestamp", "session_user", "tablesample"})
_VOLATILE_CALLS = re.compile(
    r"any_value|approx_percentile|approx_top_k\w*|array_agg|collect_list|collect_set|curdate|current_\w+|first|first_value|histogram_numeric"
    r"|input_file_\w+|lag|last|last_value|lead|listagg|max_by|min_by|mode|monotonically_increasing_id|now|nth_value|ntile|percentile_approx"
    r"|rand|randn|random|randstr|row_number|shuffle|spark_partition_id|string_agg|uniform|unix_timestamp|user|uuid|version"
    r"|(?:hll|kll|theta|tuple)_\w+_agg\w*"  # estimates depend on the order
)


_VOLATILE_TEXTS = frozenset({"now", "today", "yesterday", "tomorrow"})  # as timestamps they mean another moment each time


@dataclass(frozen=True, slots=True)
class ReadStatement:
    """One query: its text without closing semicolons and the tables it reads, in lower case and sorted.

    `volatile` names what may make two runs over the same rows differ (functions, LIMIT and whatever else ties decide); `placeholders` counts its `?`.
    """

    text: str
    tables: tuple[str, ...]
    placeholders: int = 0
    volatile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A `?`, counted from 0 over the whole statement."""

    index: int


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """One INSERT of scalar values: rows of placeholders and literals, all of the same width; `columns` is None if the statement names none."""

    table: str
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Placeholder | Value, ...], ...]
    placeholders: int = 0


_Read = TypeVar("_Read")


def _remembering(read: Callable[[str], _Read]) -> Callable[[str], _Read]:
    """Let short texts, which are often asked again, be read once."""
    known = lru_cache(maxsize=_KNOWN_MAX)(read)

    @wraps(read)
    def read_or_known(sql: str) -> _Read:
        return known(sql) if len(sql) <= _KNOWN_CHARS_MAX else read(sql)

    return read_or_known


@_remembering
def split_currency(sql: str) -> tuple[str, int | None]:
    """Cut `CURRENCY BOUND n unit` off the end of a query; return the rest and the bound in microseconds, None if there was none."""
    tokens = _tokens(sql)
    place = next((place for place in range(len(tokens) - 2) if _begins_currency(tokens[place : place + 3])), None)
    if place is None:
        return sql, None
    # A suffixed number such as 10D comes as three tokens over the same characters.
    pieces = {token.start: sql[token.start : token.end + 1] for token in tokens[place + 2 :]}
    if len(pieces) > (3 if tokens[place + 2].token_type in _SIGNS else 2):
        _refuse("CURRENCY BOUND does not stand at the end of the statement", "Write it once, as the last words: CURRENCY BOUND 10 MIN.")
    return sql[: tokens[place].start].rstrip(), duration_us(re.sub(r"^([+-]) ", r"\1", " ".join(pieces.values())), what="CURRENCY BOUND")


@_remembering
def read_statement(sql: str) -> ReadStatement:
    """Check that the text is one query without side effects and return what it reads; raise `SqlRefused` otherwise."""
    tokens = _tokens(sql)
    if not tokens:
        _refuse("it is empty", _QUERIES_ONLY)
    _check_single(tokens)
    _check_opening(tokens)
    _check_words(tokens)
    text = sql[: tokens[-1].end + 1]
    root = _parse(_readable(text, tokens))
    if not isinstance(root, exp.Query | exp.Values):
        verb = "insert" if isinstance(root, exp.MultitableInserts) else root.key
        _refuse(f"{verb.upper()} is not a query", _WAYS_OUT.get(verb, _QUERIES_ONLY))
    tables, tied = _free_tables(root)
    volatile = {*_volatile_words(tokens), *tied}
    placeholders = sum(token.token_type is TokenType.PLACEHOLDER for token in tokens)
    return ReadStatement(text=text, tables=tuple(sorted(tables)), placeholders=placeholders, volatile=tuple(sorted(volatile)))


def insert_statement(sql: str) -> InsertStatement | None:
    """Return the rows of an INSERT of scalar values, None if the text is no INSERT; raise `SqlRefused` for any other kind of INSERT."""
    tokens = _tokens(sql)
    if not tokens or tokens[0].token_type is not TokenType.INSERT:
        return None
    _check_single(tokens)
    if any(_word(token) in {"cast", "try_cast"} or sql[token.start : token.end + 1] == "::" for token in tokens):
        _refuse("it converts a value", "Pass the converted value as a parameter.")
    root = _parse(_readable(sql[: tokens[-1].end + 1], tokens))
    if not isinstance(root, exp.Insert):
        _refuse(f"{root.key.upper()} is not an INSERT", _VALUES_ONLY)
    _check_plain(root, {"this", "expression"})
    table, columns = _insert_target(root.this)
    rows = _insert_rows(root.expression)
    width = len(columns) if columns is not None else len(rows[0])
    if any(len(row) != width for row in rows):
        _refuse(f"not every row has {width} values", "Give each row as many values as there are columns.")
    placeholders = sum(isinstance(value, Placeholder) for row in rows for value in row)
    return InsertStatement(table=table, columns=columns, rows=rows, placeholders=placeholders)


def _insert_target(target: exp.Expr) -> tuple[str, tuple[str, ...] | None]:
    columns = None
    if isinstance(target, exp.Schema):
        columns = tuple(column.name for column in target.expressions)
        if not columns or not all(isinstance(column, exp.Identifier) for column in target.expressions):
            _refuse("its column list is not a list of names", "Write INSERT INTO table (column, column) VALUES (?, ?).")
        if len({name.lower() for name in columns}) < len(columns):
            _refuse("a column is named twice", "Name each column once.")
        target = target.this
    if not isinstance(target, exp.Table) or not isinstance(target.this, exp.Identifier):
        _refuse("the name of its table is not written out", "Write the table's name.")
    name = _table_name(target)
    _check_plain(target, {"this"})
    return name, columns


def _insert_rows(values: object) -> tuple[tuple[Placeholder | Value, ...], ...]:
    if not isinstance(values, exp.Values):
        _refuse("it does not insert VALUES", _VALUES_ONLY)
    _check_plain(values, {"expressions"})
    numbers = count()
    return tuple(tuple(_insert_value(value, numbers) for value in row.expressions) for row in values.expressions)


def _insert_value(node: exp.Expr, numbers: Iterator[int]) -> Placeholder | Value:
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Placeholder):
        return literal_value(node)
    if node.this:
        _refuse(f":{node.name} is a named parameter", "Write ? and pass the values in order.")
    return Placeholder(next(numbers))


def _check_plain(node: exp.Expr, known: set[str]) -> None:
    """Refuse whatever else a statement says: PARTITION, OVERWRITE, ON CONFLICT and what later readers of SQL will know."""
    further = [name for name, value in node.args.items() if value and name not in known]
    if further:
        _refuse(f"it is not a plain INSERT ({', '.join(further)})", _VALUES_ONLY)


def _tokens(sql: str) -> list[Token]:
    """Return the text's tokens without closing semicolons."""
    if len(sql) > STATEMENT_CHARS_MAX:
        _refuse(f"it has {len(sql)} characters, over the bound {STATEMENT_CHARS_MAX}", "Put long lists of values into a table and join it.")
    try:
        tokens = list(sqlglot.tokenize(sql, read=_DIALECT))
    except SqlglotError as error:
        raise SqlRefused(reason=f"it cannot be read ({why_unreadable(error, sql)})", way_out="Correct the statement.", syntax=True) from error
    _check_comments(tokens)
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    return tokens


def _check_single(tokens: Sequence[Token]) -> None:
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        _refuse("it holds several statements", "Send them one by one.")


def _check_comments(tokens: Sequence[Token]) -> None:
    """Refuse comments that Spark ends elsewhere than this reader does: what is a comment here could be a statement there."""
    for comment in (comment for token in tokens for comment in token.comments):
        if "/*" in comment or comment.rstrip().endswith("\\") or re.search(r"\r(?!\n)", comment.rstrip()):
            _refuse("a comment holds /*, a lone carriage return or a backslash at its end", "Take the comment out.")


def _begins_currency(tokens: Sequence[Token]) -> bool:
    """Tell a bound from a table or column that happens to be called currency: only in a bound does a value follow."""
    word, bound, value = tokens
    if word.token_type is not TokenType.VAR or word.text.lower() != "currency" or bound.token_type is not TokenType.VAR or bound.text.lower() != "bound":
        return False
    return value.token_type in {TokenType.NUMBER, TokenType.PLACEHOLDER, *_SIGNS, *_STRINGS} or value.text[:1].isdigit()


def _check_opening(tokens: Sequence[Token]) -> None:
    first = next((token for token in tokens if token.token_type is not TokenType.L_PAREN), tokens[0])
    word = first.text.lower()
    if word not in _OPENINGS:
        _refuse(f"{first.text.upper()} does not begin a query", _WAYS_OUT.get(word, _QUERIES_ONLY))


def _check_words(tokens: Sequence[Token]) -> None:
    """Refuse what acts or hides, by its words: this holds whatever place in the grammar the words are in."""
    for token, following in pairwise(tokens):
        word = _word(token)
        if word in _HIDING and following.token_type is TokenType.L_PAREN:
            _refuse(_HIDING[word], "Write the query without it.")
        if word == "using" and following.token_type in _STRINGS:
            _refuse("it runs a script (TRANSFORM, MAP or REDUCE with USING)", "Run the script over the answer's df.")


def _volatile_words(tokens: Sequence[Token]) -> Iterator[str]:
    for place, token in enumerate(tokens):
        word = _word(token)
        called = place + 1 < len(tokens) and tokens[place + 1].token_type is TokenType.L_PAREN
        if (called and _VOLATILE_CALLS.fullmatch(word)) or word in _VOLATILE_WORDS:
            yield word
        elif token.token_type is TokenType.STRING and token.text.strip().lower() in _VOLATILE_TEXTS:
            yield repr(token.text)


def _word(token: Token) -> str:
    return "" if token.token_type in _STRINGS else token.text.lower()


def _readable(text: str, tokens: Sequence[Token]) -> str:
    """Return the text with what sqlglot reads otherwise than Spark in other words: `TABLE t`, `MAX RECURSION LEVEL n`, `'it''s'`."""
    pieces, done = [], 0
    words = [_word(token) for token in tokens]
    for place, token in enumerate(tokens):
        if token.token_type is TokenType.TABLE and _stands_for_query(words, place):
            pieces += [text[done : token.start], "SELECT * FROM"]
            done = token.end + 1
        elif words[place : place + 3] == ["max", "recursion", "level"] and place + 3 < len(tokens):
            pieces += [text[done : token.start]]
            done = tokens[place + 3].end + 1
        elif place and token.token_type is TokenType.STRING and _continues(text, tokens[place - 1], token):
            pieces += [text[done : token.start - 1], "\\", text[token.start]]
            done = token.start + 1
    return "".join([*pieces, text[done:]])


def _continues(text: str, before: Token, token: Token) -> bool:
    """Tell whether two strings are one with a doubled quote in it."""
    return before.token_type is TokenType.STRING and before.end + 1 == token.start and text[before.end] == text[token.start]


def _stands_for_query(words: Sequence[str], place: int) -> bool:
    before = words[place - 1] if place else "("
    if before in {"all", "distinct"} and place > 1:
        before = words[place - 2]
    after = words[place + 1] if place + 1 < len(words) else ""
    return (before in {"(", ")"} or before in _SET_OPERATORS) and after[:1] not in {"", "(", ")", ","}


def _parse(text: str) -> exp.Expr:
    try:
        root = sqlglot.parse_one(text, read=_DIALECT)
    except RecursionError as error:
        raise SqlRefused(reason="it is nested too deeply", way_out="Name parts of it with WITH.") from error
    except SqlglotError as error:
        raise SqlRefused(reason=f"it cannot be read ({why_unreadable(error, text, place=True)})", way_out="Correct the statement.", syntax=True) from error
    return root


def _free_tables(root: exp.Expr) -> tuple[set[str], set[str]]:
    """Return the tables that no WITH around them names, and the clauses that pick rows by their place in an order.

    A name from WITH holds in later names of the same WITH and in the statement it heads, in its own body only if RECURSIVE.
    """
    tables: set[str] = set()
    tied: set[str] = set()
    open_nodes: list[tuple[exp.Expr, frozenset[str]]] = [(root, frozenset())]
    while open_nodes:
        node, named = open_nodes.pop()
        _refuse_effects(node)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not (node.name.lower() in named and not node.args.get("db")):
            tables.add(_table_name(node))
        tied |= _tied(node)
        # Names in a hint point at aliases; a table that is only hinted at is not read.
        children = [child for child in node.iter_expressions() if not isinstance(child, exp.Hint)]
        for heading in (child for child in children if isinstance(child, exp.With)):
            for cte in heading.expressions:
                extended = named | {cte.alias.lower()}
                open_nodes.append((cte, extended if heading.args.get("recursive") else named))
                named = extended
        open_nodes.extend((child, named) for child in children if not isinstance(child, exp.With))
    return tables, tied


def _tied(node: exp.Expr) -> set[str]:
    """Return the name of a clause whose rows may be others if equal ones come in another order; whether an ORDER BY leaves any equal, no text tells."""
    if isinstance(node, exp.WindowSpec):
        whole = node.args.get("start") == node.args.get("end") == "UNBOUNDED"
        return {"rows"} if node.args.get("kind") == "ROWS" and not whole else set()
    return {node.key} if isinstance(node, exp.Limit | exp.Offset) else set()


def _refuse_effects(node: exp.Expr) -> None:
    if isinstance(node, exp.DML | exp.DDL | exp.Command) and not isinstance(node, exp.Query):
        _refuse(f"{node.key.upper()} changes something", _WAYS_OUT.get(node.key, _QUERIES_ONLY))
    if isinstance(node, exp.Into):
        _refuse("SELECT … INTO writes a table", "Take the answer and insert it with Warehouse.producer().")
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier | exp.Func):
        _refuse("the name of a table is not written out", "Write the table's name.")


def _table_name(table: exp.Table) -> str:
    if table.args.get("version"):
        _refuse(f"{table.name} is asked for at another version", "Ask for an earlier cut with as_of=.")
    if table.args.get("db") or table.args.get("catalog"):
        full = ".".join(part.name for part in table.parts)
        _refuse(f"{full} is a qualified name or a file, and only tables of this warehouse are known here", "Name a table, without a database in front.")
    return table.name.lower()


def _refuse(reason: str, way_out: str) -> NoReturn:
    raise SqlRefused(reason=reason, way_out=way_out)
