"""The least and the greatest living value of each group, job by job.

In: changes of (group, value) pairs, the groups that rows of the drain have, and the pairs of earlier drains, as SQL.
Out: for each touched group its extremes before the drain (job null) and after each job that may have changed them.
Promise: values that no job of the drain touches are looked at once, whatever the number of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from righttime.pipeline.operators.query import Reach, names, spread
from righttime.pipeline.operators.signed import JOB, WEIGHT, net_by_job, touched, window

VALUE, LOW, HIGH = "__value", "low", "high"


def extremes(values: str, rows: str, state: str | None, *, by: Sequence[str], kind: str, reach: Reach) -> str:
    """Return the query for (by, `_job`, `__low`, `__high`), both null without values; the relation `values` has by, `__value` (no nulls), job and weight.

    `rows` has every group that the drain touches: one whose new rows have no value still has the extremes that it had.
    """
    lines = [_touched_values(values, state, by, kind, reach=reach)]
    if state is not None:
        lines.append(_untouched_values(values, rows, state, by, kind, reach=reach))
    group = f" GROUP BY {names(by)}" if by else ""
    found = "min(__low) AS __low, max(__high) AS __high, collect_list(__span) AS __spans, array_append(collect_set(__event), CAST(NULL AS BIGINT)) AS __jobs"
    groups = f"SELECT {names(by, found)} FROM (SELECT * FROM ({' UNION ALL '.join(lines)}){spread(by, reach)}){group}"
    each = f"SELECT {names(by, '__low, __high, __spans', f'explode(__jobs) AS {JOB}')} FROM ({groups})"
    living = f"transform(filter(__spans, span -> {_LIVES}), span -> span.value)"
    return f"SELECT {names([*by, JOB], f'least(__low, array_min({living})) AS __low', f'greatest(__high, array_max({living})) AS __high')} FROM ({each})"


# Before the drain (job null) nothing that it brings has begun, and nothing that it takes has ended.
_LIVES = f"coalesce(span.begun <= {JOB}, span.begun IS NULL) AND NOT coalesce(span.ended <= {JOB}, false)"


def _touched_values(values: str, state: str | None, by: Sequence[str], kind: str, *, reach: Reach) -> str:
    """Return from when to when each touched value is there, and the jobs in which one comes or goes."""
    columns = (*by, VALUE)
    old = None if state is None else touched(state, values, [(name, name) for name in columns], reach=reach)
    net = net_by_job(values, columns, old, together=by, reach=reach)
    over = window(columns)
    counted = f"SELECT *, sum({WEIGHT}) OVER {over} AS __count, lead({JOB}) OVER {over} AS __ended FROM ({net})"
    span = f"named_struct('value', {VALUE}, 'begun', {JOB}, 'ended', __ended)"
    nothing = f"CAST(NULL AS {kind})"
    lines = f"{nothing} AS __low, {nothing} AS __high, if(__count > 0, {span}, NULL) AS __span"
    event = f"if((__count > 0) <> (__count - {WEIGHT} > 0), {JOB}, NULL) AS __event"
    return f"SELECT {names(by, lines, event)} FROM ({counted})"


def _untouched_values(values: str, rows: str, state: str, by: Sequence[str], kind: str, *, reach: Reach) -> str:
    """Return the extremes of the values that stay as they are, of groups that occur in the changes."""
    columns = (*by, VALUE)
    hit = touched(state, rows, [(name, name) for name in by], reach=reach)
    rest = touched(f"({hit})", values, [(name, name) for name in columns], reach=reach, inside=False)
    living = f"SELECT {names(columns)} FROM ({rest}) GROUP BY {names(columns)} HAVING sum({WEIGHT}) > 0"
    nothing = f"CAST(NULL AS STRUCT<value: {kind}, begun: BIGINT, ended: BIGINT>) AS __span, CAST(NULL AS BIGINT) AS __event"
    group = f" GROUP BY {names(by)}" if by else ""
    return f"SELECT {names(by, f'min({VALUE}) AS __low, max({VALUE}) AS __high', nothing)} FROM ({living}){group}"
