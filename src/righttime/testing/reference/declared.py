"""Declared flows on the reference engine: one operator thread for each step, its changes found by computing it twice.

In: a flow.
Out: operators and sinks that keep the flow's targets, job by job.
Promise: slow and plainly right: the changes of a step in a job are what it gives after the job minus what it gave before.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import Node, StreamNode, Target
from righttime.testing.reference.engine import Engine
from righttime.testing.reference.recompute import content, evaluate
from righttime.testing.reference.relations import Relation
from righttime.testing.reference.rows import Delta, Row, listed, without_zeros
from righttime.testing.reference.sinks import BagSink
from righttime.testing.reference.steps import Rows, Step

HIDDEN = ("_since", "_ordinal", "_end")


def build_flow(engine: Engine, flow: Flow, columns: Mapping[str, Sequence[str]]) -> None:
    """Build a flow; rows of a stream are tuples of its columns."""
    steps: dict[Node, DeclaredStep] = {}
    for name, node in flow.nodes().items():
        given = [steps[source] for source in node.inputs]
        steps[node] = Source(engine, name, node, tuple(columns[node.stream])) if isinstance(node, StreamNode) else DeclaredStep(engine, name, node, given)
    for target in flow.targets:
        TargetSink(engine, target, steps[target.node])


class Images:
    """All rows that an input has given so far, by job; ended images stay, for histories."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()
        self._jobs: dict[int, Counter[Row]] = {0: Counter()}

    def finish_job(self, tid: int) -> None:
        """Keep the state after a job."""
        self._jobs[tid] = Counter(self.rows)

    def forget_after(self, tid: int) -> None:
        """Go back to the state after a job."""
        self.rows = Counter(self._jobs[tid])


class DeclaredStep(Step):
    """A step of a flow; its rows are tuples of its columns and of what they carry besides."""

    def __init__(self, engine: Engine, name: str, node: Node, inputs: "Sequence[DeclaredStep | str]") -> None:
        super().__init__(engine, name, inputs)
        self.node = node
        self._sources = [source for source in inputs if isinstance(source, DeclaredStep)]
        self._images = [engine.shared(f"{name} {port}", Images) for port in range(len(inputs))]
        self.columns: tuple[str, ...] = evaluate(node, [Relation(source.columns) for source in self._sources], []).columns if self._sources else ()

    def reset(self, tid: int) -> None:
        self._before = self._output()

    def take(self, port: int, delta: Delta) -> Rows:
        self._images[port].rows[delta.row] += 1 if delta.op == "I" else -1
        return ()

    def finish(self, tid: int) -> Rows:
        after = self._output()
        after.subtract(self._before)
        for images in self._images:
            images.finish_job(tid)
        return listed(without_zeros(after))

    def _output(self) -> Counter[Row]:
        given = [_relation(source.columns, images.rows) for source, images in zip(self._sources, self._images, strict=True)]
        return _bag(evaluate(self.node, given, []))


class Source(DeclaredStep):
    """A stream: gives each image with its time and number, and takes it back, ended, when the row is changed or removed."""

    def __init__(self, engine: Engine, name: str, node: StreamNode, columns: tuple[str, ...]) -> None:
        super().__init__(engine, name, node, [node.stream])
        self.columns = columns

    def reset(self, tid: int) -> None:
        """Nothing is begun anew: the images are the state."""

    def take(self, port: int, delta: Delta) -> Rows:
        known = self._images[0].rows
        if delta.op == "I":
            image = (*delta.row, delta.commit_us, len(known), None)
            known[image] = 1
            return [("I", image)]
        image = next(row for row in known if row[:-3] == delta.row and row[-1] is None)
        ended = (*image[:-1], delta.commit_us)
        self._images[0].rows = Counter({ended if row == image else row: 1 for row in known})
        return [("D", image), ("I", ended)]

    def finish(self, tid: int) -> Rows:
        self._images[0].finish_job(tid)
        return ()


class TargetSink(BagSink):
    """The content of a declared target, as a bag of rows."""

    def __init__(self, engine: Engine, target: Target, source: DeclaredStep) -> None:
        self._target, self._source = target, source
        self._all = engine.shared(f"target {target.table}", Images)
        super().__init__(engine, target.table, source, initial=Counter())

    def finish(self, tid: int) -> Rows:
        for op, row in self._rows:
            self._all.rows[row] += 1 if op == "I" else -1
        self._all.finish_job(tid)
        held = content(self._target, _relation(self._source.columns, self._all.rows).living()).bag()
        self.deliver(self.table, lambda old: held)
        return ()


def _relation(columns: tuple[str, ...], rows: Counter[Row]) -> Relation:
    def fields(row: Row) -> dict[str, Any]:
        carried = {name: value for name, value in zip(HIDDEN, row[len(columns) :], strict=True) if value is not None}
        return {**dict(zip(columns, row, strict=False)), **carried}

    return Relation(columns, [fields(row) for row in rows.elements()])


def _bag(given: Relation) -> Counter[Row]:
    return Counter((*(row[name] for name in given.columns), *(row.get(name) for name in HIDDEN)) for row in given.rows)
