"""UPDATE, DELETE and upserts as SQL, cut into their parts.

In: SQL text as Spark reads it.
Out: `UpdateStatement`, `DeleteStatement`, `UpsertStatement`, with expressions as text.
Promise: pure; a clause that is not known here (joins, USING, RETURNING, aliases …) is refused, never ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import sqlglot
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from righttime.errors import SqlRefused
from righttime.query.statement import STATEMENT_CHARS_MAX, InsertStatement, insert_statement

_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_FURTHER = {
    "from": "it takes values from another table (FROM)",
    "using": "it takes values from another table (USING)",
    "join": "it joins another table",
    "returning": "RETURNING asks for the changed rows",
    "limit": "LIMIT changes some rows of many, and nobody could say which",
    "order": "ORDER BY has no meaning for a change",
}
_UPDATE = "Write UPDATE table SET column = value, … WHERE condition, over columns of that table only."
_DELETE = "Write DELETE FROM table WHERE condition, over columns of that table only."
UPSERT_FORM = "Write INSERT INTO table (columns) VALUES (…) ON CONFLICT (keys) DO UPDATE SET column = EXCLUDED.column, with every column that is not a key."


@dataclass(frozen=True, slots=True)
class Part:
    """One expression of a statement, as text, with how many `?` it has."""

    text: str
    placeholders: int


@dataclass(frozen=True, slots=True)
class UpdateStatement:
    """One UPDATE: columns with their expressions, and a condition, None for all rows; `keyed` if it is just `column = ? AND …`: these columns."""

    table: str
    assignments: tuple[tuple[str, Part], ...]
    where: Part | None
    keyed: tuple[str, ...] | None
    placeholders: int


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    """One DELETE with its condition, as in `UpdateStatement`."""

    table: str
    where: Part | None
    keyed: tuple[str, ...] | None
    placeholders: int


@dataclass(frozen=True, slots=True)
class UpsertStatement:
    """One INSERT … ON CONFLICT DO UPDATE: the rows, the keys it names (None if none), the columns it takes over from them."""

    insert: InsertStatement
    keys: tuple[str, ...] | None
    columns: tuple[str, ...]

    @property
    def table(self) -> str:
        """Return the table's name."""
        return self.insert.table

    @property
    def placeholders(self) -> int:
        """Return how many `?` there are."""
        return self.insert.placeholders


def change_statement(sql: str) -> UpdateStatement | DeleteStatement | UpsertStatement | None:
    """Return the parts of a statement that changes rows, None if it is none; raise `SqlRefused` for a form that is not known here."""
    if len(sql) > STATEMENT_CHARS_MAX:
        return None  # the reader of queries and INSERTs says what is wrong with it
    try:
        tokens = list(sqlglot.tokenize(sql, read="spark"))
    except SqlglotError:
        return None
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    word = _word(tokens[0]) if tokens else ""
    if word == "merge":
        _refuse("MERGE is not known here", f"For rows that replace those with the same key: {UPSERT_FORM}")
    if word not in ("update", "delete", "insert"):
        return None
    reader = _Reader(sql, tokens)
    if word == "insert":
        return _read_upsert(reader)
    return _read_update(reader) if word == "update" else _read_delete(reader)


class _Reader:
    """Goes over the tokens of one statement."""

    def __init__(self, sql: str, tokens: list[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.place = 1
        if any(token.token_type is TokenType.SEMICOLON for token in tokens):
            _refuse("it holds several statements", "Send them one by one.")

    def word(self) -> str:
        """Return the next word in lower case, an empty text at the end."""
        return _word(self.tokens[self.place]) if self.place < len(self.tokens) else ""

    def skip(self, *words: str) -> bool:
        """Go past these words if they come next."""
        found = [_word(token) for token in self.tokens[self.place : self.place + len(words)]] == list(words)
        self.place += len(words) * found
        return found

    def name(self, what: str, way_out: str) -> str:
        """Go past a name without a dot in it and return it."""
        token = self.tokens[self.place] if self.place < len(self.tokens) else None
        if token is None or not (token.token_type in _NAMES or token.text.isidentifier()):
            _refuse(f"the name of {what} is missing", way_out)
        self.place += 1
        if self.word() == ".":
            _refuse(f"{token.text}… is a qualified name, and only plain names are known here", way_out)
        return token.text

    def until(self, *ends: str) -> Part | None:
        """Go up to one of these words, outside of brackets, or to the end; return what was passed, None if it was nothing."""
        first, depth = self.place, 0
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
            if depth <= 0 and _word(token) in ends:
                break
            if depth <= 0 and _word(token) in _FURTHER and not self._is_distinct_from():
                _refuse(_FURTHER[_word(token)], _UPDATE if _word(self.tokens[0]) == "update" else _DELETE)
            self.place += 1
        passed = self.tokens[first : self.place]
        if not passed:
            return None
        return Part(self.sql[passed[0].start : passed[-1].end + 1], sum(token.token_type is TokenType.PLACEHOLDER for token in passed))

    def _is_distinct_from(self) -> bool:
        return self.word() == "from" and _word(self.tokens[self.place - 1]) == "distinct"


def _read_update(reader: _Reader) -> UpdateStatement:
    table = reader.name("its table", _UPDATE).lower()
    if not reader.skip("set"):
        _refuse(_FURTHER.get(reader.word(), "after the table comes something else than SET (an alias?)"), _UPDATE)
    assignments: list[tuple[str, Part]] = []
    while True:
        column = reader.name("a column", _UPDATE)
        value = reader.until(",", "where") if reader.skip("=") else None
        if value is None:
            _refuse(f"column {column} gets no value", _UPDATE)
        assignments.append((column, value))
        if not reader.skip(","):
            break
    names = [name.lower() for name, _ in assignments]
    if len(set(names)) < len(names):
        _refuse("a column is set twice", "Set each column once.")
    where, keyed = _read_where(reader, _UPDATE)
    placeholders = sum(value.placeholders for _, value in assignments) + (where.placeholders if where else 0)
    return UpdateStatement(table, tuple(assignments), where, keyed, placeholders)


def _read_delete(reader: _Reader) -> DeleteStatement:
    if not reader.skip("from"):
        _refuse("after DELETE comes something else than FROM", _DELETE)
    table = reader.name("its table", _DELETE).lower()
    if reader.word() not in ("", "where"):
        _refuse(_FURTHER.get(reader.word(), "after the table comes something else than WHERE (an alias?)"), _DELETE)
    where, keyed = _read_where(reader, _DELETE)
    return DeleteStatement(table, where, keyed, where.placeholders if where else 0)


def _read_where(reader: _Reader, way_out: str) -> tuple[Part | None, tuple[str, ...] | None]:
    if not reader.skip("where"):
        return None, None
    keyed = _equalities(reader.tokens[reader.place :])
    where = reader.until("where")
    if where is None or reader.word():
        _refuse("WHERE has no condition, or stands there twice", way_out)
    return where, keyed


def _equalities(tokens: Sequence[Token]) -> tuple[str, ...] | None:
    """Return the columns of `column = ? AND column = ? …`, None for any other condition."""
    if len(tokens) % 4 != 3:
        return None
    for place, token in enumerate(tokens):
        wanted = (token.token_type in _NAMES, _word(token) == "=", token.token_type is TokenType.PLACEHOLDER, _word(token) == "and")
        if not wanted[place % 4]:
            return None
    names = tuple(token.text for token in tokens[::4])
    return names if len({name.lower() for name in names}) == len(names) else None


def _read_upsert(reader: _Reader) -> UpsertStatement | None:
    words = [_word(token) for token in reader.tokens]
    place = next((place for place in range(1, len(words) - 1) if words[place] == "on" and words[place + 1] in ("conflict", "duplicate")), None)
    if place is None:
        return None
    insert = insert_statement(reader.sql[: reader.tokens[place].start])
    assert insert is not None
    reader.place = place
    if not reader.skip("on", "conflict"):
        _refuse("ON DUPLICATE KEY is not known here", UPSERT_FORM)
    keys = _read_names(reader) if reader.word() == "(" else None
    if not reader.skip("do", "update", "set"):
        _refuse("after ON CONFLICT (keys) comes something else than DO UPDATE SET", UPSERT_FORM)
    columns = []
    while True:
        column = reader.name("a column", UPSERT_FORM)
        if not reader.skip("=", "excluded", ".") or reader.name("a column", UPSERT_FORM).lower() != column.lower():
            _refuse(f"column {column} gets something else than EXCLUDED.{column}", UPSERT_FORM)
        columns.append(column)
        if not reader.skip(","):
            break
    if reader.word():
        _refuse(f"after DO UPDATE SET … comes {reader.word().upper()}", UPSERT_FORM)
    return UpsertStatement(insert, keys, tuple(columns))


def _read_names(reader: _Reader) -> tuple[str, ...]:
    names = []
    reader.skip("(")
    while True:
        names.append(reader.name("a key", UPSERT_FORM))
        if not reader.skip(","):
            break
    if not reader.skip(")"):
        _refuse("its keys are not a list of names", UPSERT_FORM)
    return tuple(names)


def _word(token: Token) -> str:
    """Return a word in lower case; what is quoted is no word."""
    if token.token_type is TokenType.STRING:
        return ""
    return f"`{token.text}`" if token.token_type is TokenType.IDENTIFIER else token.text.lower()


def _refuse(reason: str, way_out: str) -> NoReturn:
    raise SqlRefused(reason=reason, way_out=way_out)
