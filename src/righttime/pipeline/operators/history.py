"""History of a keyed stream, one row for each version, and the version that was current when a fact was committed.

In: changes as a stream has them, with `_since`, `_ordinal` and `_commit_timestamp`; facts with `_since`.
Out: changes of the versions, of the facts with their version.
Promise: a fact takes the version of its own commit time, whatever job brings either; exactly one version of a living row has no end, at every job. No two
versions that follow each other are equal, and none has no time between start and end.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from righttime.pipeline.operators.current import all_pairs, current_pairs
from righttime.pipeline.operators.join import BOTH, On, Sides, Take, Types
from righttime.pipeline.operators.query import Query, names, quoted, spread
from righttime.pipeline.operators.signed import JOB, RUNNING, WEIGHT, Parts, Signed, State, before, consolidated, touched

SINCE, ORDINAL, COMMITTED = "_since", "_ordinal", "_commit_timestamp"
RUNS = "runs"
_RUN_SINCE, _RUN_ORDINAL = "_run_since", "_run_ordinal"
_NO_RUN = "CAST(NULL AS STRUCT<since: BIGINT, ordinal: BIGINT>) AS __run"


def history(
    delta: Signed | None, state: State, *, keys: Sequence[str], types: Types, key: str, key_from: int, start: str, end: str
) -> tuple[Signed | None, Parts]:
    """Return the changes of the versions, the columns, then surrogate key BIGINT, start and end TIMESTAMP, and the part `runs`. One shuffle.

    A version is a run of images of one row that have equal values, each from where the one before it ends; it has the number and the start of the first. What
    began and ended in one commit was never there. `runs` has the images that go on with a version, and with which: all others are the first of theirs.
    `types` are those of the columns.
    """
    if delta is None:
        return None, {}
    with Query(delta.frame) as sql:
        images = _in_runs(_images(delta, sql.view(delta.frame), sql.view(state[RUNS]) if RUNS in state else None, keys), types, keys)
        open_end = "CAST(NULL AS BIGINT)"
        events = [
            f"named_struct('job', if(__goes_on, NULL, __began), 'at', {open_end}, 'sign', 1L)",
            f"named_struct('job', if(__is_gone_on, NULL, __ended), 'at', {open_end}, 'sign', -1L)",
            "named_struct('job', if(__is_gone_on, NULL, __ended), 'at', __end, 'sign', 1L)",
        ]
        each = f"SELECT __row, __first, inline(array({', '.join(events)})) AS ({JOB}, __at, {WEIGHT}) FROM ({images})"
        columns = [f"__row.{quoted(name)} AS {quoted(name)}" for name in delta.columns]
        version = f"{key_from}L + __first.ordinal AS {quoted(key)}, timestamp_micros(__first.since) AS {quoted(start)}, timestamp_micros(__at) AS {quoted(end)}"
        made = sql.run(f"SELECT {', '.join(columns)}, {version}, {JOB}, {WEIGHT} FROM ({each}) WHERE {JOB} IS NOT NULL")
        known = "named_struct('job', if(__goes_on, __began, NULL), 'w', 1L), named_struct('job', if(__goes_on OR __went_on, __ended, NULL), 'w', -1L)"
        kept = f"SELECT {names(keys, ORDINAL, '__first', f'inline(array({known})) AS ({JOB}, {WEIGHT})')} FROM ({images})"
        run = f"__first.since AS {_RUN_SINCE}, __first.ordinal AS {_RUN_ORDINAL}"
        runs = sql.run(f"SELECT {names(keys, ORDINAL, run, JOB, WEIGHT)} FROM ({kept}) WHERE {JOB} IS NOT NULL")
        return Signed(made, (*delta.columns, key, start, end), delta.reach), {RUNS: runs}


def _images(delta: Signed, new: str, state: str | None, keys: Sequence[str]) -> str:
    """Return the query for one line for each image that the changes begin or end and that lasts: its values, when, and by which jobs."""
    row = f"struct({names(delta.columns)}) AS __row"
    every = f"SELECT {names(keys, ORDINAL, SINCE, row, f'unix_micros({COMMITTED}) AS __at', JOB, WEIGHT, _NO_RUN)} FROM {new}"
    if state is not None:
        old = touched(state, new, [(name, name) for name in keys], reach=delta.reach)
        run = f"named_struct('since', {_RUN_SINCE}, 'ordinal', {_RUN_ORDINAL}) AS __run"
        every += f" UNION ALL SELECT {names(keys, ORDINAL, 'NULL', 'NULL', 'NULL', 'NULL', 'NULL', run)} FROM ({old}) WHERE {WEIGHT} > 0"
    began, ended = (f"max(if({WEIGHT} {sign} 0, {JOB}, NULL)) AS {name}" for sign, name in ((">", "__began"), ("<", "__ended")))
    about = [f"max({SINCE}) AS {SINCE}", "first(__row, true) AS __row", began, ended, f"max(if({WEIGHT} < 0, __at, NULL)) AS __end", "max(__run) AS __run"]
    grouped = f"SELECT {names(keys, ORDINAL, *about)} FROM (SELECT * FROM ({every}){spread(keys, delta.reach)}) GROUP BY {names(keys, ORDINAL)}"
    return f"SELECT * FROM ({grouped}) WHERE __row IS NOT NULL AND (__end IS NULL OR __end > {SINCE})"


def _in_runs(images: str, types: Types, keys: Sequence[str]) -> str:
    """Return the query for the images with the first of their version, whether they go on with it, and whether another goes on with it after them."""
    # Values that Spark cannot compare are compared as text; at worst a version begins that need not.
    values = ", ".join(f"to_json(struct(__row.{quoted(name)}))" if _is_opaque(kind) else f"__row.{quoted(name)}" for name, kind in types.items())
    order = f"PARTITION BY {names(keys)} ORDER BY {SINCE}, {ORDINAL}"
    compared = f"SELECT *, struct({values}) AS __values FROM ({images})"
    before = f"lag(__end) OVER ({order}) AS __end_before, lag(__values) OVER ({order}) AS __values_before"
    goes_on = f"__began IS NOT NULL AND __end_before <=> {SINCE} AND __values_before <=> __values"
    follows = f"SELECT *, {goes_on} AS __goes_on, __run IS NOT NULL AS __went_on FROM (SELECT *, {before} FROM ({compared}))"
    own = f"if(__goes_on, NULL, coalesce(__run, named_struct('since', {SINCE}, 'ordinal', {ORDINAL})))"
    first = f"last({own}, true) OVER ({order}{RUNNING}) AS __first"
    return f"SELECT *, {first}, coalesce(lead(__goes_on) OVER ({order}), false) AS __is_gone_on FROM ({follows})"


def _is_opaque(kind: DataType) -> bool:
    match kind:
        case ArrayType():
            return _is_opaque(kind.elementType)
        case StructType():
            return any(_is_opaque(field.dataType) for field in kind)
        case _:
            return isinstance(kind, MapType)


def as_of(
    facts: Signed | None,
    versions: Signed | None,
    state: State,
    *,
    on: On,
    take: Take,
    types: Types,
    start: str,
    end: str,
    few: bool = False,
) -> tuple[Signed | None, Parts]:
    """Return the changes of all facts with what the version in [start, end) at their `_since` gives, nulls of `types` where none was; parts `left`, `right`.

    `_since` is among the facts' columns, and stays there. A key has at most one version at any time. One shuffle of the size of the changes, and one of the
    versions of their keys. With `few` changes each new fact is compared with all versions of its key: that takes a smaller plan, and the outcome is the same.
    """
    with Sides(facts, versions, state, on, take) as sides:
        terms = [text for text in (_new_facts(sides, on, start, end, few=few), _old_facts(sides, start, end)) if text is not None]
        return sides.or_null(" UNION ALL ".join(terms) if terms else None, types), sides.parts(BOTH, also=[start, end])


def _new_facts(sides: Sides, on: On, start: str, end: str, *, few: bool) -> str | None:
    """Return new facts with all versions, old and new, of their time."""
    span = [f"unix_micros({quoted(start)}) AS __from", f"unix_micros({quoted(end)}) AS __to"]
    rights = [sides.narrow(sides.right_state, job="CAST(NULL AS BIGINT)", also=span), sides.narrow(sides.right, also=span)]
    there = [text for text in rights if text is not None]
    if sides.left is None or not there:
        return None
    if few:
        return all_pairs(sides, sides.left, " UNION ALL ".join(there), since=SINCE)
    return current_pairs(sides, sides.left, " UNION ALL ".join(there), on=on, since=SINCE)


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
