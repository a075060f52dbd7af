"""A writer of a PostgreSQL warehouse that is killed at any step: what was acknowledged as durable is there once, nothing is there by half."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import righttime as rt
from tests.support.postgres import TempPostgres
from tests.support.postgres_warehouse import fresh_database
from tests.support.warm_python import run_warm

POINTS = [
    "log.written",
    "log.synced",
    "materialize.files_written",
    "materialize.table_committed",
    "materialize.tables_committed",
    "ledger.begun",
    "ledger.committed",
    "materialize.notice_given",
    "log.removed",
]
WORK = """
import json, sys
import righttime as rt
warehouse = rt.open(sys.argv[1], state_dir=sys.argv[2])
for name in ("sale", "note"):
    warehouse.create_table(name, "sku INT, qty INT", keys=["sku"], if_not_exists=True)
producer = warehouse.producer(name="till")
for number in range(int(sys.argv[3]), 1000):
    for name in ("sale", "note"):
        producer.insert(name, (number, 1))
        if number % 3 == 2:
            producer.update(name, {"qty": 2}, {"sku": number - 1})
            producer.delete(name, {"sku": number - 2})
    producer.commit(durability=("memory", "log", "memory", "warehouse")[number % 4])
    print(json.dumps([number, bool(number % 2)]), flush=True)
"""


@pytest.fixture
def url(postgres: TempPostgres) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


def after(count: int) -> list[tuple[int, int]]:
    """Return what a table holds after the commits 0 to count - 1."""
    rows: dict[int, int] = {}
    for number in range(count):
        rows[number] = 1
        if number % 3 == 2:
            rows[number - 1] = 2
            del rows[number - 2]
    return sorted(rows.items())


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_loses_no_durable_commit_and_splits_none(url: str, tmp_path: Path, point: str) -> None:
    """After each of several kills at the same step, both tables show the same whole commits, all durable ones among them."""
    kept = 0
    for round_number in range(2):
        arrival = 2 + round_number
        environment = {"RIGHTTIME_CRASH_AT": f"{point}:{arrival}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = run_warm("-c", WORK, url, tmp_path, str(kept), environment=environment, timeout=120)
        assert done.returncode == -9, done.stderr
        acknowledged = [json.loads(line) for line in done.stdout.splitlines()]
        durable = max((number + 1 for number, logged in acknowledged if logged), default=kept)
        with rt.open(url, state_dir=tmp_path) as warehouse:
            tables = [sorted(warehouse.read(name).rows()) if name in warehouse.tables() else [] for name in ("sale", "note")]
            counts = [count for count in range(durable, durable + 8) if after(count) == tables[0]]
            assert counts, (durable, tables[0])
            assert tables[0] == tables[1]
        kept = counts[-1]
