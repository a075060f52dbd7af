"""Laws of statement reading, for any query that a small grammar can write."""

import contextlib
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from righttime.errors import InputError, SqlRefused
from righttime.query.statement import insert_statement, read_statement, split_currency

NAMES = ["a", "b", "c", "Sale", "currency", "bound"]
SHAPES = ["table", "first", "join", "derived", "in", "scalar", "union", "lateral", "with", "recursive", "parens", "noise"]
UNITS_US = {"ms": 1_000, "Sec": 1_000_000, "MINUTES": 60_000_000, "hour": 3_600_000_000}
WRITES = ["INSERT INTO a", "CREATE TABLE a AS", "CREATE OR REPLACE VIEW a AS", "CACHE TABLE a AS", "EXPLAIN", "SELECT 1;"]
WORDS = [
    *(
        "SELECT",
        "INSERT",
        "INTO",
        "VALUES",
        "TABLE",
        "FROM",
        "WITH",
        "RECURSIVE",
        "AS",
        "UNION",
        "ALL",
        "LIMIT",
        "LATERAL",
        "VIEW",
        "WHERE",
        "IN",
        "JOIN",
        "ON",
    ),
    *("CURRENCY", "BOUND", "MIN", "MAX", "RECURSION", "LEVEL", "OVERWRITE", "DEFAULT", "PIVOT", "FOR", "DATE", "CAST", "USING", "TRANSFORM", "NULL", "TRUE"),
    *("a", "b", "`z`", "'x'", '"y"', "r'\\'", "X'1f'", "'open", "1", "2.5", "1e3", "10D"),
    *("(", ")", ",", ".", ";", "?", "*", "-", "+", "=", "::", "|>", "--", "/*", "*/", "/*+", "\\", "\n", "\r"),
]
names = st.sampled_from(NAMES)
Query = tuple[str, frozenset[str]]  # its text, and the tables it reads


def spelled(draw: Any, name: str) -> str:
    """Write a name in one of the ways that mean the same."""
    return str(draw(st.sampled_from([name, name.upper(), name.lower(), f"`{name}`"])))


@st.composite
def queries(draw: Any, scope: frozenset[str] = frozenset(), depth: int = 3) -> Query:
    """Draw a query together with its free names, which follow from how it is built: this is the model."""
    shapes = (
        ["table", "first"] if depth == 0 else ["table", "first", "join", "derived", "in", "scalar", "union", "lateral", "with", "recursive", "parens", "noise"]
    )
    shape = draw(st.sampled_from(shapes))
    name = draw(names)
    reads = frozenset({name.lower()} - scope)
    source = spelled(draw, name)
    if shape == "table":
        return f"TABLE {source}", reads
    if shape == "first":
        return f"SELECT * FROM {source} AS {draw(names)}", reads
    if shape in {"with", "recursive"}:
        body, body_reads = draw(queries(scope | {name.lower()} if shape == "recursive" else scope, depth - 1))
        rest, rest_reads = draw(queries(scope | {name.lower()}, depth - 1))
        if rest.startswith("WITH"):
            rest = f"SELECT * FROM ({rest})"
        return f"WITH {'RECURSIVE ' * (shape == 'recursive')}{source} AS ({body}) {rest}", body_reads | rest_reads
    inner, inner_reads = draw(queries(scope, depth - 1))
    text = {
        "join": f"SELECT /*+ BROADCAST({draw(names)}) */ * FROM {source} x JOIN ({inner}) y ON x.k = y.k",
        "derived": f"SELECT x.{draw(names)} FROM ({inner}) AS {draw(names)}, {source}",
        "in": f"SELECT * FROM {source} WHERE k IN ({inner}) OR NOT EXISTS (SELECT 1)",
        "scalar": f"SELECT ({inner}) AS {draw(names)} FROM {source}",
        "union": f"SELECT * FROM {source} UNION ALL ({inner})",
        "lateral": f"SELECT * FROM {source}, LATERAL ({inner}) z LATERAL VIEW explode(xs) t AS x",
        "parens": f"(SELECT * FROM {source} EXCEPT ({inner}))",
        "noise": f"SELECT 'FROM {draw(names)}; CURRENCY BOUND 1 SEC' -- FROM {draw(names)}\n FROM /* , {draw(names)} */ {source}, range(3), ({inner})",
    }[shape]
    return text, reads | inner_reads


@given(query=queries())
def test_a_query_reads_exactly_the_names_that_no_with_defines(query: Query) -> None:
    """Whatever is nested in whatever, a name means the nearest WITH that defines it, and else a table."""
    text, reads = query
    assert read_statement(text).tables == tuple(sorted(reads))


@given(query=queries(depth=2), amount=st.integers(0, 10_000), unit=st.sampled_from(sorted(UNITS_US)))
def test_a_bound_is_found_behind_any_query_and_nowhere_else(query: Query, amount: int, unit: str) -> None:
    """The rest is the query, word for word."""
    text, _ = query
    assert split_currency(text) == (text, None)
    assert split_currency(f"{text}\nCurrency Bound {amount} {unit} ;") == (text, amount * UNITS_US[unit])


@given(
    query=queries(depth=2),
    write=st.sampled_from(WRITES),
)
def test_no_query_makes_a_write_acceptable(query: Query, write: str) -> None:
    """What a statement does is decided by its verb, however harmless the rest is."""
    try:
        read_statement(f"{write} {query[0]}")
    except SqlRefused:
        return
    raise AssertionError("a statement that writes was accepted")


@given(text=st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a coded error comes out of nonsense."""
    readers: list[Callable[[str], object]] = [read_statement, insert_statement, split_currency]
    for reader in readers:
        with contextlib.suppress(InputError):
            reader(text)


def written(value: Any, *, double: bool) -> str:
    """Write a value as a Spark literal."""
    match value:
        case None | bool():
            return str(value).upper().replace("NONE", "NULL")
        case str():
            escaped = value.replace("\\", "\\\\")
            return "'" + (escaped.replace("'", "''") if double else escaped.replace("'", "\\'")) + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case Decimal():
            return format(value, "f") + "BD"
        case float():
            return f"{value!r}D"
        case dt.datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
    return str(value)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=12),
    st.text(alphabet="'\\\"?;-/*%_n ", max_size=12),
    st.binary(max_size=8),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dates(min_value=dt.date(1000, 1, 1)),
    st.datetimes(min_value=dt.datetime(1000, 1, 1)),
    st.datetimes(min_value=dt.datetime(1000, 1, 1), timezones=st.just(dt.UTC)),
)


@given(rows=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4), double=st.booleans())
def test_values_written_as_literals_come_back(rows: list[tuple[Any, Any]], double: bool) -> None:
    """An INSERT with literals inserts what was written."""
    text = ", ".join(f"({written(left, double=double)}, {written(right, double=double)})" for left, right in rows)
    statement = insert_statement(f"INSERT INTO t VALUES {text}")
    assert statement is not None
    assert statement.rows == tuple(rows)
