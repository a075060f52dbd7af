"""One Delta commit of 10,000 rows: our log entry against delta-rs, the same file registered by both.

In: a batch of six integers.
Out: milliseconds per commit, the file written before the clock starts.
Promise: ours is synced and at exactly the next version; delta-rs syncs nothing, and its handle is brought up to date after each commit.
"""

import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction

from benchmarks.figure import COLUMNS, Figure, arrow_rows
from righttime.changes.schema import declare_table
from righttime.settings import load_settings
from righttime.warehouse.lakehouse import Lakehouse
from righttime.warehouse.store import DataFile

COMMITS = 50


def run() -> list[Figure]:
    """Measure both on tables of their own in one folder."""
    rows = arrow_rows(10_000)
    with tempfile.TemporaryDirectory(prefix="rt_bench_") as folder:
        lake = Lakehouse(Path(folder), settings=load_settings())
        ours, theirs = (declare_table(name, ", ".join(f"{column} INT" for column in COLUMNS)) for name in ("ours", "theirs"))
        versions = [lake.create(ours)]
        lake.create(theirs)
        handle = DeltaTable(str(Path(folder) / "theirs"))
        schema = Schema.from_arrow(theirs.columns)

        def by_us(file: DataFile) -> None:
            versions.append(lake.commit(ours, [file], version=versions[-1], batch_id=uuid.uuid4().hex, batch_number=len(versions)))

        def by_delta_rs(file: DataFile) -> None:
            add = AddAction(file.path, file.size, {}, 0, True, json.dumps({"numRecords": file.rows}))
            properties = CommitProperties(app_transactions=[Transaction("bench", time.time_ns())])
            handle.create_write_transaction([add], mode="append", schema=schema, commit_properties=properties)
            handle.update_incremental()

        times = {
            name: _median(lambda table=table: lake.write_files(table, rows, batch_id=uuid.uuid4().hex)[0], commit)  # type: ignore[misc]
            for name, table, commit in (("ours", ours, by_us), ("theirs", theirs, by_delta_rs))
        }
    return [Figure("Delta commit of 10,000 rows, time against delta-rs", "ms", ours=times["ours"], rival=times["theirs"], at_least=False, note="ours synced")]


def _median(write: Callable[[], DataFile], commit: Callable[[DataFile], None]) -> float:
    times = []
    for _ in range(COMMITS):
        file = write()
        begun_s = time.perf_counter()
        commit(file)
        times.append((time.perf_counter() - begun_s) * 1000)
    return statistics.median(times)
