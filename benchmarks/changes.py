"""Rows that change while they are loaded: inserts with updates and deletes by key, and range updates and deletes.

In: orders of six integers; of each commit's 100 operations a share are updates and deletes of earlier orders, half of each (sheet 8.2).
Out: operations per second of righttime, of executemany and of staged COPY + MERGE on PostgreSQL with a primary key, in one run.
Promise: the clock stops when every row can be read as it is then: ours settles all operations, "stored" also writes the net effect to the
warehouse; PostgreSQL has committed. Each rival gets its best client, and PostgreSQL is measured with and without waiting for its disk.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

import righttime as rt
from benchmarks.figure import Figure
from benchmarks.ours import warehouse
from tests.support.postgres import TempPostgres

OPERATIONS = 200_000
RIVAL_OPERATIONS = 40_000
BATCH = 100
RANGE_ROWS = 1_000_000
NAMES = ("orderkey", "status", "price", "orderdate", "priority", "custkey")
DDL = ", ".join(f"{name} INT" for name in NAMES)
_SET = NAMES[1:5]
_INSERT, _UPDATE, _DELETE = range(3)

Row = tuple[int, ...]
Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One commit: new rows, updates (key and four values) and deletes (key)."""

    inserts: Sequence[Row]
    updates: Sequence[Row]
    deletes: Sequence[Row]


def batches(operations: int, share: float) -> list[Batch]:
    """Return commits of 100 operations; a key that is updated or deleted was inserted in an earlier commit and is not deleted yet."""
    dice, next_key = random.Random(8), 0
    live: list[int] = []
    made: list[Batch] = []
    for _ in range(operations // BATCH):
        changes = round(BATCH * share) if len(live) > BATCH else 0
        updates = [(dice.choice(live), 2, 3, 4, 5) for _ in range(changes // 2)]
        deletes = []
        for _ in range(changes - changes // 2):
            place = dice.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            deletes.append((live.pop(),))
        inserts = [(next_key + number, 1, 1, 1, 1, 1) for number in range(BATCH - changes)]
        next_key += len(inserts)
        live.extend(row[0] for row in inserts)
        made.append(Batch(inserts, updates, deletes))
    return made


def run() -> list[Figure]:
    """Measure both shares, and ranges."""
    figures = []
    with TempPostgres() as server, psycopg.connect(server.dsn) as connection:
        _ours(batches(OPERATIONS // 10, 0.5))  # the first run pays for imports
        for share in (0.1, 0.5):
            figures += _by_key(connection, share)
        figures += _ranges(connection)
    return figures


def _by_key(connection: Connection, share: float) -> list[Figure]:
    title = f"{share:.0%} updates and deletes by key, commit every {BATCH}"
    work, rival_work = batches(OPERATIONS, share), batches(RIVAL_OPERATIONS, share)
    seen = [_ours(work) for _ in range(3)]
    ours, stored = (statistics.median(rate[number] for rate in seen) for number in (0, 1))
    calls = _ours(work, one_by_one=True)[0]
    rivals = {}
    for waiting in ("on", "off"):
        connection.execute(f"SET synchronous_commit = {waiting}".encode())
        connection.commit()
        suffix = "" if waiting == "on" else ", not waiting for the disk"
        rivals[f"executemany{suffix}"] = _rival(connection, rival_work, _executemany)
        rivals[f"COPY + MERGE{suffix}"] = _rival(connection, rival_work, _copy_merge)
        with _by_index(connection):
            rivals[f"COPY + MERGE by the index{suffix}"] = _rival(connection, rival_work, _copy_merge)
    best = max(rivals, key=lambda name: rivals[name])
    context: dict[str, float | str] = {**rivals, "ours, one call per change": calls}
    return [
        *(Figure(f"{title}: {name}", "operations/s", ours=ours, rival=rate, note="ours: in memory, settled") for name, rate in rivals.items()),
        Figure(f"{title}: best rival", "operations/s", ours=ours, rival=rivals[best], goal=4.0, note=f"rival: {best}", context=context),
        Figure(f"{title}: best rival, ours stored", "operations/s", ours=stored, rival=rivals[best], goal=4.0, note="net effect in the Delta table, synced"),
        Figure(f"{title}: one call per change, best rival", "operations/s", ours=calls, rival=rivals[best], note="update() and delete() for each"),
    ]


def _ours(work: list[Batch], *, one_by_one: bool = False) -> tuple[float, float]:
    """Return operations per second until all can be read, and until all are stored."""
    count = sum(len(batch.inserts) + len(batch.updates) + len(batch.deletes) for batch in work)
    with _orders() as wh:
        producer = wh.producer(name="bench")
        load = _call_by_call if one_by_one else _batch_by_batch
        begun_s = time.perf_counter()
        load(producer, work)
        rows = wh.read("orders", columns=["orderkey"]).arrow().num_rows
        read_s = time.perf_counter()
        producer.commit(materialize=True)
        stored_s = time.perf_counter()
        assert rows == sum(len(batch.inserts) - len(batch.deletes) for batch in work)
        return count / (read_s - begun_s), count / (stored_s - begun_s)


@contextmanager
def _orders() -> Iterator[rt.Warehouse]:
    with warehouse() as wh:
        wh.create_table("orders", DDL, keys=["orderkey"])
        yield wh


def _batch_by_batch(producer: rt.Producer, work: list[Batch]) -> None:
    names = ("orderkey", *_SET)
    for batch in work:
        producer.insert_many("orders", batch.inserts)
        if batch.updates:
            producer.update_many("orders", [dict(zip(names, row, strict=True)) for row in batch.updates])
            producer.delete_many("orders", [{"orderkey": row[0]} for row in batch.deletes])
        producer.commit()


def _call_by_call(producer: rt.Producer, work: list[Batch]) -> None:
    for batch in work:
        producer.insert_many("orders", batch.inserts)
        for key, *values in batch.updates:
            producer.update("orders", dict(zip(_SET, values, strict=True)), {"orderkey": key})
        for (key,) in batch.deletes:
            producer.delete("orders", {"orderkey": key})
        producer.commit()


def _rival(connection: Connection, work: list[Batch], load: Callable[[Connection, Batch], None]) -> float:
    connection.execute("DROP TABLE IF EXISTS orders, staged")
    connection.execute(f"CREATE TABLE orders ({DDL}, PRIMARY KEY (orderkey))".encode())
    connection.execute(f"CREATE TEMP TABLE staged (op INT, {DDL})".encode())
    connection.commit()
    count = sum(len(batch.inserts) + len(batch.updates) + len(batch.deletes) for batch in work)
    begun_s = time.perf_counter()
    for batch in work:
        load(connection, batch)
        connection.commit()
    elapsed_s = time.perf_counter() - begun_s
    row = connection.execute("SELECT count(*) FROM orders").fetchone()
    assert row is not None and row[0] == sum(len(batch.inserts) - len(batch.deletes) for batch in work)
    connection.commit()
    return count / elapsed_s


@contextmanager
def _by_index(connection: Connection) -> Iterator[None]:
    """Let MERGE look each staged row up in the table's index. Left alone, it reads the whole table, since nothing says how little is staged."""
    joins = ("enable_hashjoin", "enable_mergejoin")
    for join in joins:
        connection.execute(f"SET {join} = off".encode())
    connection.commit()
    try:
        yield
    finally:
        for join in joins:
            connection.execute(f"RESET {join}".encode())
        connection.commit()


def _executemany(connection: Connection, batch: Batch) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s, %s, %s, %s)", batch.inserts)
        if batch.updates:
            update = "UPDATE orders SET status = %s, price = %s, orderdate = %s, priority = %s WHERE orderkey = %s"
            cursor.executemany(update, [(*values, key) for key, *values in batch.updates])
            cursor.executemany("DELETE FROM orders WHERE orderkey = %s", batch.deletes)


def _copy_merge(connection: Connection, batch: Batch) -> None:
    """Stage everything by binary COPY, then one MERGE: what a careful loader would do. Of several changes of a key only the last is staged."""
    changes = {key: (_UPDATE, key, *values, None) for key, *values in batch.updates} | {key: (_DELETE, key, *[None] * 5) for (key,) in batch.deletes}
    rows = [*((_INSERT, *row) for row in batch.inserts), *changes.values()]
    with connection.cursor() as cursor:
        with cursor.copy("COPY staged FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4"] * 7)
            for row in rows:
                copy.write_row(row)
        cursor.execute(
            "MERGE INTO orders o USING staged s ON o.orderkey = s.orderkey WHEN MATCHED AND s.op = 2 THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET status = s.status, price = s.price, orderdate = s.orderdate, priority = s.priority"
            " WHEN NOT MATCHED AND s.op = 0 THEN INSERT VALUES (s.orderkey, s.status, s.price, s.orderdate, s.priority, s.custkey)"
        )
        cursor.execute("TRUNCATE staged")


def _ranges(connection: Connection) -> list[Figure]:
    """A load in commits of 100, then one range operation over half of the keys; rows loaded and rows changed count."""
    rows = [(number, 1, 1, 1, 1, 1) for number in range(RANGE_ROWS)]
    figures = []
    for kind, statement in (("update", "UPDATE orders SET status = 2, price = 3 WHERE orderkey < %s"), ("delete", "DELETE FROM orders WHERE orderkey < %s")):
        rival = _range_rival(connection, rows[: RANGE_ROWS // 4], statement)
        figures.append(Figure(f"load and range {kind}: COPY every {BATCH}, then {kind.upper()}", "rows/s", ours=_range_ours(rows, kind), rival=rival))
    return figures


def _range_ours(rows: Sequence[Row], kind: str) -> float:
    with _orders() as wh:
        producer = wh.producer(name="bench")
        begun_s = time.perf_counter()
        for begin in range(0, len(rows), BATCH):
            producer.insert_many("orders", rows[begin : begin + BATCH])
            producer.commit()
        if kind == "update":
            producer.update("orders", {"status": 2, "price": 3}, f"orderkey < {len(rows) // 2}")
        else:
            producer.delete("orders", f"orderkey < {len(rows) // 2}")
        producer.commit(materialize=True)
        return 1.5 * len(rows) / (time.perf_counter() - begun_s)


def _range_rival(connection: Connection, rows: Sequence[Row], statement: str) -> float:
    connection.execute("DROP TABLE IF EXISTS orders")
    connection.execute(f"CREATE TABLE orders ({DDL}, PRIMARY KEY (orderkey))".encode())
    connection.commit()
    begun_s = time.perf_counter()
    with connection.cursor() as cursor:
        for begin in range(0, len(rows), BATCH):
            with cursor.copy("COPY orders FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int4"] * 6)
                for row in rows[begin : begin + BATCH]:
                    copy.write_row(row)
            connection.commit()
        cursor.execute(statement.encode(), (len(rows) // 2,))
        connection.commit()
    return 1.5 * len(rows) / (time.perf_counter() - begun_s)
