"""The oracle of declared flows: every target computed from nothing.

In: a flow and all changes of its streams.
Out: what each target holds when everything up to a time has been taken in.
Promise: no incremental thought in here. What the Spark engine publishes for a job with horizon h equals `recompute(flow, changes, up_to_us=h)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from righttime.changes.ddl import parse_columns
from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import (
    Aggregate,
    Apply,
    AsOf,
    Derive,
    Distinct,
    Expect,
    History,
    Join,
    Lookup,
    Measure,
    Node,
    Select,
    StreamNode,
    Target,
    Union,
    Where,
)
from righttime.testing.reference.expressions import compiled
from righttime.testing.reference.relations import Fields, Relation, frozen, hidden, images, moment, stream

Changes = Any  # a table with the system columns of a stream, or a sequence of dictionaries


class Refused(Exception):
    """The flow fails on these rows: an expectation, a look-up or the keys of a target are not met."""


@dataclass(frozen=True)
class Recomputed:
    """What the targets hold, and the rows that look-ups left out, with the look-up."""

    tables: dict[str, Relation]
    dead_letters: list[tuple[Lookup, Fields]]


def recompute(flow: Flow, changes: Mapping[str, Changes], *, columns: Mapping[str, Sequence[str]] | None = None, up_to_us: int | None = None) -> Recomputed:
    """Compute all targets of a flow from the changes of its streams up to a time.

    Changes are dictionaries with `_change_type` (missing: insert) and `_commit_us`, or tables with the system columns of a stream. `columns` names those of
    a stream that has no changes.
    """
    found: dict[Node, Relation] = {}
    dead: list[tuple[Lookup, Fields]] = []
    for node in flow.nodes().values():
        if isinstance(node, StreamNode):
            names, rows = stream(changes.get(node.stream, ()), (columns or {}).get(node.stream))
            found[node] = images(names, rows, up_to_us)
        else:
            found[node] = evaluate(node, [found[given] for given in node.inputs], dead)
    return Recomputed({target.table: content(target, found[target.node].living()) for target in flow.targets}, dead)


def evaluate(node: Node, inputs: Sequence[Relation], dead: list[tuple[Lookup, Fields]]) -> Relation:
    """Return what a step makes of its inputs. Steps on single rows keep ended images for a history behind them."""
    match node:
        case Where():
            return Relation(inputs[0].columns, [row for row in inputs[0].rows if compiled(node.condition)(row) is True])
        case Expect():
            return _expected(node, inputs[0])
        case Select() | Derive():
            return _derived(node, inputs[0])
        case Apply():
            return _applied(node, inputs[0])
        case History():
            return _history(node, inputs[0])
    living = [given.living() for given in inputs]
    match node:
        case Join():
            return _joined(node, *living)
        case Lookup():
            return _looked_up(node, living[0], living[1], dead)
        case AsOf():
            return _as_of(node, *living)
        case Union():
            return Relation(living[0].columns, [row for part in living for row in part.rows])
        case Distinct():
            return Relation(living[0].columns, [dict(zip(living[0].columns, row, strict=True)) for row in living[0].bag()])
        case Aggregate():
            return _aggregated(node, living[0])
        case _:
            raise AssertionError(f"unknown step {node!r}")


def _expected(node: Expect, given: Relation) -> Relation:
    met = [row for row in given.rows if compiled(node.condition)(row) is True]
    if node.otherwise == "fail" and len(met) < len(given.rows):
        raise Refused(node.name)
    return Relation(given.columns, met if node.otherwise == "drop" else given.rows)


def _derived(node: Select | Derive, given: Relation) -> Relation:
    new = [(column.name, compiled(column.expression)) for column in node.columns]
    kept = given.columns if isinstance(node, Derive) else ()
    names = {name.lower(): name for name in kept}
    placed = [(names.get(name.lower(), name), function) for name, function in new]
    rows = [{**{name: row[name] for name in kept}, **{name: function(row) for name, function in placed}, **hidden(row)} for row in given.rows]
    return Relation(tuple(dict.fromkeys([*kept, *(name for name, _ in placed)])), rows)


def _applied(node: Apply, given: Relation) -> Relation:
    """Call the function on each row alone, so that what it returns is known to belong to it."""
    columns = tuple(parse_columns(node.columns).names)
    rows = []
    for row in given.rows:
        out = node.function(pa.Table.from_pylist([{name: row[name] for name in given.columns}]))
        rows += [{**{name: made[name] for name in columns}, **hidden(row)} for made in out.to_pylist()]
    return Relation(columns, rows)


def _history(node: History, given: Relation) -> Relation:
    """Return the versions: of each key one image after the other, where what lasted no time is left out, and what equals the one before it goes on with it."""
    versions: list[Fields] = []
    last: dict[tuple[Any, ...], Fields] = {}
    for row in sorted(given.rows, key=lambda row: row["_ordinal"]):
        if row.get("_end") == row["_since"]:
            continue
        before = last.get(key := frozen(row, node.keys))
        if before is not None and before["_end"] == row["_since"] and frozen(before, given.columns) == frozen(row, given.columns):
            before["_end"] = row.get("_end")
        else:
            last[key] = {**row, "_end": row.get("_end")}
            versions.append(last[key])
    times = ({node.key: node.key_from + row["_ordinal"], node.start: moment(row["_since"]), node.end: moment(row["_end"])} for row in versions)
    rows = [{**{name: row[name] for name in given.columns}, **time} for row, time in zip(versions, times, strict=True)]
    return Relation((*given.columns, node.key, node.start, node.end), rows)


class Partners:
    """The rows of a right side by key; null equals nothing."""

    def __init__(self, right: Relation, on: Sequence[tuple[str, str]]) -> None:
        self._left, keys = [left for left, _ in on], [name for _, name in on]
        self._rows: dict[tuple[Any, ...], list[Fields]] = {}
        for row in right.rows:
            self._rows.setdefault(frozen(row, keys), []).append(row)

    def of(self, row: Fields) -> list[Fields]:
        """Return the rows whose keys equal those of a left row."""
        key = frozen(row, self._left)
        return [] if None in key else self._rows.get(key, [])


def _joined(node: Join, left: Relation, right: Relation) -> Relation:
    merged = {name for one, name in node.on if one == name}
    added = [name for name in right.columns if name not in merged]
    by_key, rows = Partners(right, node.on), []
    for row in left.rows:
        partners = [{name: other[name] for name in added} for other in by_key.of(row)]
        if not partners and node.how == "left":
            partners = [dict.fromkeys(added)]
        rows += [{**{name: row[name] for name in left.columns}, **partner} for partner in partners]
    return Relation((*left.columns, *added), rows)


def _looked_up(node: Lookup, left: Relation, right: Relation, dead: list[tuple[Lookup, Fields]]) -> Relation:
    found = Relation((*left.columns, *(name for name, _ in node.take)))
    by_key = Partners(right, node.on)
    for row in left.rows:
        partners = by_key.of(row)
        assert len(partners) <= 1, "the right side of a look-up is unique"
        if partners or node.missing == "null":
            partner = partners[0] if partners else dict.fromkeys(right.columns)
            found.rows.append({**row, **{name: partner[column] for name, column in node.take}})
        elif node.missing == "dead_letter":
            dead.append((node, row))
        elif node.missing == "fail":
            raise Refused(f"no counterpart for {row}")
    return found


def _as_of(node: AsOf, left: Relation, right: Relation) -> Relation:
    history = node.right
    assert isinstance(history, History)
    found = Relation((*left.columns, *(name for name, _ in node.take)))
    by_key = Partners(right, node.on)
    for row in left.rows:
        since: Any = moment(row["_since"])
        begun = [other for other in by_key.of(row) if other[history.start] <= since]
        current = [other for other in begun if other[history.end] is None or since < other[history.end]]
        partner = current[0] if current else dict.fromkeys(right.columns)
        found.rows.append({**row, **{name: partner[column] for name, column in node.take}})
    return found


def _aggregated(node: Aggregate, given: Relation) -> Relation:
    groups: dict[tuple[Any, ...], list[Fields]] = {}
    for row in given.rows:
        groups.setdefault(frozen(row, node.by), []).append(row)
    rows = []
    for members in groups.values():
        measures = {measure.name: measured(measure, members) for measure in node.measures}
        rows.append({**{name: members[0][name] for name in node.by}, **measures})
    return Relation((*node.by, *(measure.name for measure in node.measures)), rows)


def measured(measure: Measure, rows: Sequence[Fields]) -> Any:
    """Return one measure of a group: nulls do not count, and nothing has no sum."""
    if measure.expression == "*":
        return len(rows)
    values = [value for value in map(compiled(measure.expression), rows) if value is not None]
    if measure.function == "count":
        return len(values)
    if measure.function == "count_distinct":
        return len({frozen({"value": value}, ["value"]) for value in values})
    if not values:
        return None
    if measure.function in ("min", "max"):
        return (min if measure.function == "min" else max)(values, key=_nan_last)
    return sum(values) if measure.function == "sum" else sum(values) / len(values)


def _nan_last(value: Any) -> tuple[bool, Any]:
    """Return a key that orders NaN behind every number, as Spark does."""
    unordered = value != value
    return unordered, 0.0 if unordered else value


def content(target: Target, given: Relation) -> Relation:
    """Return what a target holds: the rows by key, or the sums of its additive columns."""
    plain = Relation(given.columns, [{name: row[name] for name in given.columns} for row in given.rows])
    if target.additive:
        measures = tuple(Measure(name, "sum", f"`{name}`") for name in target.additive)
        return _aggregated(Aggregate(target.origin, target.node, target.keys, measures), plain)
    keys = [frozen(row, target.keys) for row in plain.rows]
    if len(set(keys)) < len(keys):
        raise Refused(f"two rows with one key in {target.table}")
    return plain
