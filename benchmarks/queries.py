"""Queries on Spark: hot rows against stored ones, our way to Spark against plain Spark, and how soon a committed row is in an answer.

In: a million rows, once hot and once stored.
Out: ratios of warm query times, and the 99th percentile of commit-to-answer.
Promise: the same query, the same Spark, in turns.
"""

import time

import numpy as np

import righttime as rt
from benchmarks.figure import Figure, arrow_rows
from benchmarks.ours import TABLE, warehouse
from benchmarks.timing import interleaved

ROWS = 1_000_000
QUERY = f"SELECT c0 % 7 AS k, sum(c1), sum(c2), sum(c3), sum(c4), sum(c5), count(*) FROM {TABLE} GROUP BY 1"
ROUNDS = 25


def run() -> list[Figure]:
    """Measure with one Spark session."""
    rows = arrow_rows(ROWS)
    with warehouse() as hot, warehouse(bypass_bytes=1) as stored, warehouse() as small:
        for wh in (hot, stored):
            with wh.producer(name="bench") as load:
                load.insert_arrow(TABLE, rows)
                load.commit()
        return [*_scans(hot, stored), _visible(small)]


def _scans(hot: rt.Warehouse, stored: rt.Warehouse) -> list[Figure]:
    spark = stored.spark
    files = [str(path) for path in sorted((stored.path / "tables" / TABLE).glob("*.parquet"))]
    ddl = stored.schema(TABLE).ddl()

    def plain() -> object:
        child = spark.newSession()
        child.read.schema(ddl).parquet(*files).createOrReplaceTempView(TABLE)
        return child.sql(QUERY).toArrow()

    ways = {"hot": lambda: hot.sql(QUERY), "stored": lambda: stored.sql(QUERY), "plain": plain}
    times = interleaved(ways, rounds=ROUNDS, warm=10)
    return [
        Figure("scan of hot rows, speed against stored rows", "1/s", ours=1 / times["hot"], rival=1 / times["stored"], goal=0.95, note=f"{ROWS:,} rows"),
        Figure("query with an empty catalyst, time against plain Spark", "s", ours=times["stored"], rival=times["plain"], goal=1.10, at_least=False),
    ]


def _visible(wh: rt.Warehouse) -> Figure:
    """Commit one row, ask for it, a hundred times; a million stored rows are not the point here."""
    waits = []
    with wh.producer(name="bench") as load:
        for number in range(120):
            begun_s = time.perf_counter()
            load.insert(TABLE, (number, 0, 0, 0, 0, 0))
            load.commit()
            assert wh.sql(f"SELECT count(*) FROM {TABLE} WHERE c0 = {number}").rows() == [(1,)]
            waits.append(time.perf_counter() - begun_s)
    return Figure("a committed row in a Spark answer, p99 warm", "s", ours=float(np.percentile(waits[20:], 99)), goal=1.0, at_least=False)
