"""The plan of one drain: the steps of a flow as one set of Spark frames, nothing of it run yet.

In: an analysed flow, the changes of its streams tagged with job numbers, what earlier drains left as state.
Out: everything the drain has to give: lines of targets, rows of state, dead letters, unmet expectations.
Promise: steps whose inputs are known to be empty are left out, with all that hangs on them; columns that nobody uses are not carried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import SparkSession

from righttime.pipeline import stateless
from righttime.pipeline.again import Again, signed_again
from righttime.pipeline.analysis import Analysed
from righttime.pipeline.following import Follows, LinesCounted, changes_kept
from righttime.pipeline.guard import Guard
from righttime.pipeline.kept import Kept, remembered, taken, types_of
from righttime.pipeline.nodes import (
    Aggregate,
    Apply,
    AsOf,
    Derive,
    Derived,
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
from righttime.pipeline.operators.aggregate import aggregate
from righttime.pipeline.operators.distinct import distinct
from righttime.pipeline.operators.history import as_of, history
from righttime.pipeline.operators.join import join, left_join, lookup, lookup_or_null
from righttime.pipeline.operators.query import Frame, Query, Reach, quoted
from righttime.pipeline.operators.signed import JOB, Parts, Signed, unite
from righttime.pipeline.operators.target import KEYS, OPERATION, additive_target, aggregated_target, keyed_target
from righttime.pipeline.reach import States
from righttime.pipeline.shared import Inputs, Shared
from righttime.pipeline.spans import Spans, Traced
from righttime.pipeline.step_columns import arrow_schema


@dataclass(frozen=True)
class Output:
    """One thing that a drain gives. `step` is the id of the step, or the table of a target; `part` names a part of its state.

    `no_key`: rows for a target that have a null in their key. `follows` says how its rows can be had without Spark, where they can.
    """

    kind: Literal["target", "state", "dead_letter", "expectation", "no_key"]
    step: str
    part: str
    frame: Frame
    follows: Follows | None = None

    def column(self, place: int) -> str:
        """Return the name under which it is collected, as the one at this place; what has the same columns may have the same name."""
        return f"c{place}" if self.kind in ("target", "state") else "notes"


class Plan:
    """Builds the frames of one drain."""

    def __init__(
        self,
        analysed: Analysed,
        child: SparkSession,
        inputs: Inputs,
        states: States,
        jobs: range,
        guard: Guard,
        *,
        reach: Reach = "sent",
        spans: Mapping[str, Spans] | None = None,
        again: Again | None = None,
        serves_again: bool = False,
        few: bool = False,
    ) -> None:
        """`again` has rows that steps could not take before; whoever gives some knows nothing of the `spans`. `serves_again`: for other changes, too.

        `few`: the changes have few rows; with more of them the outcome is the same, and may take long.
        """
        self._analysed = analysed
        self._child = child
        self._again = again or {}
        self._reach = reach
        self._few = few
        self._inputs = inputs
        self._guard = guard
        self._deltas: dict[Node, Signed | None] = {}
        self.kept = Kept(analysed, child, states, jobs, self.traced(spans or {}), reach=reach, serves_again=serves_again)
        self.shared = Shared(analysed, inputs, self.kept, reach=reach)
        self.outputs: list[Output] = []

    def traced(self, spans: Mapping[str, Spans]) -> Traced:
        """Return where the values of columns come from in this plan, for changes between these."""
        return Traced(spans, lambda node: self._deltas[node] is not None)

    def build(self) -> list[Output]:
        """Return all outputs of the drain."""
        targets = self._analysed.flow.targets
        fused = {target.node for target in targets if self._is_fused(target)}
        for step, node in self._analysed.nodes.items():
            if node not in fused:
                self._deltas[node] = self.shared.once(step, node, self._delta(step, node))
        for target in targets:
            self._into(target)
        return self.outputs

    def _delta(self, step: str, node: Node) -> Signed | None:
        if isinstance(node, StreamNode):
            frame = self._inputs.get(node.stream)
            if frame is None:
                return None
            return Signed(self.kept.near(frame), (*self._analysed.schemas[step].names, *self._analysed.carried[step]), self._reach)
        if all(self._deltas[given] is None for given in node.inputs) and step not in self._again:
            return None
        if isinstance(node, Where | Select | Derive | Expect | Apply):
            return self._by_row(step, node)
        if isinstance(node, Union):
            return unite([self._narrow(node, place) for place in range(len(node.parts))])
        made, parts = self._with_state(step, node)
        self._keep(step, parts, {part: follows for part in parts if (follows := changes_kept(node, part)) is not None})
        if made is not None and isinstance(node, Join | Lookup | AsOf):
            # Of what it has joined Spark knows twice that it is in one partition, takes that for something else than once, and would shuffle it.
            made = replace(made, frame=self.kept.near(made.frame))
        return self._guard.settled(step, node, made)

    def _by_row(self, step: str, node: Where | Select | Derive | Expect | Apply) -> Signed | None:
        given = self._with_again(step, node, self._deltas[node.input])
        assert given is not None
        match node:
            case Where():
                return self._guard.rows(step, node, given, lambda rows: stateless.where(rows, node.condition))
            case Select() | Derive():
                return self._guard.rows(step, node, given, lambda rows: self._project(step, node, rows))
            case Expect():
                return self._expect(step, node, given)
            case Apply():
                return self._guard.rows(step, node, given, lambda rows: self._apply(step, node, rows))

    def _with_again(self, step: str, node: Where | Select | Derive | Expect | Apply | Aggregate, given: Signed | None) -> Signed | None:
        """Return what a step is given, and the rows that it is given once more."""
        if step not in self._again:
            return given
        before = self._analysed.ids[node.input]
        rows = signed_again(self._child, self._again[step], self._analysed.schemas[before], self._analysed.carried[before], given)
        return unite([given, replace(rows, frame=self.kept.near(rows.frame), reach=self._reach)])

    def _project(self, step: str, node: Select | Derive, given: Signed) -> Signed:
        used, carried = self._analysed.used[step], self._analysed.carried[step]
        columns = [column for column in node.columns if column.name in used]
        return stateless.project(given, columns, keep=given.columns if isinstance(node, Derive) else carried)

    def _expect(self, step: str, node: Expect, given: Signed) -> Signed | None:
        judged = self._guard.rows(step, node, given, lambda rows: stateless.judge(rows, node.condition))
        if judged is None:
            return None
        on, failed = stateless.expect(judged, node.otherwise)
        self._note("expectation", step, failed, with_row=node.otherwise == "fail")
        return on

    def _apply(self, step: str, node: Apply, given: Signed) -> Signed:
        carried, schema = self._analysed.carried[step], self._analysed.schemas[step]
        names = self._analysed.schemas[self._analysed.ids[node.input]].names
        return stateless.apply(self._only(given, names, carried), node.function, schema, arrow_schema(node.columns), rows=node.rows, system=carried)

    def _with_state(self, step: str, node: Node) -> tuple[Signed | None, Parts]:
        match node:
            case Join():
                return self._join(step, node)
            case Lookup():
                return self._lookup(step, node)
            case AsOf():
                return self._as_of(step, node)
            case Distinct():
                names = self._analysed.schemas[self._analysed.ids[node.input]].names
                return distinct(self._plain(node.input), self.kept.parts(step, lambda traced: traced.keys(node.input, names)))
            case Aggregate():
                given, measures = self._measured(step, node)
                return aggregate(given, self.kept.parts(step, lambda traced: traced.keys(node.input, node.by)), by=node.by, measures=measures)
            case History():
                return self._history(step, node)
            case _:
                raise AssertionError(f"unknown step {node!r}")

    def _join(self, step: str, node: Join) -> tuple[Signed | None, Parts]:
        used = self._analysed.used[step]
        merged = {right for left, right in node.on if left == right}
        names = self._analysed.schemas[self._analysed.ids[node.right]].names
        take = {name: name for name in names if name in used and name not in merged}
        left, right = self._narrow(node), self._narrow(node, 1)
        kept = self.kept.sides(
            step, left, right, (lambda traced: traced.joined(node)[0], lambda traced: traced.joined(node)[1]), always_right=node.how == "left"
        )
        if node.how == "left":
            return left_join(left, right, kept, on=node.on, take=take, types=types_of(self._analysed, step, take))
        return join(left, right, kept, on=node.on, take=take)

    def _lookup(self, step: str, node: Lookup) -> tuple[Signed | None, Parts]:
        left, right, take = self._narrow(node), self._narrow(node, 1), taken(self._analysed, node)
        # Before the rows are read: state may be summed up meanwhile, and what was taken back before is not so in what was read before.
        is_net = self.kept.is_plain(node)
        state = self.kept.sides_of_lookup(node, left, right)
        remember = remembered(node)
        if node.missing == "null":
            types = types_of(self._analysed, step, self._analysed.schemas[step].names)
            return lookup_or_null(left, right, state, on=node.on, take=take, types=types, remember=remember, is_net=is_net)
        if node.missing == "drop":
            return join(left, right, state, on=node.on, take=take, remember=remember)
        found, missing, parts = lookup(left, right, state, on=node.on, take=take, remember=remember)
        if missing is not None:
            self._note("dead_letter", step, missing, with_row=True)
        return found, parts

    def _as_of(self, step: str, node: AsOf) -> tuple[Signed | None, Parts]:
        assert isinstance(node.right, History)
        take = taken(self._analysed, node)
        left, right = self._narrow(node), self._narrow(node, 1)
        start, end = node.right.start, node.right.end
        kept, types = self.kept.sides(step, left, right), types_of(self._analysed, step, take)
        return as_of(left, right, kept, on=node.on, take=take, types=types, start=start, end=end, few=self._few)

    def _history(self, step: str, node: History) -> tuple[Signed | None, Parts]:
        given, schema = self._deltas[node.input], self._analysed.schemas[self._analysed.ids[node.input]]
        assert given is not None
        types = {field.name: field.dataType for field in schema}
        kept = self.kept.parts(step, lambda traced: traced.keys(node.input, node.keys))
        only = replace(given, columns=tuple(schema.names))
        return history(only, kept, keys=node.keys, types=types, key=node.key, key_from=node.key_from, start=node.start, end=node.end)

    def _measured(self, step: str, node: Aggregate) -> tuple[Signed | None, list[Measure]]:
        """Return the rows with one column for each measure's argument, and the measures over these."""
        given = self._with_again(step, node, self._narrow(node))
        if given is None:
            return None, []
        used = self._analysed.used[step]
        measures = [measure for measure in node.measures if measure.name in used]
        columns = {measure.expression: f"__of_{place}" for place, measure in enumerate(measures) if measure.expression != "*"}
        derived = [Derived(name, expression) for expression, name in columns.items()]
        rows = self._guard.rows(step, node, given, lambda rows: stateless.project(rows, derived, keep=node.by))
        return rows, [replace(measure, expression=columns.get(measure.expression, "*")) for measure in measures]

    def _is_fused(self, target: Target) -> bool:
        """Return whether the target is the table of an aggregate's groups, and of nothing else: then it needs no state of its own."""
        node = target.node
        alone = sum(other.node is node for other in self._analysed.flow.targets) == 1
        read = any(node in other.inputs for other in self._analysed.nodes.values())
        return isinstance(node, Aggregate) and set(node.by) == set(target.keys) and alone and not read

    def _into(self, target: Target) -> None:
        node, step = target.node, self._analysed.ids[target.node]
        name = f"into_{target.table}"
        lines: Frame | None
        if self._is_fused(target):
            assert isinstance(node, Aggregate)
            if self._deltas[node.input] is None and step not in self._again:
                return
            given, measures = self._measured(step, node)
            lines, parts = aggregated_target(given, self.kept.parts(name, lambda traced: traced.keys(node.input, node.by)), by=node.by, measures=measures)
        elif target.additive and not self._analysed.is_unique(target):
            lines, parts = additive_target(
                self._plain(node), self.kept.parts(name, lambda traced: traced.keys(node, target.keys)), keys=target.keys, additive=target.additive
            )
        else:
            lines, parts = keyed_target(self._with_key(target), self.kept.parts(name, lambda traced: traced.keys(node, target.keys)), keys=target.keys)
        self._keep(name, parts, {} if self._analysed.casts[target.table] else {KEYS: LinesCounted(target.table, tuple(target.keys))})
        if lines is not None:
            lines = self._cast(target, lines)
            self._guard.lines(node if self._is_fused(target) else target, lines)
            self.outputs.append(Output("target", target.table, "", lines))

    def _cast(self, target: Target, lines: Frame) -> Frame:
        """Return the lines with the types of the table, where it is for Spark to say what a value of one type is in another."""
        casts, columns = self._analysed.casts[target.table], self._analysed.schemas[self._analysed.ids[target.node]].names
        if not casts:
            return lines
        chosen = [f"CAST({quoted(name)} AS {casts[name]}) AS {quoted(name)}" if name in casts else quoted(name) for name in columns]
        with Query(lines) as sql:
            return sql.run(f"SELECT {', '.join([JOB, OPERATION, *chosen])} FROM {sql.view(lines)}")

    def _with_key(self, target: Target) -> Signed | None:
        """Return the changes for a target, without rows that have a null in their key: they are no rows of one key, and each fails by itself."""
        given = self._plain(target.node)
        if given is None or self._analysed.is_unique(target):
            return given
        schema = self._analysed.tables[target.table]
        on, failed = stateless.part_by_null(given, [name for name in target.keys if not schema.field(name).nullable])
        self._note("no_key", target.table, failed, with_row=True)
        return on

    def _narrow(self, reader: Node, place: int = 0) -> Signed | None:
        """Return the changes that a step takes of its input at this place, with no more columns than it needs."""
        given = self._deltas[reader.inputs[place]]
        return None if given is None else replace(given, columns=self._analysed.read_columns(reader, place))

    def _plain(self, node: Node) -> Signed | None:
        """Return the changes of a step with the columns that are used, and no others: a row goes at another time than it came, and is the same row."""
        given, step = self._deltas[node], self._analysed.ids[node]
        return None if given is None else self._only(given, [name for name in self._analysed.schemas[step].names if name in self._analysed.used[step]], ())

    def _only(self, given: Signed, names: list[str], carried: tuple[str, ...]) -> Signed:
        return replace(given, columns=(*names, *carried))

    def _keep(self, step: str, parts: Parts, follows: Mapping[str, Follows]) -> None:
        self.outputs += [Output("state", step, part, frame, follows.get(part)) for part, frame in parts.items()]

    def _note(self, kind: Literal["dead_letter", "expectation", "no_key"], step: str, rows: Signed, *, with_row: bool) -> None:
        self.outputs.append(Output(kind, step, "", stateless.noted(rows, with_row=with_row)))
