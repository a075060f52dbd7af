"""Signed sets: rows with a weight and a job number, and what every operator does with them.

In: DataFrames with the columns of a step, `_job` and `_w`.
Out: the same, summed, united, looked up in state.
Promise: a set means the sum of its weights by row; nulls equal nulls, NaN equals NaN and -0.0 equals 0.0 wherever rows are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from righttime.pipeline.operators.query import Frame, Query, Reach, farthest, hint, names, quoted, spread

JOB, WEIGHT = "_job", "_w"
# Columns of state that are summed up when a state is compacted; all others but the job say which row it is.
ACCUMULATOR_PREFIX = "_acc_"

Parts = dict[str, Frame]
State = Mapping[str, Frame]


@dataclass(frozen=True)
class Signed:
    """Changes of a set of rows: the frame has `columns`, `_job` BIGINT and `_w` BIGINT (+n: inserted n times, -n: removed); it may have more columns.

    System columns that later steps need (`_since`) are simply among `columns`. `reach` says how far its rows travel.
    An empty set is not a `Signed` but None, wherever that is known beforehand.
    """

    frame: Frame
    columns: tuple[str, ...]
    reach: Reach = "sent"

    def rows(self) -> Frame:
        """Return the relation with exactly columns, job and weight."""
        with Query(self.frame) as sql:
            return sql.run(rows_of(sql.view(self.frame), self.columns))


def col(name: str) -> Column:
    """Return the column with exactly this name, whatever characters it has."""
    return F.col(quoted(name))


def cols(columns: Iterable[str]) -> list[Column]:
    """Return the columns with these names."""
    return [col(name) for name in columns]


def rows_of(relation: str, columns: Sequence[str], *, sign: str = "") -> str:
    """Return the query for the rows of a signed relation, with their weights turned round if the sign is `-`."""
    return f"SELECT {names([*columns, JOB])}, {sign}{WEIGHT} AS {WEIGHT} FROM {relation}"


def before(relation: str, columns: Sequence[str], added: Sequence[str] = (WEIGHT,)) -> str:
    """Return the query for state rows as of before the drain: with the job null, which sorts first."""
    return f"SELECT {names(columns, 'CAST(NULL AS BIGINT) AS _job', *map(quoted, added))} FROM {relation}"


def unite(parts: Sequence[Signed | None]) -> Signed | None:
    """Return the sum of the sets, columns matched by name and ordered as in the first."""
    there = [part for part in parts if part is not None]
    if len(there) < 2:
        return there[0] if there else None
    first = there[0]
    with Query(first.frame) as sql:
        every = " UNION ALL ".join(rows_of(sql.view(part.frame), first.columns) for part in there)
        return Signed(sql.run(every), first.columns, reach=farthest(part.reach for part in there))


def consolidate(signed: Signed | None) -> Signed | None:
    """Return the same set with one line for each row and job, and none whose weight is zero. One shuffle."""
    if signed is None:
        return None
    with Query(signed.frame) as sql:
        return replace(signed, frame=sql.run(consolidated(sql.view(signed.frame), signed.columns)))


def consolidated(relation: str, columns: Sequence[str]) -> str:
    """Return the query for the net rows of a signed relation, by job."""
    key = names([*columns, JOB])
    return f"SELECT {key}, sum({WEIGHT}) AS {WEIGHT} FROM {relation} GROUP BY {key} HAVING sum({WEIGHT}) <> 0"


def touched(state: str, delta: str, pairs: Sequence[tuple[str, str]], *, reach: Reach, inside: bool = True) -> str:
    """Return the query for the state rows whose key occurs in the delta, and possibly a few more: keys are compared by their hash.

    `pairs` has state column and delta column. `inside=False` returns exactly the other rows instead.
    The state is scanned once, the delta's hashes are sent to the executors; nothing is shuffled.
    """
    if not pairs:
        return f"SELECT * FROM {state}" if inside else f"SELECT * FROM {state} WHERE false"
    hashes = f"SELECT xxhash64({names([given for _, given in pairs])}) AS __mark FROM {delta}"
    kind = "SEMI" if inside else "ANTI"
    return f"SELECT {hint('delta', reach)} * FROM {state} LEFT {kind} JOIN ({hashes}) delta ON xxhash64({names([kept for kept, _ in pairs])}) = delta.__mark"


def net_by_job(delta: str, columns: Sequence[str], old: str | None, *, together: Sequence[str], reach: Reach) -> str:
    """Return the query for one line for each row and job, the state rows `old` with the job null; zero weights may be among them.

    Rows that agree in `together` are in one partition, so that later grouping and windows by it share this shuffle.
    """
    every = rows_of(delta, columns) + (f" UNION ALL {before(f'({old})', columns)}" if old is not None else "")
    key = names([*columns, JOB])
    return f"SELECT {key}, sum({WEIGHT}) AS {WEIGHT} FROM (SELECT * FROM ({every}){spread(together, reach)}) GROUP BY {key}"


def window(keys: Sequence[str], frame: str = "") -> str:
    """Return the window over the lines of one key in the order of jobs."""
    return f"({f'PARTITION BY {names(keys)} ' if keys else ''}ORDER BY {JOB}{frame})"


RUNNING = " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
