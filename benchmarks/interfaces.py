"""The ways to load righttime, with a commit every 100 rows, against each other.

In: the same million rows as tuples and as Arrow.
Out: rows per second of each way, with `insert_many` and an immediate policy as the yardstick.
Promise: every way ends with all rows visible.
"""

import righttime as rt
from benchmarks.figure import Figure, arrow_rows, tuple_rows
from benchmarks.ours import commit_every, commit_every_arrow, commit_every_row_by_row

ROWS = 1_000_000


def run() -> list[Figure]:
    """Measure each way once, after a warm-up."""
    rows, arrow = tuple_rows(ROWS), arrow_rows(ROWS)
    commit_every(rows[:100_000], size=100)
    yardstick = commit_every(rows, size=100)
    rates = {
        "insert_many, OnDemand policy": commit_every(rows, size=100, policy=rt.OnDemand()),
        "insert per row": commit_every_row_by_row(rows[: ROWS // 4], size=100),
        "insert_arrow": commit_every_arrow(arrow, size=100),
        "insert_many, one commit": commit_every(rows, size=ROWS),
    }
    return [Figure(name, "rows/s", ours=rate, rival=yardstick, note="against insert_many, Immediate") for name, rate in rates.items()]
