"""Materializing every 10,000 rows against one bulk load of the same rows into the same store.

In: a million rows as tuples.
Out: the ratio of rows per second, with the producer waiting for each materialization and with it in the background.
Promise: every way ends with all rows stored, synced and known to the ledger.
"""

import statistics

from benchmarks.figure import Figure, Row, in_batches, rows_per_second, tuple_rows
from benchmarks.ours import TABLE, warehouse

ROWS = 1_000_000
EVERY = 10_000
ROUNDS = 3


def run() -> list[Figure]:
    """Measure all ways in turns."""
    rows = tuple_rows(ROWS)
    ways = {
        "bulk": lambda: _bulk(rows),
        "waiting, commit every 10,000": lambda: _waiting(rows, size=EVERY),
        "waiting, commit every 100": lambda: _waiting(rows, size=100),
        "in the background, commit every 10,000": lambda: _background(rows, size=EVERY),
        "in the background, commit every 100": lambda: _background(rows, size=100),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, load in ways.items():
            rates[name].append(rows_per_second(load))
    bulk = statistics.median(rates.pop("bulk"))
    goals = {"waiting, commit every 10,000": 0.9, "in the background, commit every 10,000": 0.9}
    return [
        Figure(
            f"materialized every 10,000 rows, {name}", "rows/s", ours=statistics.median(of_one), rival=bulk, goal=goals.get(name), note="against one bulk load"
        )
        for name, of_one in rates.items()
    ]


def _bulk(rows: list[Row]) -> int:
    with warehouse(bypass_bytes=1) as wh:
        load = wh.producer(name="bench")
        load.insert_many(TABLE, rows)
        load.commit(materialize=True)
        return wh.status().tables[0].rows_stored


def _waiting(rows: list[Row], *, size: int) -> int:
    with warehouse() as wh:
        load = wh.producer(name="bench")
        for number, batch in enumerate(in_batches(rows, size), start=1):
            load.insert_many(TABLE, batch)
            load.commit(materialize=number * size % EVERY == 0)
        return wh.status().tables[0].rows_stored


def _background(rows: list[Row], *, size: int) -> int:
    with warehouse(materialize_rows=EVERY) as wh:
        load = wh.producer(name="bench")
        for batch in in_batches(rows, size):
            load.insert_many(TABLE, batch)
            load.commit()
        wh.materialize()
        return wh.status().tables[0].rows_stored
