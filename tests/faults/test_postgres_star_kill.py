"""A writer of a star schema that is killed at any step: dimensions whose rows are exchanged where they are, and facts that refer to them."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import righttime as rt
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database
from tests.support.warm_python import run_warm

STAR = """
CREATE TABLE customer (id int PRIMARY KEY, boss int REFERENCES customer ON DELETE CASCADE, code int UNIQUE);
CREATE TABLE sale (id int PRIMARY KEY, customer int NOT NULL REFERENCES customer DEFERRABLE, qty int);
"""
# The tables, the rows that wait aside, the state: between any two of them. Other points are those of every table, see test_postgres_kill.
POINTS = ["materialize.files_written", "materialize.table_committed", "ledger.committed"]
# Each commit brings a customer and its sale, updates all customers, and takes the one before the last away with its sale.
WORK = """
import json, sys
import righttime as rt
warehouse = rt.open(sys.argv[1], state_dir=sys.argv[2])
for name in ("sale", "customer"):
    if name not in warehouse.tables():
        warehouse.adopt(name)
producer = warehouse.producer(name="till")
for number in range(int(sys.argv[3]), 1000):
    producer.update("customer", {"code": rt.expr("code + 1000")})
    producer.insert("sale", (number, number, 1))
    producer.insert("customer", (number, None, number))
    producer.delete("sale", {"id": number - 2})
    producer.delete("customer", {"id": number - 2})
    producer.update("sale", {"qty": rt.expr("qty + 1")})
    producer.commit(durability=("memory", "log", "memory", "warehouse")[number % 4])
    print(json.dumps([number, bool(number % 2)]), flush=True)
"""


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(STAR.encode())
        yield url


def after(count: int) -> tuple[list[tuple[int, None, int]], list[tuple[int, int, int]]]:
    """Return what both tables hold after the commits 0 to count - 1."""
    living = range(max(0, count - 2), count)
    return [(number, None, number + 1000 * (count - 1 - number)) for number in living], [(number, number, 1 + count - number) for number in living]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_rows_are_exchanged_splits_no_commit(url: str, tmp_path: Path, point: str) -> None:
    """After each kill both tables show the same whole commits, all durable ones among them, and storing goes on."""
    kept = 0
    for arrival in (3, 2):
        environment = {"RIGHTTIME_CRASH_AT": f"{point}:{arrival}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = run_warm("-c", WORK, url, tmp_path, str(kept), environment=environment, timeout=120)
        assert done.returncode == -9, done.stderr
        acknowledged = [json.loads(line) for line in done.stdout.splitlines()]
        durable = max((number + 1 for number, logged in acknowledged if logged), default=kept)
        with rt.open(url, state_dir=tmp_path) as warehouse:
            found = tuple(sorted(warehouse.read(name).rows()) if name in warehouse.tables() else [] for name in ("customer", "sale"))
            counts = [count for count in range(durable, durable + 8) if after(count) == found]
            assert counts, (durable, found)
            warehouse.materialize()
        kept = counts[-1]
        with psycopg.connect(url) as connection:
            assert tuple(connection.execute(f"SELECT * FROM {name} ORDER BY id".encode()).fetchall() for name in ("customer", "sale")) == found
