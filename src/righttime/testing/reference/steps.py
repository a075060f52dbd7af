"""Operators: threads that never end, each on its own job.

In: rows of one job from each input pipe.
Out: rows of the same job to every consumer.
Promise: a step reads no row of another job than its own (`read_point`), begins each job clean, and goes on only when all inputs have ended the job.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from righttime.testing.reference.engine import Engine
from righttime.testing.reference.joins import On
from righttime.testing.reference.pipes import END, Item, Pipe
from righttime.testing.reference.rows import Delta, EndOfTask, Row, Signed, weight
from righttime.testing.reference.staging import Staging, Write, Zone

Rows = Iterable[Signed]


class Step:
    """One operator. Subclasses say what happens at the start, at a row and at the end of a job (A9)."""

    serial = False  # class b: reads and writes the same outer state, so it starts a job after the commit of the one before

    def __init__(self, engine: Engine, name: str, inputs: "Sequence[Step | str]", *, zones: Sequence[Zone] = ()) -> None:
        self.name, self._engine, self._zones = name, engine, zones
        self._generation, self._first = engine.generation, engine.chain.last_finished.tid + 1
        self._outputs: list[Pipe] = []
        self.pipes = [engine.pipe(source) for source in inputs]
        self.read_point = 0
        self.finished = 0
        self.taken: list[int] = []  # the jobs of the rows that were read, in order
        self.emitted: dict[int, list[Signed]] = {}
        engine.add(self)

    def connect(self, pipe: Pipe) -> Pipe:
        """Add a consumer."""
        self._outputs.append(pipe)
        return pipe

    def reset(self, tid: int) -> None:
        """Forget everything of the last job."""

    def take(self, port: int, delta: Delta) -> Rows:
        """Return what a row of input `port` gives at once."""
        return ()

    def end_task(self, task: int) -> None:
        """Act at the end of a task; handed on if there is one input."""
        if len(self.pipes) == 1:
            for pipe in self._outputs:
                pipe.put(EndOfTask(self.read_point, task))

    def finish(self, tid: int) -> Rows:
        """Return what all rows of the job give together."""
        return ()

    def run(self) -> None:
        """Work through the jobs."""
        for tid in count(self._first):
            self._await(tid)
            self._work(tid)

    def _await(self, tid: int) -> None:
        self.wait(lambda: self._engine.may_start(tid, serial=self.serial))

    def _work(self, tid: int) -> None:
        gate = self._engine.options.gate
        with self._engine.changed:
            self.read_point, self._task = tid, 1
            self._engine.changed.notify_all()
        gate(self.name, "start", tid)
        self.reset(tid)
        self.emitted[tid] = []
        self._read(tid)
        self._emit(self.finish(tid))
        for pipe in self._outputs:
            pipe.end(tid)
        gate(self.name, "end", tid)
        with self._engine.changed:
            self.finished = tid
            self._engine.changed.notify_all()
        for zone in self._zones:
            zone.leave()

    def _read(self, tid: int) -> None:
        reading = dict(enumerate(self.pipes))
        while reading:
            port, item = self.wait(lambda: self._poll(reading, tid))
            if item == END:
                del reading[port]
            elif isinstance(item, EndOfTask):
                self.end_task(item.task)
            elif isinstance(item, Delta):
                self._task = item.task
                self._emit(self.take(port, item))
                self._note_taken(item)

    def _note_taken(self, delta: Delta) -> None:
        with self._engine.changed:
            self.taken.append(delta.tid)
            self._engine.changed.notify_all()

    @staticmethod
    def _poll(reading: dict[int, Pipe], tid: int) -> tuple[int, Item | str] | None:
        for port, pipe in reading.items():
            item = pipe.poll(tid)
            if item is not None:
                return port, item
        return None

    def _emit(self, rows: Rows) -> None:
        for op, row in rows:
            self.emitted[self.read_point].append((op, row))
            for pipe in self._outputs:
                pipe.put(Delta(op, row, self.read_point, self._task))

    def deliver(self, table: str, write: Write) -> None:
        """Hand the present job's rows for a target to its sink transaction."""
        self._engine.deliver(self.read_point, table, write, generation=self._generation)

    def wait(self, ready: Callable[[], Any]) -> Any:
        """Wait for a condition, as long as this generation lives."""
        return self._engine.wait(ready, generation=self._generation)


class Map(Step):
    """Each row for itself: filter, derivation, look-up of a key (class c)."""

    def __init__(self, engine: Engine, name: str, source: "Step | str", function: Callable[[Row], Iterable[Row]], *, zones: Sequence[Zone] = ()) -> None:
        super().__init__(engine, name, [source], zones=zones)
        self._function = function

    def take(self, port: int, delta: Delta) -> Rows:
        return [(delta.op, row) for row in self._function(delta.row)]


class Union(Step):
    """All rows of all inputs."""

    def take(self, port: int, delta: Delta) -> Rows:
        return [(delta.op, delta.row)]


class Sort(Step):
    """All rows of a job in order; blocks until the job has ended."""

    def reset(self, tid: int) -> None:
        self._rows: list[Signed] = []

    def take(self, port: int, delta: Delta) -> Rows:
        self._rows.append((delta.op, delta.row))
        return ()

    def finish(self, tid: int) -> Rows:
        return sorted(self._rows, key=lambda signed: signed[1])


class Sums(Step):
    """Signed sums of a job per key, as rows (key, sums, weight) for an additive target. `forgetful=False` is the mistake of never starting clean."""

    def __init__(
        self, engine: Engine, name: str, source: "Step | str", key: Callable[[Row], Row], values: Callable[[Row], Row], *, forgetful: bool = True
    ) -> None:
        super().__init__(engine, name, [source])
        self._key, self._values, self._forgetful = key, values, forgetful
        self._sums: dict[Row, list[Any]] = {}

    def reset(self, tid: int) -> None:
        if self._forgetful:
            self._sums = {}

    def take(self, port: int, delta: Delta) -> Rows:
        sign, values = weight(delta.op), (*self._values(delta.row), 1)
        sums = self._sums.setdefault(self._key(delta.row), [0] * len(values))
        for place, value in enumerate(values):
            sums[place] += sign * value
        return ()

    def finish(self, tid: int) -> Rows:
        return [("I", (key, tuple(sums[:-1]), sums[-1])) for key, sums in self._sums.items() if any(sums)]


class Merger(Step):
    """Each signed row of a job once, whatever further jobs wait behind (A14)."""

    def reset(self, tid: int) -> None:
        self._seen: set[Signed] = set()

    def take(self, port: int, delta: Delta) -> Rows:
        signed: Signed = (delta.op, delta.row)
        if signed in self._seen:
            return ()
        self._seen.add(signed)
        return [signed]


class Updater(Step):
    """Writes the rows of a job into a staging table and publishes its version at the end."""

    def __init__(self, engine: Engine, name: str, source: "Step | str", table: Staging, *, zones: Sequence[Zone] = ()) -> None:
        super().__init__(engine, name, [source], zones=zones)
        self._table = table

    def take(self, port: int, delta: Delta) -> Rows:
        self._table.apply([(delta.op, delta.row)])
        return ()

    def finish(self, tid: int) -> Rows:
        self._table.publish(tid)
        return ()


class Prober(Step):
    """Joins the rows of a job with a staging table: as it is at that moment, or in the version after the job before (A10.3)."""

    def __init__(
        self, engine: Engine, name: str, source: "Step | str", table: Staging, on: On, *, left: bool, versioned: bool, zones: Sequence[Zone] = ()
    ) -> None:
        """`left`: the rows are the left side and the table the right one."""
        super().__init__(engine, name, [source], zones=zones)
        self._table, self._on, self._left, self._versioned = table, on, left, versioned

    def reset(self, tid: int) -> None:
        if self._versioned:
            self.wait(lambda: self._table.published(tid - 1))

    def take(self, port: int, delta: Delta) -> Rows:
        table = self._table.at(delta.tid - 1) if self._versioned else self._table.live
        rows = ([delta.row], list(table)) if self._left else (list(table), [delta.row])
        return [(delta.op, self._on.pair(*pair)) for pair in self._on.pairs(*rows)]


class Matcher(Step):
    """Joins the rows of a job on one side with those on the other, on equal signs."""

    def __init__(self, engine: Engine, name: str, left: "Step | str", right: "Step | str", on: On) -> None:
        super().__init__(engine, name, [left, right])
        self._on = on

    def reset(self, tid: int) -> None:
        self._sides: tuple[list[Signed], list[Signed]] = ([], [])

    def take(self, port: int, delta: Delta) -> Rows:
        self._sides[port].append((delta.op, delta.row))
        others = [row for op, row in self._sides[1 - port] if op == delta.op]
        rows = ([delta.row], others) if port == 0 else (others, [delta.row])
        return [(delta.op, self._on.pair(*pair)) for pair in self._on.pairs(*rows)]
