"""What a query in PostgreSQL's own SQL reads, found in its text before the server sees it.

In: SQL text as PostgreSQL reads it, with `?` for parameters.
Out: the names it reads, the functions it calls, and the text as psycopg takes it.
Promise: pure; a statement that writes, or that would read a table of the warehouse without its hot rows, is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from righttime.changes.sql_errors import why_unreadable
from righttime.errors import SqlRefused
from righttime.query.statement import STATEMENT_CHARS_MAX

MARK = "/* postgresql */ "  # in receipts: this was PostgreSQL's SQL, not Spark's

_DIALECT = "postgres"
_OWN = ("pg_temp", "rt_hot_", "rt_gone_")
# They run text as a query, which nobody could look into.
_RUNNING = ("query_to_", "table_to_", "schema_to_", "database_to_", "cursor_to_", "ts_stat", "ts_rewrite", "dblink")
# They change the session, the server or other sessions, and are no part of an answer.
_EFFECTS = (
    *("set_config", "setval", "nextval", "pg_notify", "pg_advisory", "pg_try_advisory", "pg_terminate", "pg_cancel", "pg_reload", "pg_rotate"),
    *("pg_switch", "pg_create", "pg_drop", "pg_logical", "pg_replication", "pg_promote", "pg_export_snapshot", "pg_import", "pg_stat_reset", "lo_"),
)
_OPENINGS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.TABLE, TokenType.L_PAREN})
_QUERIES_ONLY = "Ask with one SELECT, WITH, VALUES or TABLE statement."


@dataclass(frozen=True, slots=True)
class PostgresStatement:
    """One query. `names` are those without a schema, `qualified` those with one, `given` those that its WITH gives, `calls` functions with a schema;
    all as the server folds them. A function without a schema is PostgreSQL's own: the session looks for no others.
    """

    text: str
    names: tuple[str, ...]
    qualified: tuple[tuple[str, str], ...]
    calls: tuple[str, ...]
    placeholders: int
    given: tuple[str, ...] = ()

    def for_psycopg(self) -> str:
        """Return the text with %s for each ?, as psycopg wants it where there are parameters."""
        return _with_percent(self.text) if self.placeholders else self.text


def postgres_statement(sql: str) -> PostgresStatement:
    """Check that the text is one query and return what it reads; raise `SqlRefused` otherwise."""
    if len(sql) > STATEMENT_CHARS_MAX:
        _refuse(f"it has {len(sql)} characters, over the bound {STATEMENT_CHARS_MAX}", "Put long lists of values into a table and join it.")
    tokens = _tokens(sql)
    if not tokens:
        _refuse("it is empty", _QUERIES_ONLY)
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        _refuse("it holds several statements", "Send them one by one.")
    if tokens[0].token_type not in _OPENINGS:
        _refuse(f"{tokens[0].text.upper()[:80]} is not a query", _QUERIES_ONLY)
    text = sql[: tokens[-1].end + 1]
    root = _parsed(text, tokens)
    for node in root.walk():
        _refuse_effects(node)
    tables = [node for node in root.find_all(exp.Table) if isinstance(node.this, exp.Identifier)]
    names = {_folded(table.this) for table in tables if not table.args.get("db")}
    qualified = {(_folded(table.args["db"]), _folded(table.this)) for table in tables if table.args.get("db")}
    for name in (*names, *(part for pair in qualified for part in pair)):
        if name.startswith(_OWN):
            _refuse(f"{name} is the system's own", "Name the tables themselves.")
    called = [place for place, (first, second) in enumerate(pairwise(tokens)) if second.token_type is TokenType.L_PAREN and first.text[:1].isidentifier()]
    for call in (tokens[place].text.lower() for place in called):
        if call.startswith(_RUNNING):
            _refuse(f"{call}() runs text as a query", "Write the query itself.")
        if call.startswith(_EFFECTS):
            _refuse(f"{call}() does something besides answering", _QUERIES_ONLY)
    _refuse_escaped_names(tokens)
    calls = {_name(tokens[place]) for place in called if place and tokens[place - 1].token_type is TokenType.DOT}
    placeholders = sum(token.token_type is TokenType.PLACEHOLDER for token in tokens)
    given = {_folded(cte.args["alias"].this) for cte in root.find_all(exp.CTE)}
    return PostgresStatement(text, tuple(sorted(names)), tuple(sorted(qualified)), tuple(sorted(calls)), placeholders, tuple(sorted(given)))


def views_behind(statement: PostgresStatement, views: Mapping[str, str]) -> list[str]:
    """Return the declared views that a statement needs, each after those it stands on."""
    ordered: list[str] = []
    for name in statement.names:
        if name in views and name not in ordered:
            # A view is declared after what it stands on, so this ends.
            ordered += [view for view in views_behind(postgres_statement(views[name]), views) if view not in ordered]
            ordered.append(name)
    return ordered


def _refuse_escaped_names(tokens: Sequence[Token]) -> None:
    """Refuse U&"…": the server reads another name than the one that was looked at here."""
    for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
        adjacent = first.end + 1 == second.start and second.end + 1 == third.start
        if adjacent and first.text.lower() == "u" and second.text == "&" and third.token_type is TokenType.IDENTIFIER:
            _refuse('it has a name written as U&"…"', "Write the name itself.")


def _tokens(sql: str) -> list[Token]:
    try:
        tokens = list(sqlglot.tokenize(sql, read=_DIALECT))
    except SqlglotError as error:
        raise SqlRefused(reason=f"it cannot be read ({why_unreadable(error, sql)})", way_out="Correct the statement.", syntax=True) from error
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    return tokens


def _parsed(text: str, tokens: Sequence[Token]) -> exp.Expr:
    # sqlglot does not know TABLE x as a query.
    readable = f"SELECT * FROM {text[tokens[0].end + 1 :]}" if tokens[0].token_type is TokenType.TABLE else text
    try:
        root = sqlglot.parse_one(readable, read=_DIALECT)
    except RecursionError as error:
        raise SqlRefused(reason="it is nested too deeply", way_out="Name parts of it with WITH.") from error
    except SqlglotError as error:
        raise SqlRefused(reason=f"it cannot be read ({why_unreadable(error, text, place=True)})", way_out="Correct the statement.", syntax=True) from error
    if not isinstance(root, exp.Query | exp.Values):
        _refuse(f"{tokens[0].text.upper()} is not a query", _QUERIES_ONLY)
    return root


def _refuse_effects(node: exp.Expr) -> None:
    if isinstance(node, exp.DML | exp.DDL | exp.Command) and not isinstance(node, exp.Query):
        _refuse(f"{node.key.upper()} changes something", _QUERIES_ONLY)
    if isinstance(node, exp.Into):
        _refuse("SELECT … INTO writes a table", "Take the answer and insert it.")
    if isinstance(node, exp.Placeholder) and not node.args.get("jdbc"):
        _refuse(f"{node.sql(_DIALECT)} is no placeholder here", "Write ? and pass the values in order.")
    if isinstance(node, exp.Lock):
        _refuse("it locks rows", "Take FOR UPDATE or FOR SHARE out: an answer is one moment that nobody changes.")


def _name(token: Token) -> str:
    return token.text if token.token_type is TokenType.IDENTIFIER else token.text.lower()


def _folded(identifier: exp.Expr) -> str:
    name: str = identifier.name
    return name if identifier.args.get("quoted") else name.lower()


def _with_percent(text: str) -> str:
    pieces, done = [], 0
    for token in sqlglot.tokenize(text, read=_DIALECT):
        if token.token_type is TokenType.PLACEHOLDER:
            pieces += [text[done : token.start].replace("%", "%%"), "%s"]
            done = token.end + 1
    return "".join([*pieces, text[done:].replace("%", "%%")])


def _refuse(reason: str, way_out: str) -> NoReturn:
    raise SqlRefused(reason=reason, way_out=way_out)
