"""PEP 249 connections over a warehouse in memory."""

import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import righttime as rt
from righttime import errors
from righttime.ledger.postgres_connect import Address
from righttime.query import dbapi
from righttime.query.answer import Answer
from righttime.query.dbapi_types import as_dbapi, type_code
from righttime.query.postgres_queries import PostgresQueries
from righttime.settings import load_settings
from tests.support.memory_warehouse import MemoryWarehouse

INSERT = "INSERT INTO sale VALUES (?, ?, ?)"


@pytest.fixture
def warehouse() -> MemoryWarehouse:
    return MemoryWarehouse(sale="sku INT NOT NULL, qty INT, note STRING", price="sku INT, amount DECIMAL(8, 2), rate DOUBLE, sold TIMESTAMP, blob BINARY")


@pytest.fixture
def connection(warehouse: MemoryWarehouse) -> dbapi.Connection:
    return dbapi.connect(warehouse)


def test_the_module_says_what_it_is() -> None:
    """The three globals of PEP 249, its errors and its constructors."""
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "qmark")
    assert dbapi.Date(2026, 1, 31) == dt.date(2026, 1, 31)
    assert dbapi.TimestampFromTicks(1.5) == dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)
    assert (dbapi.DateFromTicks(86_400), dbapi.TimeFromTicks(60)) == (dt.date(1970, 1, 2), dt.time(0, 1))
    assert dbapi.Binary(b"x") == b"x"
    assert issubclass(dbapi.Warning, Exception)
    assert issubclass(dbapi.InterfaceError, dbapi.Error)
    database_errors = [dbapi.DataError, dbapi.OperationalError, dbapi.IntegrityError, dbapi.InternalError, dbapi.ProgrammingError, dbapi.NotSupportedError]
    assert all(issubclass(kind, dbapi.DatabaseError) for kind in database_errors)
    assert dbapi.Connection.IntegrityError is dbapi.IntegrityError


def test_rows_are_visible_to_others_after_commit_and_to_their_own_connection_before(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """| step | own count | others' count |, then rollback leaves what was committed."""
    cursor = connection.cursor()
    assert cursor.execute(INSERT, (1, 2, "a")).rowcount == 1
    assert cursor.execute("SELECT count(*) FROM sale").fetchone() == (1,)
    assert dbapi.connect(warehouse).cursor().execute("SELECT count(*) FROM sale").fetchone() == (0,)
    connection.commit()
    assert cursor.execute("SELECT * FROM sale").fetchall() == [(1, 2, "a")]
    cursor.execute(INSERT, (2, 2, "b"))
    connection.rollback()
    connection.commit()
    assert cursor.execute("SELECT count(*) FROM sale").fetchone() == (1,)


def test_many_rows_go_to_the_producer_in_one_call(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """All rows of executemany are taken or none, and a loader pays for one call."""
    rows = [(number, number, None) for number in range(100)]
    assert connection.cursor().executemany(INSERT, iter(rows)).rowcount == 100
    assert warehouse.calls == [("insert_many", "sale", rows)]


def test_executemany_of_a_statement_with_several_rows_inserts_them_all(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """Rows of the statement times rows of parameters."""
    cursor = connection.cursor().executemany("INSERT INTO sale (qty, sku) VALUES (?, ?), (9, ?)", [(1, 2, 3), [4, 5, 6]])
    assert cursor.rowcount == 4
    assert warehouse.calls == [("insert_many", "sale", [(2, 1, None), (3, 9, None), (5, 4, None), (6, 9, None)])]


def test_executemany_without_rows_does_nothing(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """No rows, no call."""
    assert connection.cursor().executemany(INSERT, []).rowcount == 0
    assert warehouse.calls == []


def test_one_bad_row_of_many_leaves_the_transaction_as_it_was(connection: dbapi.Connection) -> None:
    """The good rows before it do not slip in."""
    cursor = connection.cursor()
    cursor.execute(INSERT, (1, 1, "a"))
    with pytest.raises(dbapi.DataError) as caught:
        cursor.executemany(INSERT, [(2, 2, "b"), ("three", 3, "c")])
    assert caught.value.code == "value.type"
    connection.commit()
    assert cursor.execute("SELECT sku FROM sale").fetchall() == [(1,)]


def test_columns_that_an_insert_leaves_out_are_null(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """Names go to their columns, whatever their order and case."""
    connection.cursor().execute("INSERT INTO SALE (NOTE, sku) VALUES (?, 7)", ["x"])
    assert warehouse.calls == [("insert", "sale", [(7, None, "x")])]


def test_literals_fit_the_types_of_their_columns(connection: dbapi.Connection) -> None:
    """SQL writes 1.5 for doubles and decimals alike."""
    cursor = connection.cursor()
    cursor.execute("INSERT INTO price VALUES (1, 1, 1, TIMESTAMP '2026-01-31 12:00:00', X'00ff'), (2, 2.5, 2.5, NULL, NULL), (3, 3e0, 3e0, NULL, NULL)")
    connection.commit()
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    rows = cursor.execute("SELECT amount, rate, epoch_us(sold), blob FROM price ORDER BY sku").fetchall()
    assert rows == [(Decimal("1.00"), 1.0, int(noon.timestamp() * 1e6), b"\x00\xff"), (Decimal("2.50"), 2.5, None, None), (Decimal("3.00"), 3.0, None, None)]


def test_parameters_of_a_query_go_to_the_engine(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """They are bound there and never pasted into the text."""
    cursor = connection.cursor()
    cursor.executemany(INSERT, [(1, 2, "a"), (2, 3, "x' OR 1 = 1 --")])
    connection.commit()
    assert cursor.execute("SELECT sku FROM sale WHERE note = ? AND qty > ?", ("x' OR 1 = 1 --", 1)).fetchall() == [(2,)]
    assert warehouse.calls[-1] == ("sql", None, None, ["x' OR 1 = 1 --", 1])


@pytest.mark.parametrize(
    ("sql", "parameters"), [("SELECT ?", ()), ("SELECT 1", (1,)), (INSERT, (1, 2)), (INSERT, (1, 2, 3, 4)), ("INSERT INTO sale VALUES (1, 2, 'a')", (1,))]
)
def test_too_many_or_too_few_parameters_are_refused(connection: dbapi.Connection, sql: str, parameters: Any) -> None:
    """One value for each `?`."""
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.cursor().execute(sql, parameters)
    assert caught.value.code == "sql.parameters"
    if sql.startswith("INSERT"):
        with pytest.raises(dbapi.ProgrammingError) as caught:
            connection.cursor().executemany(sql, [parameters])
        assert caught.value.code == "sql.parameters"


@pytest.mark.parametrize("parameters", [{"a": 1, "b": 2, "c": 3}, "abc", b"abc", 5, {1, 2, 3}])
def test_parameters_that_are_no_sequence_are_refused(connection: dbapi.Connection, parameters: Any) -> None:
    """A text of three letters is not three values."""
    cursor = connection.cursor()
    with pytest.raises(dbapi.ProgrammingError) as caught:
        cursor.execute(INSERT, parameters)
    assert caught.value.code == "sql.parameters"
    with pytest.raises(dbapi.ProgrammingError) as caught:
        cursor.executemany(INSERT, [parameters])
    assert caught.value.code == "sql.parameters"


@pytest.mark.parametrize(
    ("sql", "parameters", "kind", "code"),
    [
        ("INSERT INTO ghost VALUES (1)", (), dbapi.ProgrammingError, "table.unknown"),
        ("SELECT * FROM ghost", (), dbapi.ProgrammingError, "table.unknown"),
        ("INSERT INTO sale (sku, ghost) VALUES (1, 2)", (), dbapi.ProgrammingError, "column.unknown"),
        ("INSERT INTO sale VALUES (1, 2)", (), dbapi.ProgrammingError, "sql.refused"),
        ("SELECT FROM WHERE", (), dbapi.ProgrammingError, "sql.refused"),
        ("INSERT INTO sale VALUES (1, 2", (), dbapi.ProgrammingError, "sql.refused"),
        ("INSERT INTO sale SELECT * FROM sale", (), dbapi.NotSupportedError, "sql.refused"),
        ("TRUNCATE TABLE sale", (), dbapi.NotSupportedError, "sql.refused"),
        ("CREATE TABLE x (a INT)", (), dbapi.NotSupportedError, "sql.refused"),
        ("SELECT 1; SELECT 2", (), dbapi.NotSupportedError, "sql.refused"),
        ("SELECT 1 CURRENCY BOUND 1 PARSEC", (), dbapi.ProgrammingError, "freshness.bad"),
        (INSERT, (None, 1, "a"), dbapi.IntegrityError, "value.null"),
        (INSERT, (1, "many", "a"), dbapi.DataError, "value.type"),
        (INSERT, (2**40, 1, "a"), dbapi.DataError, "value.type"),
    ],
)
def test_errors_are_those_of_pep_249_and_keep_their_code(connection: dbapi.Connection, sql: str, parameters: Any, kind: type[dbapi.Error], code: str) -> None:
    """The original error is the cause."""
    with pytest.raises(kind) as caught:
        connection.cursor().execute(sql, parameters)
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert isinstance(caught.value.__cause__, errors.RightTimeError)
    assert str(caught.value) == str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.FreshnessUnavailable(table="a", source="s", waited_s=1.0, stale_s=2.0, why="x"), dbapi.OperationalError),
        (errors.AsOfUnavailable(asked=1, table="a", reason="x", earliest=2), dbapi.OperationalError),
        (errors.AnswerTooLarge(size=1, bound=0), dbapi.DataError),
        (errors.CatalystFull(table="a", used=1, bound=0, setting="s", waited_s=1.0), dbapi.OperationalError),
        (errors.CommitFailed(source="s", step="x", reason="y"), dbapi.OperationalError),
        (errors.ProducerClosed(source="s"), dbapi.InterfaceError),
        (errors.WarehouseLocked(path="p", pid=1, host="h"), dbapi.OperationalError),
        (errors.WarehouseClosed(path="p"), dbapi.InterfaceError),
        (errors.WarehouseReadOnly(path="p", action="write"), dbapi.NotSupportedError),
        (errors.WarehouseDamaged(path="p", reason="x"), dbapi.InternalError),
        (errors.SqlFailed(tables="a", reason="x"), dbapi.ProgrammingError),
        (errors.BatchTooLarge(table="a", size=1, bound=0), dbapi.DataError),
        (errors.ReceiptForged(receipt="r", reason="x"), dbapi.DatabaseError),
        (errors.RightTimeError(), dbapi.DatabaseError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_of_righttime_has_its_kind(error: errors.RightTimeError, kind: type[dbapi.Error]) -> None:
    """Programs that know only PEP 249 can tell what to retry and what to correct."""
    mapped = as_dbapi(error)
    assert type(mapped) is kind
    assert (mapped.code, mapped.retryable, mapped.context) == (error.code, error.retryable, error.context)


def test_every_error_of_the_tree_is_mapped() -> None:
    """A new error may not fall through."""
    open_kinds: list[type[errors.RightTimeError]] = [errors.RightTimeError]
    while open_kinds:
        kind = open_kinds.pop()
        open_kinds.extend(kind.__subclasses__())
        assert issubclass(type(as_dbapi(kind())), dbapi.Error)


def test_rows_are_fetched_one_by_one_in_parts_and_all(connection: dbapi.Connection) -> None:
    """The place in the answer moves on, and the end is None or an empty list."""
    cursor = connection.cursor()
    cursor.execute("SELECT * FROM (VALUES (1), (2), (3), (4), (5), (6)) ORDER BY 1")
    assert cursor.rowcount == 6
    assert cursor.fetchone() == (1,)
    assert cursor.fetchmany() == [(2,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(3,), (4,)]
    assert cursor.fetchmany(1) == [(5,)]
    assert cursor.fetchall() == [(6,)]
    assert (cursor.fetchone(), cursor.fetchmany(3), cursor.fetchall()) == (None, [], [])


def test_a_cursor_is_an_iterator_over_its_rows(connection: dbapi.Connection) -> None:
    """`for row in cursor.execute(…)` reads on from where the cursor is."""
    cursor = connection.cursor().execute("SELECT * FROM (VALUES (1), (2), (3)) ORDER BY 1")
    assert next(cursor) == (1,)
    assert list(cursor) == [(2,), (3,)]


def test_the_description_tells_names_and_types(connection: dbapi.Connection) -> None:
    """Type codes equal the type objects of PEP 249 and hold the exact Arrow type."""
    cursor = connection.cursor()
    assert cursor.description is None
    cursor.execute("SELECT sku AS k, amount, sold, blob, 'x' AS s, TRUE AS b, [1] AS l FROM price")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["k", "amount", "sold", "blob", "s", "b", "l"]
    codes = [column[1] for column in cursor.description]
    assert codes == [dbapi.NUMBER, dbapi.NUMBER, dbapi.DATETIME, dbapi.BINARY, dbapi.STRING, dbapi.BOOLEAN, dbapi.NESTED]
    assert codes[0] != dbapi.STRING
    assert len({*codes, dbapi.NUMBER}) == 6
    assert codes[0].arrow == pa.int32()
    assert cursor.description[1][2:] == (None, None, 8, 2, True)
    cursor.execute(INSERT, (1, 1, "a"))
    assert cursor.description is None


def test_types_without_a_kind_are_other() -> None:
    """An unknown type is no reason to fail."""
    assert type_code(pa.null()) == dbapi.OTHER
    assert type_code(pa.duration("us")) == dbapi.DATETIME


def test_fetching_without_an_answer_is_an_error(connection: dbapi.Connection) -> None:
    """Before the first query, and after an INSERT or a failed query."""
    cursor = connection.cursor()
    for prepare in (lambda: None, lambda: cursor.execute(INSERT, (1, 1, "a"))):
        prepare()
        with pytest.raises(dbapi.ProgrammingError) as caught:
            cursor.fetchall()
        assert caught.value.code == "cursor.no_answer"
    cursor.execute("SELECT 1")
    with pytest.raises(dbapi.NotSupportedError):
        cursor.execute("DROP TABLE sale")
    with pytest.raises(dbapi.ProgrammingError):
        cursor.fetchone()


def test_queries_are_not_executed_many_times(connection: dbapi.Connection) -> None:
    """PEP 249 leaves it open; an answer per row would be lost."""
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.cursor().executemany("SELECT ?", [(1,), (2,)])
    assert caught.value.code == "sql.refused"


def test_the_cursor_keeps_the_receipt_of_its_last_query(connection: dbapi.Connection) -> None:
    """A report can file it with the numbers."""
    cursor = connection.cursor()
    assert cursor.receipt is None
    receipt = cursor.execute("SELECT count(*) FROM sale").receipt
    assert receipt is not None
    assert receipt.rows == 1
    assert cursor.execute(INSERT, (1, 1, "a")).receipt is receipt
    with pytest.raises(dbapi.ProgrammingError):
        cursor.execute("SELECT * FROM ghost")
    assert cursor.receipt is None


def asked(warehouse: MemoryWarehouse) -> Any:
    return warehouse.calls[-1][1]


def test_ensure_accuracy_relaxes_the_queries_that_follow(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """| query over | sale, 5 s | price, not named | the strictest table decides."""
    cursor = connection.cursor()
    cursor.execute("SELECT * FROM sale")
    assert asked(warehouse) is None
    connection.ensure_accuracy("5s", "SALE")
    cursor.execute("SELECT * FROM sale")
    assert asked(warehouse) == dt.timedelta(seconds=5)
    cursor.execute("SELECT * FROM sale, price")
    assert asked(warehouse) == dt.timedelta(0)
    connection.ensure_accuracy("1 min", "price")
    cursor.execute("SELECT * FROM sale WHERE sku IN (SELECT sku FROM price)")
    assert asked(warehouse) == dt.timedelta(seconds=5)
    connection.ensure_accuracy("2s")
    cursor.execute("SELECT * FROM sale, price")
    assert asked(warehouse) == dt.timedelta(seconds=2)
    cursor.execute("SELECT 1")
    assert asked(warehouse) == dt.timedelta(0)


def test_ensure_accuracy_holds_through_views(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """| any table 10 min | price 0 s | a view over price, and a view over that view, are as fresh as price."""
    warehouse.views |= {"rates": "SELECT sku, rate FROM price", "best": "SELECT max(rate) AS rate FROM rates"}
    connection.ensure_accuracy("10 min")
    connection.ensure_accuracy("0s", "price")
    cursor = connection.cursor()
    for query, freshness_s in (("SELECT * FROM sale", 600), ("SELECT * FROM rates", 0), ("SELECT * FROM sale, BEST", 0)):
        cursor.execute(query)
        assert asked(warehouse) == dt.timedelta(seconds=freshness_s)


class Database(PostgresQueries):
    """A database that answers with no rows, to see how fresh it is asked."""

    def __init__(self, warehouse: MemoryWarehouse) -> None:
        address, nothing = Address.of("postgresql://db/shop", load_settings()), cast(Any, None)
        views = {"rates": "SELECT sku, rate FROM price"}
        super().__init__(address, nothing, nothing, schemas=warehouse._schemas, views=views, settings=nothing)
        self.freshness: list[Any] = []
        self._warehouse = warehouse

    def sql(self, query: str, *, freshness: Any = None, **options: Any) -> Any:
        self.freshness.append(freshness)
        return self._warehouse.sql("SELECT 1")


def test_ensure_accuracy_holds_through_views_of_a_database(warehouse: MemoryWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are looked through there, too; names that a query makes itself are no tables, and make nothing stricter."""
    database = Database(warehouse)
    monkeypatch.setattr(warehouse, "_open_queries", lambda: database)
    connection = dbapi.connect(warehouse)
    connection.ensure_accuracy("10 min", "sale")
    connection.ensure_accuracy("3s", "price")
    cursor = connection.cursor()
    for query in ("SELECT * FROM sale", "SELECT * FROM rates", "SELECT * FROM sale, rates", "WITH mine AS (SELECT * FROM sale) SELECT * FROM mine"):
        cursor.execute(query)
    assert database.freshness == [dt.timedelta(seconds=seconds) for seconds in (600, 3, 3, 600)]


def test_a_bound_in_the_text_goes_before_ensure_accuracy(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """Else the query would have two freshnesses."""
    connection.ensure_accuracy("5s", "sale")
    receipt = connection.cursor().execute("SELECT * FROM sale CURRENCY BOUND 10 MIN").receipt
    assert receipt is not None
    assert receipt.asked_s == 600.0
    assert asked(warehouse) is None


def test_ensure_accuracy_refuses_what_it_does_not_know(connection: dbapi.Connection) -> None:
    """A misspelt table would be relaxed in vain."""
    wrong: list[tuple[tuple[Any, ...], str]] = [(("5s", "ghost"), "table.unknown"), (("5s", 7), "table.unknown"), (("soon", "sale"), "freshness.bad")]
    for arguments, code in wrong:
        with pytest.raises(dbapi.ProgrammingError) as caught:
            connection.ensure_accuracy(*arguments)
        assert caught.value.code == code


def test_options_of_the_connection_reach_producer_and_queries(warehouse: MemoryWarehouse) -> None:
    """One line sets the policy, one call stores for good."""
    connection = dbapi.connect(warehouse, name="loader", policy="on demand", wait="2s")
    connection.cursor().execute(INSERT, (1, 1, "a")).execute("SELECT 1")
    assert warehouse.producers[0].options == {"name": "loader", "policy": "on demand"}
    connection.commit(True, durability="log")
    assert warehouse.calls[1:] == [("sql", None, "2s", ()), ("commit", True, "log")]
    with pytest.raises(dbapi.ProgrammingError):
        dbapi.connect(warehouse, wait="a while")


def test_a_connection_that_only_reads_opens_no_producer(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """Reports cost nothing on the loading side."""
    connection.cursor().execute("SELECT 1")
    connection.commit()
    connection.rollback()
    assert warehouse.producers == []


def test_closing_rolls_back_and_nothing_works_afterwards(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """Uncommitted rows are gone; a second close is fine; a warehouse that was passed in stays open."""
    cursor = connection.cursor().execute(INSERT, (1, 1, "a"))
    connection.close()
    connection.close()
    assert warehouse.producers[0].closed
    assert not warehouse.closed
    assert warehouse.tables["sale"].num_rows == 0
    for attempt in (connection.cursor, connection.commit, connection.rollback, lambda: cursor.execute("SELECT 1"), lambda: connection.ensure_accuracy("1s")):
        with pytest.raises(dbapi.InterfaceError) as caught:
            attempt()
        assert caught.value.code == "connection.closed"


@pytest.mark.parametrize("owned", [False, True])
def test_a_close_that_cannot_deliver_now_can_be_repeated(warehouse: MemoryWarehouse, monkeypatch: pytest.MonkeyPatch, owned: bool) -> None:
    """Commits that a lazy producer still has are not forgotten because the service is away for a moment: nothing is closed, and close() tries again."""
    connection = dbapi.connect(warehouse, opener=(lambda target: target) if owned else None)
    connection.cursor().execute(INSERT, (1, 1, "a"))
    producer = warehouse.producers[0]
    with monkeypatch.context() as away:
        away.setattr(producer, "close", raising(errors.ServiceUnreachable(target="h:1", waited_s=1.0, reason="away")))
        for _ in range(2):
            with pytest.raises(dbapi.OperationalError) as caught:
                connection.close()
            assert caught.value.retryable
        assert not warehouse.closed

    connection.close()

    assert producer.closed
    assert warehouse.closed is owned
    with pytest.raises(dbapi.InterfaceError):
        connection.cursor()


@pytest.mark.parametrize("error", [errors.ServiceFailed(reason="a bug"), ZeroDivisionError()])
def test_a_close_that_fails_for_good_closes_all_the_same(warehouse: MemoryWarehouse, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Trying again would not help: the error is told, and the warehouse that the connection opened is let go."""
    connection = dbapi.connect(warehouse, opener=lambda target: target)
    connection.cursor().execute(INSERT, (1, 1, "a"))
    monkeypatch.setattr(warehouse.producers[0], "close", raising(error))
    with pytest.raises((dbapi.DatabaseError, ZeroDivisionError)):
        connection.close()
    assert warehouse.closed
    connection.close()


def raising(error: Exception) -> Callable[[], None]:
    """Return a function that fails."""

    def fail() -> None:
        raise error

    return fail


def test_rows_are_gone_with_their_connection(connection: dbapi.Connection) -> None:
    """PEP 249: after close() nothing of a connection can be used, its cursors included."""
    cursor = connection.cursor().execute("SELECT 1")
    connection.close()
    for attempt in (cursor.fetchone, cursor.fetchmany, cursor.fetchall, lambda: next(cursor), lambda: list(cursor)):
        with pytest.raises(dbapi.InterfaceError) as caught:
            attempt()
        assert caught.value.code == "connection.closed"


@pytest.mark.parametrize("size", [-1, "2", 1.5])
def test_a_number_of_rows_that_is_none_is_refused(connection: dbapi.Connection, size: Any) -> None:
    """-1 would go back; the cursor stays where it was."""
    cursor = connection.cursor().execute("SELECT * FROM (VALUES (1), (2), (3)) AS t(n) ORDER BY n")
    assert cursor.fetchone() == (1,)
    with pytest.raises(dbapi.ProgrammingError) as caught:
        cursor.fetchmany(size)
    assert caught.value.code == "cursor.size"
    cursor.arraysize = size
    with pytest.raises(dbapi.ProgrammingError):
        cursor.fetchmany()
    assert cursor.fetchmany(0) == []
    assert cursor.fetchall() == [(2,), (3,)]


@pytest.mark.parametrize("value", [dt.timedelta(days=9_000_000), dt.timedelta(days=-900_000)])
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.date32(), pa.list_(pa.timestamp("us"))])
def test_a_time_that_python_does_not_know_is_an_error_with_a_way_out(
    connection: dbapi.Connection, warehouse: MemoryWarehouse, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, value: dt.timedelta
) -> None:
    """Python's calendar ends with the year 9999 and begins with 1, that of Spark and PostgreSQL does not; the column is named."""
    number = value.days if kind == pa.date32() else value // dt.timedelta(microseconds=1)
    column = (
        pa.array([[number]], pa.list_(pa.int64())).cast(kind)
        if pa.types.is_list(kind)
        else pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    )
    answer = Answer(pa.table({"sku": [1], "sold": column}), cast(Any, None), to_df=lambda table: table)
    monkeypatch.setattr(warehouse, "sql", lambda *arguments, **options: answer)

    with pytest.raises(errors.AnswerUnreadable, match="'sold'"):
        answer.rows()
    with pytest.raises(dbapi.DataError) as caught:
        connection.cursor().execute("SELECT * FROM sale")
    assert caught.value.code == "answer.unreadable"


@pytest.mark.parametrize("operation", [None, 7, b"SELECT 1", ["SELECT 1"], "SELECT '\udcff'"])
def test_what_is_no_text_is_no_statement(connection: dbapi.Connection, operation: Any) -> None:
    """Half characters are none: no database could be sent them."""
    cursor = connection.cursor()
    attempts: list[Callable[[], Any]] = [lambda: cursor.execute(operation), lambda: cursor.executemany(operation, [(1,)])]
    for attempt in attempts:
        with pytest.raises(dbapi.ProgrammingError) as caught:
            attempt()
        assert caught.value.code == "sql.refused"


@pytest.mark.parametrize("operation", [INSERT, "UPDATE sale SET qty = ? WHERE sku = ?"])
@pytest.mark.parametrize("rows", [None, 7, [7], [None]])
def test_many_parameters_that_are_no_rows_are_refused(connection: dbapi.Connection, operation: str, rows: Any) -> None:
    with pytest.raises(dbapi.ProgrammingError) as caught:
        connection.cursor().executemany(operation, rows)
    assert caught.value.code == "sql.parameters"


@pytest.mark.parametrize("target", [123, None, b"shop", object()])
def test_what_can_never_be_a_warehouse_is_an_error_of_pep_249(target: Any) -> None:
    """With or without somebody who can open it."""
    with pytest.raises(dbapi.InterfaceError) as caught:
        dbapi.connect(target)
    assert caught.value.code == "connection.no_opener"
    with pytest.raises(dbapi.OperationalError) as refused:
        rt.connect(target)
    assert refused.value.code == "warehouse.not_one"


def test_a_closed_cursor_refuses_to_work(connection: dbapi.Connection) -> None:
    """The connection goes on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    for attempt in (lambda: cursor.execute("SELECT 1"), cursor.fetchone, cursor.fetchall, lambda: cursor.executemany(INSERT, [])):
        with pytest.raises(dbapi.InterfaceError) as caught:
            attempt()
        assert caught.value.code == "cursor.closed"
    assert connection.cursor().execute("SELECT 1").fetchone() == (1,)


def test_a_with_block_commits_or_rolls_back_and_closes(warehouse: MemoryWarehouse) -> None:
    """As in psycopg: success is a commit, an error is not."""
    with dbapi.connect(warehouse) as connection:
        connection.cursor().execute(INSERT, (1, 1, "a"))
    assert warehouse.tables["sale"].num_rows == 1
    with pytest.raises(ZeroDivisionError), dbapi.connect(warehouse) as connection:
        connection.cursor().execute(INSERT, (2, 2, "b"))
        raise ZeroDivisionError
    assert warehouse.tables["sale"].num_rows == 1
    with pytest.raises(dbapi.InterfaceError):
        connection.cursor()


def test_what_the_connection_opened_it_closes(warehouse: MemoryWarehouse) -> None:
    """The opener gets the target and the settings; its errors come mapped."""
    seen: list[Any] = []

    def opener(target: Any, **settings: Any) -> MemoryWarehouse:
        seen.append((target, settings))
        if target == "locked":
            raise errors.WarehouseLocked(path=target, pid=1, host="h")
        return warehouse

    connection = dbapi.connect("./shop", opener=opener, wait_s=3.0)
    connection.close()
    assert warehouse.closed
    assert seen == [("./shop", {"wait_s": 3.0})]
    with pytest.raises(dbapi.OperationalError) as caught:
        dbapi.connect("locked", opener=opener)
    assert caught.value.retryable


@pytest.mark.parametrize("target", ["./shop", Path("shop")])
def test_a_path_without_an_opener_is_refused(target: Any) -> None:
    """This module cannot open warehouses, and says who can."""
    with pytest.raises(dbapi.InterfaceError, match=r"righttime\.connect"):
        dbapi.connect(target)


def test_a_closed_warehouse_is_an_interface_error(connection: dbapi.Connection, warehouse: MemoryWarehouse) -> None:
    """Somebody else may close it."""
    warehouse.close()
    with pytest.raises(dbapi.InterfaceError) as caught:
        connection.cursor().execute("SELECT 1")
    assert caught.value.code == "warehouse.closed"


def test_the_optional_parts_of_a_cursor_do_as_they_should(connection: dbapi.Connection) -> None:
    """PEP 249 lets them do nothing; stored procedures there are none."""
    cursor = connection.cursor()
    cursor.setinputsizes([1])
    cursor.setoutputsize(1)
    cursor.nextset()
    assert (cursor.connection, cursor.lastrowid, cursor.rowcount, cursor.arraysize) == (connection, None, -1, 1)
    with pytest.raises(dbapi.NotSupportedError):
        cursor.callproc("p")


def test_plans_of_many_different_texts_do_not_pile_up(connection: dbapi.Connection) -> None:
    """Programs that paste literals into their texts cost time, not memory."""
    cursor = connection.cursor()
    for number in range(300):
        cursor.execute(f"INSERT INTO sale VALUES ({number}, ?, 'x')", (number,))
    assert len(connection._plans) <= 256


def test_errors_survive_a_trip_to_another_process() -> None:
    """Workers of a pool send them home."""
    error = as_dbapi(errors.UnknownTable(table="ghost", known="sale"))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is dbapi.ProgrammingError
    assert (str(again), again.code, again.context) == (str(error), "table.unknown", {"table": "ghost", "known": "sale"})
