"""What is PostgreSQL's own about a warehouse there: one writer, one transaction per step, tables that others may change."""

import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import righttime as rt
from righttime.catalyst.log import LogEntry
from righttime.changes.schema import declare_table
from righttime.errors import (
    BadTable,
    CommitFailed,
    CommitUnknown,
    DatabaseUnreachable,
    LogFull,
    NotAWarehouse,
    RowsMoved,
    SchemaChanged,
    TableExists,
    TooManySnapshots,
    VersionGone,
    WarehouseLocked,
    WarehouseNewer,
    WarehouseReadOnly,
    WriterLost,
    WrongType,
)
from righttime.ledger.postgres_connect import Address, connect
from righttime.ledger.postgres_writer import PostgresWriter, _lock
from righttime.ledger.state import EMPTY, LogPosition
from righttime.query.postgres_parts import PostgresParts
from righttime.settings import load_settings
from righttime.warehouse import postgres_places
from righttime.warehouse.postgres_catalog import Found
from righttime.warehouse.postgres_places import Places, places_of
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import add, create, everything, fresh_database, next_state, open_parts
from tests.support.waits import until

SALE = declare_table("sale", "sku INT, Name STRING", keys=["sku"])


def sales(*skus: int) -> pa.Table:
    return pa.Table.from_pylist([{"sku": sku, "Name": f"item {sku}"} for sku in skus], schema=SALE.columns)


def skus(parts: PostgresParts) -> list[int]:
    return sorted(everything(parts, SALE).column("sku").to_pylist())


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def parts(url: str, tmp_path: Path) -> Iterator[PostgresParts]:
    opened = open_parts(url, tmp_path, lock_wait_s=0.5)
    create(opened, SALE)
    yield opened
    opened.close()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection]:
    """Somebody else at the same database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def writer_of(parts: PostgresParts) -> PostgresWriter:
    writer = parts.store._writer
    assert writer is not None
    return writer


def backend_of(parts: PostgresParts) -> int:
    pid = parts.ledger.living_writer()
    assert pid is not None
    return pid


# Opening


def test_a_writer_may_be_opened_as_soon_as_the_one_before_was_killed(url: str, parts: PostgresParts, tmp_path: Path) -> None:
    """The server takes a moment to end the session of a process that is gone, and it has the lock until then."""
    pid = backend_of(parts)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(open_parts, url, tmp_path)
        with psycopg.connect(url, autocommit=True) as other:
            until(lambda: bool(other.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall()))
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        opened.result(20).close()


def test_a_second_writer_is_told_who_has_the_lock_and_readers_are_not_stopped(url: str, parts: PostgresParts, tmp_path: Path) -> None:
    """One writer at a time; the lock ends with its connection."""
    with pytest.raises(WarehouseLocked, match=rf"{backend_of(parts)} of the database server \(righttime \d+@"):
        open_parts(url, tmp_path)
    reader = open_parts(url, tmp_path, read_only=True)
    assert reader.ledger.living_writer() == backend_of(parts)
    with pytest.raises(WarehouseReadOnly):
        reader.store.create(SALE)
    with pytest.raises(WarehouseReadOnly):
        reader.store.write_files(SALE, sales(1), batch_id="b")
    parts.close()
    assert reader.ledger.living_writer() is None
    reader.close()
    open_parts(url, tmp_path).close()


def test_two_warehouses_share_a_database_by_their_schemas(url: str, parts: PostgresParts, tmp_path: Path) -> None:
    """Ledger and tables are where the settings say; neither sees the other."""
    second = open_parts(url, tmp_path, ledger_schema="other ledger", table_schema="Other Tables")
    create(second, SALE)
    add(second, SALE, sales(7))
    assert (skus(second), skus(parts)) == ([7], [])
    assert second.ledger.warehouse_id != parts.ledger.warehouse_id
    second.close()


def test_what_is_no_warehouse_is_left_alone(url: str, other: psycopg.Connection, tmp_path: Path) -> None:
    """A schema of somebody else, a newer format, a missing warehouse, a wrong address: each is told apart."""
    with pytest.raises(NotAWarehouse, match="no schema"):
        open_parts(url, tmp_path, create=False)
    with pytest.raises(NotAWarehouse, match="no schema"):
        open_parts(url, tmp_path, read_only=True)
    other.execute("CREATE SCHEMA righttime; CREATE TABLE righttime.mine (n int)")
    with pytest.raises(NotAWarehouse, match="something else"):
        open_parts(url, tmp_path)
    other.execute("CREATE TABLE righttime.meta (a int)")
    with pytest.raises(NotAWarehouse, match="something else"):
        open_parts(url, tmp_path)
    open_parts(url, tmp_path, ledger_schema="ours").close()
    other.execute("UPDATE ours.meta SET value = '99' WHERE name = 'format'")
    with pytest.raises(WarehouseNewer):
        open_parts(url, tmp_path, ledger_schema="ours")
    with pytest.raises(DatabaseUnreachable):
        open_parts(url.replace("/rt_", "/no_"), tmp_path)
    other.execute("CREATE DATABASE rt_latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(NotAWarehouse, match="encoding is LATIN1"):
            open_parts(url.rpartition("/")[0] + "/rt_latin", tmp_path)
    finally:
        other.execute("DROP DATABASE rt_latin")
    with pytest.raises(NotAWarehouse, match="no address"):
        open_parts("postgresql://user:secret@host/db?nonsense=1", tmp_path)


def test_a_password_is_shown_nowhere() -> None:
    """Names, texts and representations of an address are without it."""
    address = Address.of("postgresql://me:s3cr3t@h:1/d", load_settings())
    assert "s3cr3t" not in f"{address} {address!r} {address.name} {vars(type(address))}"
    assert "s3cr3t" in address.secret.get_secret_value()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:pa%s3cr3t@host/db",
        "postgresql://u:s3cr3t@[::1]x/db",
        "postgresql://u:s3/cr3t@host/db",
        "postgresql://u:12/s3cr3t@host/db",
        "postgresql://u:a@s3cr3t@host/db",
        "postgresql://host/db?password=s3cr3t&bogus=1",
        "postgres://host/db?password=%s3cr3t",
        "postgresql+psycopg://u:s3cr3t@host/db",
        "POSTGRESQL://u:s3cr3t@host/db",
        "Postgres://host/db?password=s3cr3t",
        "mysql://u:s3cr3t@host/db",
        "u:s3cr3t@host/db?next=postgresql://",
    ],
)
def test_a_password_is_not_in_the_error_for_a_wrong_address(address: str, tmp_path: Path) -> None:
    """Characters that are not escaped put a password into any part of an address, so nothing of a wrong one is shown."""
    with pytest.raises(NotAWarehouse) as caught:
        rt.open(address, state_dir=tmp_path)
    told = "".join(traceback.format_exception(caught.value)).partition("raise NotAWarehouse")[2]
    assert not any(part in f"{told} {caught.value!r} {caught.value.context}" for part in ("s3", "cr3t"))
    assert caught.value.__context__ is None


def test_an_address_of_any_right_form_is_shown_without_its_password() -> None:
    """What stands behind a question mark is read by libpq and shown by nobody."""
    for url, name in [
        ("postgresql://me:s3cr3t@h:1,g:2/d?sslmode=require", "postgresql://me@h%2Cg:1,2/d"),
        ("postgresql://me:a?s3cr3t@h/d", "postgresql://me@h/d"),
        ("postgres:///d?host=h&user=me%40realm&password=s3cr3t", "postgresql://me%40realm@h/d"),
        ("postgresql://me:s3%2Fcr%40t@[::1]/d%40e", "postgresql://me@%3A%3A1/d%40e"),
        ("postgresql://%2Frun%2Fpg/d", "postgresql://%2Frun%2Fpg/d"),
    ]:
        assert Address.of(url, load_settings()).name == name


def test_a_role_without_rights_is_told(url: str, other: psycopg.Connection, tmp_path: Path) -> None:
    """No superuser is needed, but a schema must be there or may be made."""
    other.execute("CREATE ROLE clerk LOGIN")
    try:
        mine = url.replace("postgres@", "clerk@")
        with pytest.raises(NotAWarehouse, match="may not create"):
            open_parts(mine, tmp_path)
        other.execute("CREATE SCHEMA righttime AUTHORIZATION clerk; CREATE SCHEMA shop AUTHORIZATION clerk")
        plain = open_parts(mine, tmp_path, table_schema="shop")
        create(plain, SALE)
        add(plain, SALE, sales(1, 2))
        assert skus(plain) == [1, 2]
        plain.close()
    finally:
        other.execute("DROP SCHEMA IF EXISTS righttime, shop CASCADE; DROP ROLE clerk")


# A step


def test_a_step_is_visible_with_its_state_and_not_before(parts: PostgresParts, other: psycopg.Connection) -> None:
    """I1 and I2: rows, version, minmax and state appear together."""
    look = "SELECT (SELECT count(*) FROM sale), (SELECT version FROM righttime.minmax), (SELECT max(number) FROM righttime.state)"
    files = parts.store.write_files(SALE, sales(1, 2), batch_id="b")
    version = parts.store.commit(SALE, files, version=0, batch_id="b", batch_number=1)
    assert other.execute(look).fetchone() == (0, 0, 1)
    parts.ledger.write_state(next_state(parts, {"sale": (version, 2)}), kind="materialize")
    assert other.execute(look).fetchone() == (2, 1, 2)
    assert other.execute("SELECT rows_stored, lanes FROM righttime.minmax").fetchone() == (2, '{"s": [3, 2]}')
    assert [(entry.version, entry.batch_id) for entry in parts.store.history(SALE)] == [(1, "b"), (0, None)]


@pytest.mark.parametrize("reached", ["written", "removed", "committed"])
def test_what_an_interrupted_step_left_never_becomes_part_of_the_next(parts: PostgresParts, reached: str) -> None:
    """A step that ended between two calls, without giving up, costs the next one a retry, and nobody a wrong row."""
    add(parts, SALE, sales(1))
    (piece,) = parts.store.scan(SALE, 1, ["sku"])
    if reached == "removed":
        parts.store.remove(SALE, 1, {piece.unit: piece.positions}, batch_id="b")
    else:
        files = parts.store.write_files(SALE, sales(2), batch_id="b")
    if reached == "committed":
        parts.store.commit(SALE, files, version=1, batch_id="b", batch_number=2)

    with pytest.raises(CommitFailed, match="interrupted"):
        parts.ledger.write_state(next_state(parts), kind="log")
    parts.ledger.write_state(next_state(parts), kind="log")
    assert (skus(parts), parts.store.newest_version(SALE)) == ([1], 1)
    add(parts, SALE, sales(3))
    assert skus(parts) == [1, 3]


def test_rows_that_the_database_refuses_are_the_loaders_error(parts: PostgresParts, other: psycopg.Connection) -> None:
    """A constraint of somebody else's fails the step; nothing of it is there, and the next one works."""
    other.execute("ALTER TABLE sale ADD CHECK (sku < 100)")
    with pytest.raises(CommitFailed, match="check constraint"):
        parts.store.write_files(SALE, sales(1, 100), batch_id="b")
    with pytest.raises(WrongType, match=r"U\+0000"):
        parts.store.write_files(SALE, pa.Table.from_pylist([{"sku": 1, "Name": "a\0"}], schema=SALE.columns), batch_id="b")
    with pytest.raises(CommitFailed, match="another version"):
        parts.ledger.write_state(next_state(parts, {"sale": (5, 0)}), kind="log")
    add(parts, SALE, sales(4))
    assert skus(parts) == [4]


def test_rows_that_moved_are_not_taken_for_others(parts: PostgresParts, other: psycopg.Connection) -> None:
    """After VACUUM FULL the same numbers name other rows: a removal by old places is refused. So is one of rows that are gone."""
    add(parts, SALE, sales(*range(10)))
    (piece,) = parts.store.scan(SALE, 1, ["sku"])
    other.execute("DELETE FROM sale WHERE sku = 0")
    with pytest.raises(RowsMoved, match="not where"):
        parts.store.remove(SALE, 1, {piece.unit: piece.positions[:2]}, batch_id="b")
    with pytest.raises(RowsMoved, match="not where"):
        parts.store.fetch(SALE, 1, piece.unit, piece.positions[:2])
    other.execute("VACUUM FULL sale")
    for places in (piece.positions[3:4],):
        with pytest.raises(RowsMoved, match="VACUUM FULL"):
            parts.store.remove(SALE, 1, {piece.unit: places}, batch_id="b")
        with pytest.raises(RowsMoved, match="VACUUM FULL"):
            parts.store.fetch(SALE, 1, piece.unit, places)
    assert skus(parts) == list(range(1, 10))


@pytest.mark.parametrize("transactions", [(3,), (3, 4, 5 + (1 << 20), 3, (1 << 32) - 1)])
def test_a_place_names_where_a_row_lies_and_who_made_it(transactions: tuple[int, ...]) -> None:
    """Units and positions say both in full, whatever the numbers are; positions of a unit ascend as the rows do."""
    found = Found("sale", 1, "rp", "77", False, ())
    ctids = np.sort(np.array([1, 291, 1169, (7 << 16) + 1, ((1 << 32) - 1 << 16) + 2047][: len(transactions)], dtype=np.int64))
    places = Places(ctids, np.array(transactions, dtype=np.int64))
    named = {unit: positions for unit, _, positions in places.by_unit(found)}
    assert len(named) == len({number >> 20 for number in transactions})
    assert all((np.diff(positions) > 0).all() for positions in named.values())
    again = places_of(found, named)
    assert (again.ctids.tolist(), again.made.tolist()) == (ctids.tolist(), list(transactions))


def test_rows_of_many_transactions_are_found_by_unit_and_position(parts: PostgresParts, other: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that others have written for years has many units; scans, fetches, checks and removals see each row once."""
    monkeypatch.setattr(postgres_places, "_MADE_BITS", 0)  # a unit for each transaction, instead of one for a million
    add(parts, SALE, sales(1, 2, 3))
    other.execute("INSERT INTO sale VALUES (4, 'item 4')")
    other.execute("UPDATE sale SET sku = 5 WHERE sku = 2")
    for ranges in ({}, {"sku": (0, 9)}):
        pieces = list(parts.store.scan(SALE, 1, ["sku"], ranges=ranges))
        assert sorted(piece.rows.column("sku").to_pylist() for piece in pieces) == [[1, 3], [4], [5]]
        fetched = [parts.store.fetch(SALE, 1, piece.unit, piece.positions).column("sku").to_pylist() for piece in pieces]
        assert fetched == [piece.rows.column("sku").to_pylist() for piece in pieces]
    named = {piece.unit: piece.positions for piece in pieces}
    parts.store.check(SALE, 1, named)
    removal = parts.store.remove(SALE, 1, {piece.unit: piece.positions[-1:] for piece in pieces}, batch_id="b")
    version = parts.store.commit(SALE, [], version=1, batch_id="b", batch_number=2, removed=removal.units)
    parts.ledger.write_state(next_state(parts, {"sale": (version, 1)}), kind="materialize")
    assert skus(parts) == [1]
    with pytest.raises(RowsMoved, match="3 of 4"):
        parts.store.check(SALE, version, named)


def test_an_update_of_a_unique_key_is_one_step(parts: PostgresParts) -> None:
    """The old version of a row leaves before the new one comes, so a primary key is no obstacle."""
    unique = declare_table("item", "id INT, n INT", keys=["id"], unique=True)
    create(parts, unique)
    add(parts, unique, pa.table({"id": [1, 2], "n": [1, 1]}, schema=unique.columns))
    (piece,) = parts.store.scan(unique, 1, ["id"])
    removal = parts.store.remove(unique, 1, {piece.unit: piece.positions[:1]}, batch_id="b")
    files = parts.store.write_files(unique, pa.table({"id": [1], "n": [9]}, schema=unique.columns), batch_id="b")
    version = parts.store.commit(unique, files, version=1, batch_id="b", batch_number=2, removed=removal.units)
    parts.ledger.write_state(next_state(parts, {"item": (version, 2)}), kind="materialize")
    assert sorted(map(tuple, (row.values() for row in everything(parts, unique).to_pylist()))) == [(1, 9), (2, 1)]
    with pytest.raises(CommitFailed, match="duplicate key"):
        parts.store.write_files(unique, pa.table({"id": [2], "n": [9]}, schema=unique.columns), batch_id="b")


def test_files_that_spark_wrote_are_copied_at_the_commit(parts: PostgresParts, tmp_path: Path) -> None:
    """Staged files are on this machine until the step is published, then they are gone; leftovers are collected."""
    folder = parts.store.staging(SALE, batch_id="b")
    folder.mkdir()
    pq.write_table(sales(1, 2), folder / "part-0.parquet")
    pq.write_table(sales(3), folder / "part-1.parquet")
    files = parts.store.take_files(SALE, folder)
    paths = [Path(parts.store.path_of(SALE, file)) for file in files]
    assert [pq.read_table(path).num_rows for path in paths] == [2, 1]
    assert parts.store.collect(SALE, versions=list, grace_s=0, now_s=0).files == 0

    version = parts.store.commit(SALE, files, version=0, batch_id="b", batch_number=1)
    parts.store.undo(SALE, version=0)
    assert all(path.exists() for path in paths)
    version = parts.store.commit(SALE, files, version=0, batch_id="b", batch_number=1)
    parts.ledger.write_state(next_state(parts, {"sale": (version, 3)}), kind="commit")
    assert skus(parts) == [1, 2, 3]
    assert not any(path.exists() for path in paths)
    (tmp_path / parts.ledger.warehouse_id / "staging" / "sale" / "left.parquet").touch()
    assert parts.store.collect(SALE, versions=list, grace_s=0, now_s=0).files == 1


# The log


def test_log_records_are_durable_with_their_state(url: str, parts: PostgresParts, tmp_path: Path) -> None:
    """What was appended for a state is read again after a restart; what was stored is released; a record of a failed step is replaced."""
    entry = LogEntry("sale", "s", [(1, 2)], [(5, 2)], sales(1, 2))
    begin = EMPTY.log_end
    lost = parts.wal.append([LogEntry("sale", "s", [(1, 1)], [], sales(9))], at=begin)
    record = parts.wal.append([entry], at=begin)
    assert lost.end == record.end == LogPosition(0, 1)
    parts.ledger.write_state(next_state(parts, log_end=record.end), kind="log")
    parts.wal.keep(record)
    parts.close()

    again = open_parts(url, tmp_path)
    state = again.ledger.newest_state()
    (found,) = again.wal.read(state.log_begin, state.log_end)
    assert (found.runs, found.times, found.rows.equals(entry.rows)) == ([(1, 2)], [(5, 2)], True)
    assert again.wal.bytes_held() > 0
    assert again.wal.begin({("sale", "s"): 1}, appended=None, end=state.log_end) == state.log_begin
    assert again.wal.begin({("sale", "s"): 2}, appended=None, end=state.log_end) == state.log_end
    again.wal.release(state.log_end, end=state.log_end)
    assert again.wal.bytes_held() == 0
    again.close()


def test_the_log_has_a_bound(url: str, tmp_path: Path) -> None:
    """A record that does not fit is refused before anything is written."""
    parts = open_parts(url, tmp_path, log_bytes_max=2000)
    with pytest.raises(LogFull):
        parts.wal.append([LogEntry("sale", "s", [(1, 1000)], [], sales(*range(1000)))], at=EMPTY.log_end)
    assert parts.wal.bytes_held() == 0
    parts.close()


def test_a_log_that_cannot_be_shortened_is_no_failure(parts: PostgresParts, other: psycopg.Connection) -> None:
    """The state is durable by then; the records go with the next release."""
    record = parts.wal.append([LogEntry("sale", "s", [(1, 1)], [], sales(1))], at=EMPTY.log_end)
    parts.ledger.write_state(next_state(parts, log_end=record.end), kind="log")
    with other.transaction():
        other.execute("LOCK TABLE righttime.log")
        parts.wal.release(record.end, end=record.end)
    assert parts.wal.bytes_held() > 0
    parts.wal.release(record.end, end=record.end)
    assert parts.wal.bytes_held() == 0
    assert other.execute("SELECT count(*) FROM righttime.log").fetchone() == (0,)


# A broken connection


def kill(other: psycopg.Connection, pid: int) -> None:
    other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def test_a_killed_backend_costs_a_step_and_the_next_one_works(parts: PostgresParts, other: psycopg.Connection) -> None:
    """Between steps the writer connects again and takes the lock back; a step that was under way fails whole."""
    add(parts, SALE, sales(1))
    kill(other, backend_of(parts))
    add(parts, SALE, sales(2))
    assert skus(parts) == [1, 2]

    files = parts.store.write_files(SALE, sales(3), batch_id="b")
    kill(other, backend_of(parts))
    with pytest.raises((DatabaseUnreachable, CommitFailed)):
        parts.store.commit(SALE, files, version=2, batch_id="b", batch_number=3)
    parts.store.discard(SALE, files)
    assert parts.store.undo(SALE, version=2) == 2
    add(parts, SALE, sales(4))
    assert skus(parts) == [1, 2, 4]


def test_a_writer_whose_lock_was_taken_never_writes_again(url: str, parts: PostgresParts, other: psycopg.Connection, tmp_path: Path) -> None:
    """Fencing: while another process has the lock, and for ever once it has written, every write is refused."""
    kill(other, backend_of(parts))
    second = open_parts(url, tmp_path)
    with pytest.raises(WriterLost, match="another process has the lock"):
        add(parts, SALE, sales(1))
    add(second, SALE, sales(2))
    second.close()
    with pytest.raises(WriterLost):
        add(parts, SALE, sales(3))
    assert skus(parts) == [2]


def test_another_writer_that_came_and_went_is_noticed(url: str, parts: PostgresParts, other: psycopg.Connection, tmp_path: Path) -> None:
    """The lock is free again, but the newest state is not the one this writer made."""
    kill(other, backend_of(parts))
    second = open_parts(url, tmp_path)
    add(second, SALE, sales(2))
    second.close()
    with pytest.raises(WriterLost, match="another process wrote state"):
        add(parts, SALE, sales(3))


def test_a_commit_whose_connection_breaks_is_looked_up(parts: PostgresParts, other: psycopg.Connection) -> None:
    """The server may have committed before the connection broke, or not: whichever it was is told."""
    writer = writer_of(parts)
    for committed in (True, False):
        files = parts.store.write_files(SALE, sales(1), batch_id="b")
        before = parts.store.newest_version(SALE)
        version = parts.store.commit(SALE, files, version=before, batch_id="b", batch_number=1)
        state = next_state(parts, {"sale": (version, 1)})
        assert writer._connection is not None
        if committed:
            # As if the answer to COMMIT had been lost: it is done, and the connection is gone before the writer asks for it.
            parts.ledger._write(writer, "INSERT INTO {0}.state VALUES (%s, %s, %s, %s)", (state.number, state.time_us, "x", state.to_json()))
            writer._connection.execute("COMMIT")
        kill(other, backend_of(parts))
        if committed:
            writer.publish(state.number, state.time_us)
            assert parts.ledger.newest_state().number == state.number
        else:
            with pytest.raises((CommitFailed, DatabaseUnreachable)):
                parts.ledger.write_state(state, kind="materialize")
            assert parts.ledger.newest_state().number == state.number - 1
    assert skus(parts) == [1]


def committed_unheard(parts: PostgresParts, sku: int) -> tuple[int, int]:
    """Store a row as the next state, and let the writer know nothing of the COMMIT; return the state's number and time."""
    writer, before = writer_of(parts), parts.store.newest_version(SALE)
    files = parts.store.write_files(SALE, sales(sku), batch_id="b")
    version = parts.store.commit(SALE, files, version=before, batch_id="b", batch_number=1)
    state = next_state(parts, {"sale": (version, 1)})
    parts.ledger._write(writer, "INSERT INTO {0}.state VALUES (%s, %s, %s, %s)", (state.number, state.time_us, "x", state.to_json()))
    assert writer._connection is not None
    writer._connection.execute("COMMIT")
    return state.number, state.time_us


def end_who_waits_for_the_lock(url: str) -> None:
    """End the session that waits for the writer lock, as a server does that is shut down."""
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(url, autocommit=True) as third:
        until(lambda: third.execute(ended).fetchall())


def test_a_commit_that_cannot_be_looked_up_is_unknown(url: str, parts: PostgresParts, other: psycopg.Connection) -> None:
    """The server goes down while the writer waits to look: nobody says that nothing happened, and nobody goes on before it is found out."""
    number, time_us = committed_unheard(parts, 1)
    kill(other, backend_of(parts))
    _lock(other, parts.address)
    ending = threading.Thread(target=end_who_waits_for_the_lock, args=(url,))
    ending.start()
    with pytest.raises(CommitUnknown):
        writer_of(parts).publish(number, time_us)
    ending.join()
    other.execute("SELECT pg_advisory_unlock_all()")
    with pytest.raises(DatabaseUnreachable, match="is not known yet"):
        add(parts, SALE, sales(2))
    assert writer_of(parts).found_out()
    add(parts, SALE, sales(3))
    assert skus(parts) == [1, 3]


def test_a_server_that_goes_down_while_the_writer_connects_again_is_out_of_reach(url: str, parts: PostgresParts, other: psycopg.Connection) -> None:
    """Nothing was under way, so it is an error that goes away by itself."""
    kill(other, backend_of(parts))
    _lock(other, parts.address)
    ending = threading.Thread(target=end_who_waits_for_the_lock, args=(url,))
    ending.start()
    with pytest.raises(DatabaseUnreachable):
        add(parts, SALE, sales(1))
    ending.join()
    other.execute("SELECT pg_advisory_unlock_all()")
    add(parts, SALE, sales(2))
    assert skus(parts) == [2]


@contextmanager
def cut_silently(parts: PostgresParts) -> Iterator[None]:
    """Break the writer's connection as a network does that drops packets: the server waits on, with the lock."""
    connection = writer_of(parts)._connection
    assert connection is not None
    alive = os.dup(connection.fileno())
    near, far = socket.socketpair()
    os.dup2(near.fileno(), connection.fileno())
    near.close()
    far.close()
    try:
        yield
    finally:
        os.close(alive)


def test_a_session_of_our_own_that_the_server_takes_for_alive_gives_way(parts: PostgresParts) -> None:
    """Its lock is ours; waiting until the server notices may take hours."""
    add(parts, SALE, sales(1))
    before = backend_of(parts)
    with cut_silently(parts):
        add(parts, SALE, sales(2))
    assert backend_of(parts) != before
    assert skus(parts) == [1, 2]


def test_a_session_of_our_own_that_does_not_end_is_no_other_writer(parts: PostgresParts) -> None:
    """It has the lock, and it will go: writing works again then, without opening the warehouse anew."""
    pid = backend_of(parts)
    with cut_silently(parts):
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(DatabaseUnreachable, match="has not ended"):
                add(parts, SALE, sales(1))
        finally:
            os.kill(pid, signal.SIGCONT)
        add(parts, SALE, sales(2))
    assert skus(parts) == [2]


def test_a_commit_over_a_connection_that_was_dropped_silently_is_looked_up(parts: PostgresParts) -> None:
    """It was committed, or it was not; neither is the loss of the writer."""
    number, time_us = committed_unheard(parts, 1)
    with cut_silently(parts):
        writer_of(parts).publish(number, time_us)
    assert parts.ledger.newest_state().number == number
    files = parts.store.write_files(SALE, sales(2), batch_id="b")
    version = parts.store.commit(SALE, files, version=1, batch_id="b", batch_number=2)
    writer_of(parts).made("sale", version, [files[0].path])
    with cut_silently(parts), pytest.raises(CommitFailed, match="not committed"):
        writer_of(parts).publish(number + 1, time_us + 1)
    add(parts, SALE, sales(3))
    assert skus(parts) == [1, 3]


def test_a_commit_behind_which_somebody_took_the_lock_is_unknown(url: str, parts: PostgresParts, other: psycopg.Connection, tmp_path: Path) -> None:
    """Until it is seen in the ledger nobody can say whether it happened; after that this writer is out."""
    number, time_us = committed_unheard(parts, 1)
    kill(other, backend_of(parts))
    second = open_parts(url, tmp_path)
    with pytest.raises(CommitUnknown):
        writer_of(parts).publish(number, time_us)
    with pytest.raises(WriterLost):
        add(parts, SALE, sales(2))
    second.close()


@pytest.mark.parametrize(("given", "bound_ms"), [("", 30_000), ("?tcp_user_timeout=5000", 5_000)])
def test_a_server_that_vanishes_is_given_up_in_bounded_time(url: str, given: str, bound_ms: int) -> None:
    """Nobody answers what was sent: the kernel would send it again for a quarter of an hour, and the whole catalyst wait for it."""
    with connect(Address.of(url + given, load_settings())) as connection, socket.socket(fileno=os.dup(connection.fileno())) as seen:
        assert seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == bound_ms


def test_a_state_of_another_process_is_not_taken_for_our_own(
    url: str, parts: PostgresParts, other: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit never arrived, and somebody else made the state of the same number meanwhile: ours did not happen."""
    files = parts.store.write_files(SALE, sales(1), batch_id="b")
    version = parts.store.commit(SALE, files, version=0, batch_id="b", batch_number=1)
    state = next_state(parts, {"sale": (version, 1)})
    publish = writer_of(parts).publish

    def overtaken(number: int, time_us: int) -> None:
        kill(other, backend_of(parts))
        second = open_parts(url, tmp_path)
        second.ledger.write_state(replace(next_state(second), time_us=state.time_us + 1), kind="log")
        second.close()
        publish(number, time_us)

    monkeypatch.setattr(writer_of(parts), "publish", overtaken)
    with pytest.raises(CommitUnknown):
        parts.ledger.write_state(state, kind="materialize")
    with pytest.raises(WriterLost, match="another process wrote"):
        add(parts, SALE, sales(2))
    assert skus(parts) == []


def test_readers_reconnect_by_themselves(parts: PostgresParts, other: psycopg.Connection) -> None:
    """A restart of the server costs no handle; only what was under way is an error."""
    add(parts, SALE, sales(1))
    assert skus(parts) == [1]
    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
    assert skus(parts) == [1]
    assert parts.ledger.newest_state().number == 2


# Reading


def test_a_hold_sees_one_moment_and_no_other_version(parts: PostgresParts) -> None:
    """AT-R15: who looked before a materialization and holds after it gets nothing, and looks again."""
    add(parts, SALE, sales(1))
    held = parts.store.hold([SALE], {"sale": 1})
    assert held is not None
    add(parts, SALE, sales(2))
    assert parts.store.hold([SALE], {"sale": 1}) is None
    with pytest.raises(VersionGone):
        list(parts.store.scan(SALE, 1, ["sku"]))
    with pytest.raises(VersionGone):
        parts.store.row_count(SALE, 1)
    assert held.rows("sale").column("sku").to_pylist() == [1]
    (piece,) = held.scan("sale", ["sku"])
    assert held.rows("sale", hidden={piece.unit: piece.positions}).num_rows == 0
    held.close()
    held.close()
    with pytest.raises(VersionGone):
        held.rows("sale")


def test_holds_have_a_bound(url: str, tmp_path: Path) -> None:
    """Queries beyond it wait a while, then are told; a closed one makes room."""
    parts = open_parts(url, tmp_path, holds_max=2, lock_wait_s=0.2)
    create(parts, SALE)
    holds = [parts.store.hold([SALE], {"sale": 0}) for _ in range(2)]
    with pytest.raises(TooManySnapshots):
        parts.store.hold([SALE], {"sale": 0})
    assert holds[0] is not None and holds[1] is not None
    timer = threading.Timer(0.05, holds[0].close)
    timer.start()
    third = parts.store.hold([SALE], {"sale": 0})
    assert third is not None
    timer.join()
    third.close()
    holds[1].close()
    parts.close()


def test_who_reads_does_not_keep_who_writes_from_looking(url: str, tmp_path: Path) -> None:
    """Connections are kept back for what settling and steps have to read, also for rows that are fetched in the middle of a scan."""
    parts = open_parts(url, tmp_path, holds_max=2, lock_wait_s=1.0)
    create(parts, SALE)
    add(parts, SALE, sales(1, 2))
    holds = [parts.store.hold([SALE], {"sale": 1}) for _ in range(2)]
    begun = threading.Barrier(4)

    def settled(number: int) -> list[int]:
        found = []
        for piece in parts.store.scan(SALE, 1, ["sku"]):
            if number < 4:
                begun.wait(10)
            parts.store.check(SALE, 1, {piece.unit: piece.positions})
            found += parts.store.fetch(SALE, 1, piece.unit, piece.positions).column("sku").to_pylist()
        return found

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(settled, range(8))) == [[1, 2]] * 8
    assert (parts.store.newest_version(SALE), parts.store.row_count(SALE, 1)) == (1, 2)
    with pytest.raises(TooManySnapshots):
        parts.store.hold([SALE], {"sale": 1})
    for held in holds:
        assert held is not None
        held.close()
    parts.close()


def test_a_hold_keeps_others_from_emptying_the_table(parts: PostgresParts, other: psycopg.Connection) -> None:
    """TRUNCATE would empty the table for older moments too; it waits until the query has ended."""
    add(parts, SALE, sales(1))
    held = parts.store.hold([SALE], {"sale": 1})
    assert held is not None
    other.execute("SET lock_timeout = 100")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute("TRUNCATE sale")
    assert held.rows("sale").num_rows == 1
    held.close()
    other.execute("TRUNCATE sale")


def test_ranges_find_rows_by_index_and_by_scan(parts: PostgresParts) -> None:
    """Few rows are looked up by their places, many are read; either way positions ascend and no row is lost."""
    add(parts, SALE, sales(*range(100_000)))
    few = list(parts.store.scan(SALE, 1, ["sku"], ranges={"sku": (70, 75)}))
    assert [sku for piece in few for sku in piece.rows.column("sku").to_pylist()] == list(range(70, 76))
    many = list(parts.store.scan(SALE, 1, ["sku"], ranges={"sku": (1, None)}))
    assert sum(piece.rows.num_rows for piece in many) == 99_999
    assert sum(piece.rows.num_rows for piece in parts.store.scan(SALE, 1, ["sku"], ranges={"Name": ("\0", "\0")})) == 100_000
    places = np.concatenate([piece.positions for piece in many])
    assert (np.diff(places) > 0).all()


# Tables of others


def test_an_existing_table_is_adopted_as_it_is(parts: PostgresParts, other: psycopg.Connection) -> None:
    """Columns, types and the primary key come from the catalog; rows stay where they are, and more can be stored."""
    other.execute('CREATE TABLE item (id bigint PRIMARY KEY, "Label" varchar(20) NOT NULL, price numeric(10,2), tags text[], made timestamptz)')
    other.execute("INSERT INTO item VALUES (1, 'one', 1.50, '{a}', '2024-02-29 12:00+01')")
    table, version, rows = parts.store.adopt_table("ITEM")
    assert (table.keys, table.unique, version, rows) == (("id",), True, 0, 1)
    assert table.ddl().replace("`", "") == "id BIGINT NOT NULL, Label VARCHAR(20) NOT NULL, price DECIMAL(10,2), tags ARRAY<STRING>, made TIMESTAMP"
    parts.ledger.write_state(next_state(parts, {"item": (0, 1)}), kind="declare", table=table)
    add(parts, table, pa.Table.from_pylist([{"id": 2, "Label": "two"}], schema=table.columns))
    assert sorted(everything(parts, table).column("Label").to_pylist()) == ["one", "two"]
    with pytest.raises(TableExists):
        parts.store.adopt_table("item")


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("CREATE TABLE x (a int, b interval)", "'b' has type interval"),
        ("CREATE TABLE x (a int, b numeric[])", "'b' has type numeric"),
        ("CREATE TABLE x (a jsonb PRIMARY KEY)", "part of the key"),
        ("CREATE TABLE x (a int, b numeric); INSERT INTO x VALUES (1, 1e20)", r'First ALTER TABLE "public"."x" ALTER COLUMN "b"'),
        ("CREATE TABLE x (a int, b numeric); INSERT INTO x VALUES (1, 1e-19)", "column b is numeric"),
        ("CREATE TABLE x (a int, b numeric); INSERT INTO x VALUES (1, 'Infinity')", "column b is numeric"),
        ("CREATE TABLE x (a char(5))", "'a' has type character"),
        ("CREATE TABLE x (a timestamp(3))", "'a' has type timestamp"),
        ("CREATE TABLE x (a uuid[])", "'a' has type uuid"),
        ("CREATE UNLOGGED TABLE x (a int)", "survive a crash"),
        ("CREATE VIEW x AS SELECT 1 AS a", "ordinary tables"),
        ("CREATE TABLE x (a int) PARTITION BY RANGE (a)", "ordinary tables"),
        ("CREATE TABLE x (a int); CREATE TABLE y () INHERITS (x)", "inheritance"),
    ],
)
def test_what_cannot_be_held_is_not_adopted(parts: PostgresParts, other: psycopg.Connection, ddl: str, reason: str) -> None:
    """The column or the kind of table is named."""
    other.execute(ddl.encode())
    with pytest.raises(BadTable, match=reason):
        parts.store.adopt_table("x")


def test_a_table_of_somebody_else_is_never_replaced(parts: PostgresParts, other: psycopg.Connection) -> None:
    """create_table refuses a name that the database has already, even if that table is empty."""
    other.execute("CREATE TABLE item (a int)")
    with pytest.raises(BadTable, match="adopt"):
        parts.store.create(declare_table("item", "a INT"))
    with pytest.raises(TableExists):
        parts.store.create(SALE)
    with pytest.raises(BadTable, match="MAP"):
        try:
            parts.store.create(declare_table("nested", "m MAP<STRING, INT>"))
        except BadTable as error:
            raise BadTable(table="nested", reason=str(error).upper()) from error
    with pytest.raises(BadTable, match="63 bytes"):
        parts.store.create(declare_table("t" * 64, "a INT"))


@pytest.mark.parametrize(
    ("ddl", "difference"),
    [
        ("ALTER TABLE sale DROP COLUMN name", "'Name' is missing"),
        ("ALTER TABLE sale RENAME name TO label", "'Name' is missing"),
        ("ALTER TABLE sale ALTER name TYPE varchar(5)", r"'Name' is character varying\(5\), declared was text"),
        ("ALTER TABLE sale ALTER name SET NOT NULL", "'Name' is NOT NULL"),
        ("ALTER TABLE sale ALTER sku DROP NOT NULL", "'sku' is nullable"),
        ("ALTER TABLE sale RENAME TO sold", "does not exist"),
        ("DROP TABLE sale", "does not exist"),
    ],
)
def test_a_changed_table_is_an_error_before_anything_is_written(parts: PostgresParts, other: psycopg.Connection, ddl: str, difference: str) -> None:
    """The difference is named, for writers and readers; the ledger goes on, and changed back, so does the table."""
    other.execute(ddl.encode())
    with pytest.raises(SchemaChanged, match=difference):
        parts.store.write_files(SALE, sales(1), batch_id="b")
    with pytest.raises(SchemaChanged, match=difference):
        parts.store.hold([SALE], {"sale": 0})
    with pytest.raises(SchemaChanged, match=difference):
        parts.store.remove(SALE, 0, {"1": np.array([1], dtype=np.int64)}, batch_id="b")
    parts.ledger.write_state(next_state(parts), kind="log")


def test_added_columns_are_left_alone(parts: PostgresParts, other: psycopg.Connection) -> None:
    """One that is nullable or has a default is neither read nor written; one that must be given stops writers, not readers."""
    other.execute("ALTER TABLE sale ADD note text, ADD at timestamptz NOT NULL DEFAULT now(), ADD twice int GENERATED ALWAYS AS (sku * 2) STORED")
    add(parts, SALE, sales(1))
    assert everything(parts, SALE).to_pylist() == [{"sku": 1, "Name": "item 1"}]
    assert other.execute("SELECT note, at IS NOT NULL, twice FROM sale").fetchone() == (None, True, 2)
    other.execute("ALTER TABLE sale ADD must int NOT NULL DEFAULT 1; ALTER TABLE sale ALTER must DROP DEFAULT")
    assert skus(parts) == [1]
    with pytest.raises(SchemaChanged, match="'must' was added, is NOT NULL and has no default"):
        parts.store.write_files(SALE, sales(2), batch_id="b")
    other.execute("ALTER TABLE sale DROP must")
    add(parts, SALE, sales(2))
    assert skus(parts) == [1, 2]


def test_a_lock_of_somebody_else_is_waited_for_and_then_told(parts: PostgresParts, other: psycopg.Connection) -> None:
    """No step waits for ever."""
    with other.transaction():
        other.execute("LOCK TABLE sale IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(CommitFailed, match="lock timeout"):
            parts.store.write_files(SALE, sales(1), batch_id="b")
        with pytest.raises(CommitFailed, match="lock timeout"):
            parts.store.hold([SALE], {"sale": 0})
    add(parts, SALE, sales(1))
    assert skus(parts) == [1]
