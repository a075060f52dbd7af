"""Several tables at once: one producer and thread per table, in one catalyst and in two.

In: the same number of rows, into one table, into two tables of one warehouse, into tables of two warehouses.
Out: rows per second of all threads together, over those of one table.
Promise: in one run, in turns; Python runs one thread at a time, so more tables cannot be faster than one here, and must not be slower.
"""

import statistics
import threading
import time
from contextlib import ExitStack

import righttime as rt
from benchmarks.figure import Figure, Row, in_batches, tuple_rows
from benchmarks.ours import DDL, TABLE, warehouse

ROWS = 1_000_000
ROUNDS = 5


def run() -> list[Figure]:
    """Measure the three layouts in turns."""
    rows = tuple_rows(ROWS)
    rates: dict[str, list[float]] = {"one": [], "two": [], "apart": []}
    for _ in range(ROUNDS):
        rates["one"].append(_load(rows, warehouses=1, tables=1))
        rates["two"].append(_load(rows, warehouses=1, tables=2))
        rates["apart"].append(_load(rows, warehouses=2, tables=1))
    one, two, apart = (statistics.median(rates[name]) for name in ("one", "two", "apart"))
    return [
        Figure("two tables in parallel, one catalyst", "rows/s", ours=two, rival=one, goal=0.95, note="rival: one table, one thread"),
        Figure("two tables in parallel, two catalysts", "rows/s", ours=apart, rival=one, goal=0.95, note="rival: one table, one thread"),
    ]


def _load(rows: list[Row], *, warehouses: int, tables: int) -> float:
    with ExitStack() as stack:
        loads: list[tuple[rt.Producer, str]] = []
        for _ in range(warehouses):
            wh = stack.enter_context(warehouse())
            for number in range(tables):
                name = TABLE if number == 0 else f"{TABLE}_{number}"
                if number:
                    wh.create_table(name, DDL)
                loads.append((wh.producer(name=name), name))
        share = len(rows) // len(loads)
        threads = [threading.Thread(target=_fill, args=(load, name, rows[place * share : (place + 1) * share])) for place, (load, name) in enumerate(loads)]
        begun_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(rows) / (time.perf_counter() - begun_s)


def _fill(load: rt.Producer, table: str, rows: list[Row]) -> None:
    for batch in in_batches(rows, 100):
        load.insert_many(table, batch)
        load.commit()
