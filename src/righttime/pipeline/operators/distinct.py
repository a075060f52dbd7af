"""Each row once: a row enters the outcome when its count becomes positive and leaves when it is zero again.

In: changes, and the rows of earlier drains (part `rows`).
Out: changes with weights +1 and -1 only.
Promise: only rows that occur in the changes are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

from righttime.pipeline.operators.query import Query, Reach, names
from righttime.pipeline.operators.signed import JOB, WEIGHT, Parts, Signed, State, net_by_job, touched, window

ROWS = "rows"


def distinct(delta: Signed | None, state: State) -> tuple[Signed | None, Parts]:
    """Return the changes of the set of different rows, and the part `rows`: (columns, _job, _w). One shuffle."""
    if delta is None:
        return None, {}
    with Query(delta.frame) as sql:
        new = sql.view(delta.frame)
        old = sql.view(state[ROWS]) if ROWS in state else None
        net = sql.view(sql.run(net_rows(new, delta.columns, old, reach=delta.reach)))
        made = Signed(sql.run(transitions(net, delta.columns)), delta.columns, delta.reach)
        return made, {ROWS: sql.run(f"SELECT * FROM {net} WHERE {JOB} IS NOT NULL AND {WEIGHT} <> 0")}


def net_rows(delta: str, columns: Sequence[str], state: str | None, *, reach: Reach) -> str:
    """Return the query for the net changes of rows by job, with the old count of each, job null."""
    old = None if state is None else touched(state, delta, [(name, name) for name in columns], reach=reach)
    return net_by_job(delta, columns, old, together=columns, reach=reach)


def transitions(net: str, columns: Sequence[str]) -> str:
    """Return the query for the jobs in which a row comes (+1) or goes (-1), of net changes with old counts."""
    counted = f"SELECT *, sum({WEIGHT}) OVER {window(columns)} AS __count FROM {net}"
    changed = f"{JOB} IS NOT NULL AND (__count > 0) <> (__count - {WEIGHT} > 0)"
    return f"SELECT {names([*columns, JOB])}, if(__count > 0, 1L, -1L) AS {WEIGHT} FROM ({counted}) WHERE {changed}"
