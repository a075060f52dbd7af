"""I1 while a writer of a PostgreSQL warehouse is killed: whoever looks, before, during and after, sees rows and minmax together or neither."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import righttime as rt
from righttime.changes.faults import CrashPoint
from tests.support.postgres import TempPostgres
from tests.support.postgres_eyes import Eyes, Look
from tests.support.postgres_warehouse import fresh_schemas
from tests.support.warm_python import WarmPython

AT = [CrashPoint.FILES_WRITTEN, CrashPoint.TABLE_COMMITTED, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_BEGUN, CrashPoint.LEDGER_COMMITTED]
"""Between COPY and COMMIT, and right after it."""
TABLES = ("x", "y")
WORK = """
import json, sys
import righttime as rt
warehouse = rt.open(sys.argv[1], state_dir=sys.argv[2], **json.loads(sys.argv[3]))
producer = warehouse.producer(name="p")
number = len(warehouse.read("x"))
while True:
    number += 1
    for table in ("x", "y"):
        producer.insert(table, (number, number))
    producer.commit(materialize=True)
    print(number, flush=True)
"""


@pytest.fixture
def schemas(postgres: TempPostgres, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with fresh_schemas(postgres) as schemas:
        with rt.open(postgres.url, state_dir=tmp_path, **schemas) as warehouse:
            for name in TABLES:
                warehouse.create_table(name, "a INT, b INT")
        yield schemas


def whole_up_to(looks: dict[str, Look]) -> int:
    """Return n for tables that hold rows 1 to n, each with a minmax that says just that."""
    (count,) = {len(look.rows) for look in looks.values()}
    for look in looks.values():
        assert look.rows == [(number, number) for number in range(1, count + 1)]
        assert (look.rows_stored, look.version) == (count, count)
    mins = {look.lanes["p"][0] for look in looks.values() if look.lanes}
    assert max(mins, default=1) == 2 * count + 1  # commit n takes the ids 2n - 1 and 2n
    return count


@pytest.mark.parametrize("point", AT)
def test_i1_a_kill_between_copy_and_commit_shows_rows_and_minmax_or_neither(
    postgres: TempPostgres, schemas: dict[str, Any], tmp_path: Path, point: str
) -> None:
    """A second connection looks without a pause while the writer commits and dies; nothing acknowledged is missing after it."""
    environment = {"RIGHTTIME_CRASH_AT": f"{point}:5", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with (
        psycopg.connect(postgres.dsn, autocommit=True) as connection,
        (tmp_path / "errors").open("w+") as errors,
        WarmPython("-c", WORK, postgres.url, tmp_path, json.dumps(schemas), environment=environment, errors=errors) as writer,
    ):
        eyes = Eyes(connection, schemas["table_schema"], schemas["ledger_schema"])
        counts = [whole_up_to(eyes.look(*TABLES))]
        try:
            while writer.poll() is None:
                counts.append(whole_up_to(eyes.look(*TABLES)))
        finally:
            writer.kill()
        said, _ = writer.communicate()
        assert writer.returncode == -9, (tmp_path / "errors").read_text()
        acknowledged = int(said.split()[-1]) if said.split() else counts[0]
        after = whole_up_to(eyes.look(*TABLES))
    assert counts == sorted(counts)
    assert after == acknowledged + (point == CrashPoint.LEDGER_COMMITTED)
    with rt.open(postgres.url, state_dir=tmp_path, **schemas) as again:
        assert [len(again.read(name)) for name in TABLES] == [after, after]
        assert again.losses() == []
