"""Facts with the versions that were current at their time, without a look at every version of their key.

In: facts with `_since`, and versions as `Sides.narrow` has them, with `__from` and `__to` (null: open) in microseconds.
Out: the pairs with equal keys in which the fact's time is in [from, to).
Promise: exact for any signed rows. As long as a key has one version at a time at every job, about as many pairs are looked at as there are facts and versions
of it, times a constant, and for each fact a few for each job of the drain.

The times of a key's facts are parted so that few facts are in one part. A version goes to the parts that it touches, and meets only the facts there. Keys with
few facts have one part: there are never more than these for a version to meet.
"""

from __future__ import annotations

from righttime.pipeline.operators.join import On, Sides
from righttime.pipeline.operators.query import Reach, hint, in_one_partition, names, quoted
from righttime.pipeline.operators.signed import JOB, WEIGHT

FACTS_MAX = 64  # in one part, but for those of one time
_FROM, _TO, _PART, _STARTS, _STRIDES = "__from", "__to", "__part", "__starts", "__strides"
_POWERS = f"array({', '.join(str(2**power) for power in range(30, -1, -1))})"


def current_pairs(sides: Sides, facts: str, versions: str, *, on: On, since: str) -> str:
    """Return the query for the pairs; versions that have come and gone again in one job, or in earlier drains, are no longer there."""
    keys = [f"__on_{place}" for place in range(len(on))]
    parts = _parts(facts, on, since)
    with_part = _facts_in_parts(sides, facts, parts, on, since)
    touched = _versions_in_parts(versions, parts, keys, [f"__taken_{place}" for place in range(len(sides.taken))], sides.reach)
    return sides.product(f"({with_part})", f"({touched})", sent="l", where=f" AND l.{_PART} = r.{_PART}{_current(since)}")


def all_pairs(sides: Sides, facts: str, versions: str, *, since: str) -> str:
    """Return the query for the pairs that looks at all versions of a fact's key: a smaller plan, which is sooner made."""
    return sides.product(facts, f"({versions})", sent="l", where=_current(since))


def _current(since: str) -> str:
    return f" AND r.{_FROM} <= l.{since} AND (r.{_TO} IS NULL OR l.{since} < r.{_TO})"


def _parts(facts: str, on: On, since: str) -> str:
    """Return the query for the keys of the facts, each with the times at which its parts start; the first has no start."""
    keys = [f"{quoted(name)} AS __on_{place}" for place, (name, _) in enumerate(on)]
    times = f"SELECT {', '.join(keys)}, collect_list({since}) AS __times FROM {facts} GROUP BY {names(dict.fromkeys(name for name, _ in on))}"
    # A time that many facts share is a part of its own: whatever touches it is current then.
    each = f"filter(array_sort(__times), (time, place) -> place % {FACTS_MAX} = {FACTS_MAX - 1})"
    some = f"SELECT *, if(size(__times) < {FACTS_MAX}, CAST(array() AS ARRAY<BIGINT>), {each}) AS __some FROM ({times})"
    starts = f"SELECT *, array_sort(array_union(__some, transform(__some, time -> time + 1))) AS {_STARTS} FROM ({some})"
    strides = f"filter({_POWERS}, stride -> stride <= size({_STARTS})) AS {_STRIDES}"
    return f"SELECT {', '.join(f'__on_{place}' for place in range(len(on)))}, {_STARTS}, {strides} FROM ({starts})"


def _part_of(time: str) -> str:
    """Return how many parts start up to a time, by binary search."""
    return f"aggregate(p.{_STRIDES}, 0, (place, stride) -> if(get(p.{_STARTS}, place + stride - 1) <= {time}, place + stride, place))"


def _facts_in_parts(sides: Sides, facts: str, parts: str, on: On, since: str) -> str:
    equal = " AND ".join(f"l.{quoted(name)} = p.__on_{place}" for place, (name, _) in enumerate(on))
    columns = names([*sides.columns, JOB, WEIGHT], of="l")
    return _near(f"SELECT {hint('p', sides.reach)} {columns}, {_part_of(f'l.{since}')} AS {_PART} FROM {facts} l JOIN ({parts}) p ON {equal}", sides.reach)


def _versions_in_parts(versions: str, parts: str, keys: list[str], taken: list[str], reach: Reach) -> str:
    """Return the query for the versions of keys that have facts, once for each part that they touch, with the facts' keys."""
    equal = " AND ".join(f"r.{key} = p.{key}" for key in keys)
    row = [names(keys, of="p"), names([*taken, _FROM, _TO, JOB, WEIGHT], of="r")]
    last = f"if(r.{_TO} IS NULL, size(p.{_STARTS}), {_part_of(f'r.{_TO}')}) AS __last"
    there = f"SELECT {hint('p', reach)} {', '.join(row)}, {_part_of(f'r.{_FROM}')} AS __first, {last} FROM ({versions}) r JOIN ({parts}) p ON {equal}"
    # Each version was open before it had an end, and so would be current at all times after it if these did not cancel out before.
    line = names([*keys, *taken, _FROM, _TO, JOB, "__first", "__last"])
    net = f"SELECT {line}, sum({WEIGHT}) AS {WEIGHT} FROM ({_near(there, reach)}) GROUP BY {line} HAVING sum({WEIGHT}) <> 0"
    return f"SELECT {names([*keys, *taken, _FROM, _TO, JOB, WEIGHT])}, explode(sequence(__first, __last)) AS {_PART} FROM ({net})"


def _near(query: str, reach: Reach) -> str:
    """Return the query so that in a drain of one task Spark sees its rows in one partition, which it forgets after a join."""
    return in_one_partition(f"({query})") if reach == "task" else query
