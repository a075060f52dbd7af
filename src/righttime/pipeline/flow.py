"""Declaring flows: from streams, step by step, into tables.

In: calls of a user's program.
Out: a `Flow` whose targets hang on frozen steps.
Promise: declaring moves no row and starts nothing; what is wrong by itself is refused in the line that says it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from righttime.changes.durations import Duration, duration_us
from righttime.errors import BadFreshness, RightTimeError
from righttime.errors.flows import BadDeclaration, FlowFrozen, NameTwice
from righttime.pipeline.measures import parse_measure
from righttime.pipeline.nodes import (
    Aggregate,
    Apply,
    ArrowFunction,
    AsOf,
    Derive,
    Derived,
    Distinct,
    Expect,
    History,
    Join,
    JoinKind,
    Lookup,
    Missing,
    Node,
    Origin,
    Otherwise,
    Rows,
    Select,
    StreamNode,
    Target,
    Union,
    Where,
)
from righttime.queues.declared import OnBad, StreamSchema, Times, declare_stream, differences

Names = str | Sequence[str]
On = str | Sequence[str] | Mapping[str, str]
Take = Sequence[str] | Mapping[str, str]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}", re.IGNORECASE)
_COLUMN = re.compile(r"[^\W\d_]\w{0,127}")  # letters of any language, as tables and streams have them
_EVERY = re.compile(r"every\s+(.+)", re.IGNORECASE)
_REFRESHES = "must be on_demand, immediate or such as 'every 5m'"
_PACKAGE = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class Refresh:
    """When a flow's jobs are cut: when a query asks, with each commit, or every `every_us`."""

    kind: Literal["on_demand", "immediate", "every"]
    every_us: int = 0


class Flow:
    """A declared transformation from streams to tables."""

    def __init__(self, name: str, *, refresh: str = "on_demand") -> None:
        self.origin = _caller()
        if not _NAME.fullmatch(name):
            raise BadDeclaration(flow=name, origin=self.origin, reason=f"{name!r} is no name: letters, digits and _ only")
        self.name = name.lower()
        self.refresh = _refresh(self, refresh)
        self._streams: dict[str, Step] = {}
        self._declared: dict[str, StreamSchema] = {}
        self._declared_at: dict[str, Origin] = {}
        self._targets: list[Target] = []
        self._frozen = False

    def stream(
        self,
        name: str,
        columns: str | pa.Schema | None = None,
        *,
        keys: Names = (),
        times: Times = "warehouse",
        on_bad: OnBad = "error",
        tolerance: Duration | None = None,
        comment: str | None = None,
    ) -> Step:
        """Read the changes of a stream. With `columns` it is declared here, as by `Warehouse.create_stream`, and made if it is missing when the flow runs."""
        origin, name = _caller(), name.lower()
        if columns is not None:
            key_names = [keys] if isinstance(keys, str) else keys
            self._declare(origin, name, columns, keys=key_names, times=times, on_bad=on_bad, tolerance=tolerance, comment=comment)
        elif keys or comment or tolerance is not None or (times, on_bad) != ("warehouse", "error"):
            raise BadDeclaration(flow=self.name, origin=origin, reason=f"stream {name!r} is declared without columns; give them, or its name only")
        if name not in self._streams:
            self._streams[name] = Step(self, StreamNode(origin, name))
        return self._streams[name]

    def _declare(self, origin: Origin, name: str, columns: str | pa.Schema, **options: Any) -> None:
        try:
            schema = declare_stream(name, columns, **options)
        except RightTimeError as error:
            raise BadDeclaration(flow=self.name, origin=origin, reason=f"stream {name!r}: {error.context.get('reason', error)}") from error
        if self._declared.setdefault(name, schema) != schema:
            reason = f"stream {name!r} is declared otherwise at {self._declared_at[name]}"
            raise BadDeclaration(flow=self.name, origin=origin, reason=reason)
        self._declared_at.setdefault(name, origin)

    @property
    def declared(self) -> tuple[StreamSchema, ...]:
        """Return the streams that are declared here with their columns, by name."""
        return tuple(schema for _, schema in sorted(self._declared.items()))

    def missing(self, known: Mapping[str, StreamSchema]) -> list[StreamSchema]:
        """Return the declared streams that are not known yet; raise if one is known with another declaration."""
        for schema in self.declared:
            there = known.get(schema.name, schema)
            if there != schema:
                reason = f"stream {schema.name!r} exists with another declaration: {differences(schema, there)}"
                raise BadDeclaration(flow=self.name, origin=declared_at(self, schema.name), reason=reason)
        return [schema for schema in self.declared if schema.name not in known]

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the tables this flow is kept in, in the order they were declared."""
        return tuple(self._targets)

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the names of the streams that reach a target, sorted."""
        return tuple(sorted({node.stream for node in self.nodes().values() if isinstance(node, StreamNode)}))

    def nodes(self) -> dict[str, Node]:
        """Return the steps that reach a target by id, inputs before their readers; ids depend only on the declaration."""
        order: dict[Node, None] = {}
        for target in self._targets:
            _visit(target.node, order)
        return {f"{number:02d}_{node.kind}": node for number, node in enumerate(order, start=1)}

    def freeze(self) -> None:
        """Allow no further change; a flow that is used is frozen."""
        if not self._targets:
            raise BadDeclaration(flow=self.name, origin=self.origin, reason="no step goes into a table; end one with into()")
        self._frozen = True

    def _add(self, target: Target) -> None:
        if self._frozen:
            raise FlowFrozen(flow=self.name, origin=target.origin)
        if any(known.table == target.table for known in self._targets):
            raise BadDeclaration(flow=self.name, origin=target.origin, reason=f"table {target.table!r} is a target of this flow already")
        self._targets.append(target)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a flow while it is declared; every call returns a further step and changes none."""

    flow: Flow = field(repr=False)
    node: Node

    def where(self, condition: str) -> Step:
        """Keep the rows for which a condition is true."""
        return self._next(Where(_caller(), self.node, self._text(condition)))

    def select(self, *names: str, **columns: str) -> Step:
        """Keep exactly these columns, named or given by an expression."""
        chosen = [Derived(name, f"`{name}`") for name in self._names(names)]
        return self._next(Select(_caller(), self.node, self._columns([*chosen, *self._derived(columns)])))

    def derive(self, **columns: str) -> Step:
        """Add columns given by expressions over the input's columns; a name that exists is replaced."""
        return self._next(Derive(_caller(), self.node, self._columns(self._derived(columns))))

    def expect(self, name: str, condition: str, *, otherwise: Otherwise = "keep") -> Step:
        """Count the rows that do not meet a condition, and keep them, drop them or fail. Null counts as not met; expectations of one name have one count."""
        return self._next(Expect(_caller(), self.node, name, self._text(condition), self._one_of(otherwise, Otherwise, "otherwise")))

    def apply(self, function: ArrowFunction, columns: str, *, rows: Rows = "same") -> Step:
        """Call a function on Arrow tables of rows; it must depend on nothing but the rows, each for itself.

        `columns` lists what it returns. `rows="same"`: one row for each row, in their order. `rows="any"`: any number for each row.
        """
        if not callable(function):
            raise self._bad(f"apply() needs a function, not {function!r}")
        return self._next(Apply(_caller(), self.node, function, self._text(columns), self._one_of(rows, Rows, "rows")))

    def join(self, other: Step, on: On, *, how: JoinKind = "inner") -> Step:
        """Pair rows with equal keys; columns of `other` follow, without those keys that have the same name."""
        return self._next(Join(_caller(), self.node, self._other(other), self._on(on), self._one_of(how, JoinKind, "how")))

    def lookup(self, other: Step, on: On, *, take: Take, missing: Missing = "null") -> Step:
        """Add columns of the one row of `other` with the same key; `take` names them, or maps a new name to a column of `other`.

        Rows without counterpart: with nulls, dropped, as dead letters until it comes, or an error.
        """
        return self._next(Lookup(_caller(), self.node, self._other(other), self._on(on), self._take(take), self._one_of(missing, Missing, "missing")))

    def as_of(self, history: Step, on: On, *, take: Take) -> Step:
        """Add columns of the version that was current when the row was committed at its source; nulls if there was none."""
        return self._next(AsOf(_caller(), self.node, self._other(history), self._on(on), self._take(take)))

    def union(self, *others: Step) -> Step:
        """Put all rows together; columns are matched by name."""
        if not others:
            raise self._bad("union() needs another step")
        return self._next(Union(_caller(), (self.node, *(self._other(other) for other in others))))

    def distinct(self) -> Step:
        """Keep each row once."""
        return self._next(Distinct(_caller(), self.node))

    def aggregate(self, by: Names = (), **measures: str) -> Step:
        """Return a row for each group that has rows; measures are `sum(x)`, `count(*)`, `count(x)`, `avg(x)`, `min(x)`, `max(x)`, `count(distinct x)`."""
        origin = _caller()
        parsed = []
        for name, text in measures.items():
            measure = parse_measure(self._name(name), self._text(text))
            if measure is None:
                raise self._bad(f"{name}={text!r} is no measure: write sum(x), count(*), count(x), avg(x), min(x), max(x) or count(distinct x)")
            parsed.append(measure)
        keys = self._names(by)
        self._check_once([*keys, *measures])
        if not keys and not parsed:
            raise self._bad("aggregate() needs a column to group by or a measure")
        return self._next(Aggregate(origin, self.node, keys, tuple(parsed)))

    def history(self, keys: Names, *, key: str, key_from: int = 1, start: str = "valid_from", end: str = "valid_to") -> Step:
        """Keep all versions of a keyed stream's rows, each with a surrogate key, from `key_from` up, and its start and end."""
        if isinstance(key_from, bool) or not isinstance(key_from, int):
            raise self._bad(f"key_from must be a whole number, not {key_from!r}")
        names = self._names(keys)
        if not names:
            raise self._bad("history() needs keys")
        return self._next(History(_caller(), self.node, names, self._name(key), key_from, self._name(start), self._name(end)))

    def into(self, table: str, *, keys: Names, additive: Names = ()) -> Step:
        """Keep this step in a table. Without `additive` each key has at most one row; with it, these columns are summed over all rows of a key."""
        key_names, sums = self._names(keys), self._names(additive)
        if not key_names:
            raise self._bad(f"target {table!r} needs keys")
        self._check_once([*key_names, *sums])
        self.flow._add(Target(str(table).lower(), key_names, sums, self.node, _caller()))
        return self

    def _next(self, node: Node) -> Step:
        return Step(self.flow, node)

    def _bad(self, reason: str) -> BadDeclaration:
        return BadDeclaration(flow=self.flow.name, origin=_caller(), reason=reason)

    def _other(self, other: object) -> Node:
        if not isinstance(other, Step):
            raise self._bad(f"{other!r} is no step; read a stream with flow.stream(name)")
        if other.flow is not self.flow:
            step = f"the {other.node.kind} step declared at {other.node.origin}"
            raise self._bad(f"{step} is of flow {other.flow.name!r}, and a flow works on its own steps; read its streams here, too, with flow.stream(name)")
        return other.node

    def _text(self, text: object) -> str:
        if not isinstance(text, str) or not text.strip():
            raise self._bad(f"{text!r} is no text; write Spark SQL")
        return text.strip()

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not _COLUMN.fullmatch(name):
            raise self._bad(f"{name!r} is no name of a column: letters, digits and _, a letter first")
        return name

    def _names(self, names: Names) -> tuple[str, ...]:
        found = tuple(self._name(name) for name in ([names] if isinstance(names, str) else names))
        self._check_once(found)
        return found

    def _check_once(self, names: Sequence[str]) -> None:
        seen: set[str] = set()
        for name in names:
            if name.lower() in seen:
                raise NameTwice(flow=self.flow.name, origin=_caller(), name=name)
            seen.add(name.lower())

    def _derived(self, columns: Mapping[str, str]) -> list[Derived]:
        return [Derived(self._name(name), self._text(expression)) for name, expression in columns.items()]

    def _columns(self, columns: list[Derived]) -> tuple[Derived, ...]:
        if not columns:
            raise self._bad("the step names no column")
        self._check_once([column.name for column in columns])
        return tuple(columns)

    def _on(self, on: On) -> tuple[tuple[str, str], ...]:
        pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in ([on] if isinstance(on, str) else on))
        if not pairs:
            raise self._bad("on= names no column")
        return tuple((self._name(left), self._name(right)) for left, right in pairs)

    def _take(self, take: Take) -> tuple[tuple[str, str], ...]:
        pairs = tuple(take.items()) if isinstance(take, Mapping) else tuple((name, name) for name in ([take] if isinstance(take, str) else take))
        if not pairs:
            raise self._bad("take= names no column")
        self._check_once([name for name, _ in pairs])
        return tuple((self._name(name), self._name(column)) for name, column in pairs)

    def _one_of(self, value: Any, choices: Any, what: str) -> Any:
        if value not in get_args(choices):
            raise self._bad(f"{what}={value!r} must be one of {', '.join(get_args(choices))}")
        return value


def declared_at(flow: Flow, stream: str) -> Origin:
    """Return the line in which a flow declares a stream with its columns; it may read it elsewhere before."""
    return flow._declared_at[stream]


def _caller() -> Origin:
    """Return the first line outside this package on the way up: the user's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)


def _visit(node: Node, order: dict[Node, None]) -> None:
    if node not in order:
        for given in node.inputs:
            _visit(given, order)
        order[node] = None


def _refresh(flow: Flow, text: str) -> Refresh:
    words = str(text).strip().lower()
    if words == "on_demand":
        return Refresh("on_demand")
    if words == "immediate":
        return Refresh("immediate")
    every = _EVERY.fullmatch(words)
    try:
        every_us = duration_us(every[1], what="refresh") if every else 0
    except BadFreshness as error:
        raise BadDeclaration(flow=flow.name, origin=flow.origin, reason=f"refresh={text!r} {_REFRESHES} ({error.context['reason']})") from error
    if every_us <= 0:
        raise BadDeclaration(flow=flow.name, origin=flow.origin, reason=f"refresh={text!r} {_REFRESHES}")
    return Refresh("every", every_us)
