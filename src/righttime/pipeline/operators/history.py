"""History of a keyed stream, one row for each version, and the version that was current when a fact was committed.

In: changes as a stream has them, with `_since`, `_ordinal` and `_commit_timestamp`; facts with `_since`.
Out: changes of the versions, of the facts with their version.
Promise: a fact takes the version of its own commit time, whatever job brings either; exactly one version of a living row has no end, at every job.
"""

from __future__ import annotations

from righttime.pipeline.operators.join import BOTH, On, Sides, Take, Types
from righttime.pipeline.operators.query import Query, names, quoted
from righttime.pipeline.operators.signed import JOB, WEIGHT, Parts, Signed, State, before, consolidated

SINCE, ORDINAL, COMMITTED = "_since", "_ordinal", "_commit_timestamp"


def history(delta: Signed | None, *, key: str, key_from: int, start: str, end: str) -> Signed | None:
    """Return the changes of the versions: the columns, then surrogate key BIGINT, start and end TIMESTAMP. No state, no shuffle.

    A row that comes is a version without end; a row that goes at t is that version taken back, and the same with the end t.
    """
    if delta is None:
        return None
    open_end, closed = "named_struct('at', CAST(NULL AS TIMESTAMP), 'sign', 1L)", f"named_struct('at', {COMMITTED}, 'sign', -1L)"
    ends = f"inline(if({WEIGHT} < 0, array({open_end}, {closed}), array({open_end}))) AS (__end, __sign)"
    with Query(delta.frame) as sql:
        each = f"SELECT {names([*delta.columns, SINCE, ORDINAL, JOB, WEIGHT])}, {ends} FROM {sql.view(delta.frame)}"
        version = f"{key_from}L + {ORDINAL} AS {quoted(key)}, timestamp_micros({SINCE}) AS {quoted(start)}, __end AS {quoted(end)}"
        made = sql.run(f"SELECT {names(delta.columns)}, {version}, {JOB}, {WEIGHT} * __sign AS {WEIGHT} FROM ({each})")
    return Signed(made, (*delta.columns, key, start, end), delta.reach)


def as_of(
    facts: Signed | None, versions: Signed | None, state: State, *, on: On, take: Take, types: Types, start: str, end: str
) -> tuple[Signed | None, Parts]:
    """Return the changes of all facts with what the version in [start, end) at their `_since` gives, nulls of `types` where none was; parts `left`, `right`.

    `_since` is among the facts' columns, and stays there. A key has at most one version at any time. One shuffle of the size of the changes.
    """
    with Sides(facts, versions, state, on, take) as sides:
        terms = [text for text in (_new_facts(sides, start, end), _old_facts(sides, start, end)) if text is not None]
        return sides.or_null(" UNION ALL ".join(terms) if terms else None, types), sides.parts(BOTH, also=[start, end])


def _new_facts(sides: Sides, start: str, end: str) -> str | None:
    """Return new facts with all versions, old and new, of their time."""
    span = [f"unix_micros({quoted(start)}) AS __from", f"unix_micros({quoted(end)}) AS __to"]
    rights = [sides.narrow(sides.right_state, job="CAST(NULL AS BIGINT)", also=span), sides.narrow(sides.right, also=span)]
    there = [text for text in rights if text is not None]
    if sides.left is None or not there:
        return None
    current = f" AND r.__from <= l.{SINCE} AND (r.__to IS NULL OR l.{SINCE} < r.__to)"
    return sides.product(sides.left, f"({' UNION ALL '.join(there)})", sent="l", where=current)


def _old_facts(sides: Sides, start: str, end: str) -> str | None:
    """Return old facts with what changes from some time on: a version from its start, and taken away again from its end."""
    if sides.right is None or sides.left_state is None:
        return None
    # As such steps, a version that gets an end changes nothing but the time after it, and so meets none of the facts before.
    begin, finish = f"named_struct('at', {quoted(start)}, 'sign', 1L)", f"named_struct('at', {quoted(end)}, 'sign', -1L)"
    steps = f"inline(array({begin}, {finish})) AS (__at, __sign)"
    each = f"(SELECT {names([*sides.needed, JOB, WEIGHT])}, {steps} FROM {sides.right})"
    at = f"(SELECT {names(sides.needed)}, unix_micros(__at) AS __from, {JOB}, {WEIGHT} * __sign AS {WEIGHT} FROM {each} WHERE __at IS NOT NULL)"
    net = sides.narrow(f"({consolidated(at, (*sides.needed, '__from'))})", also=["__from"])
    return sides.product(f"({before(sides.left_state, sides.columns)})", f"({net})", sent="r", where=f" AND r.__from <= l.{SINCE}")
