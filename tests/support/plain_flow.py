"""A flow without Spark, for tests of cutting and publishing: the target is its stream, row for row.

In: a warehouse, the name of a keyed stream and of a table with the same columns.
Out: a runner whose engine is a dictionary.
Promise: the runner, the catalyst and the streams are the real ones; only the drain is computed in plain Python, and a test can hold it up.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from righttime.client import Warehouse
from righttime.flows.catalogue import Generation
from righttime.flows.content import TargetContent
from righttime.flows.jobs import FlowJob
from righttime.flows.runner import FlowRunner, Mode
from righttime.flows.schedule import Schedule, Triggers
from righttime.flows.work import Work
from righttime.pipeline.careful import DrainGivenUp
from righttime.pipeline.flow import Flow
from righttime.queues.streams import Streams

OPERATIONS = {(False, True): "insert", (True, True): "update", (True, False): "delete"}


def until(wh: Warehouse, condition: Callable[[], bool]) -> None:
    """Wait for what other threads do; the clock of a test stands still meanwhile."""
    pause = threading.Event()
    for _ in range(2000):
        with wh._writer("test").catalyst.lock:
            if condition():
                return
        pause.wait(0.01)
    raise AssertionError("it did not happen in 20 s")


class PlainEngine:
    """Keeps each target's rows by key; `gate` is waited for before a drain is computed."""

    def __init__(self, targets: dict[str, str], keys: Sequence[str], *, factor: int = 1) -> None:
        self.factor = factor  # of every `v` or `qty`, so that there can be another declaration
        self.targets = targets  # table to stream
        self.keys = keys
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {table: {} for table in targets}
        self.drains: list[list[int]] = []
        self.given_up = False
        self.gate = threading.Event()
        self.gate.set()

    def load(self, streams: Streams, horizon_us: int) -> None:
        """Begin with what the streams were at the horizon of the last published job: a dictionary does not outlive its process."""
        for table, stream in self.targets.items():
            for change in streams.table(stream, 0, horizon_us).to_pylist():
                row = {name: value for name, value in change.items() if not name.startswith("_")}
                key = tuple(row[name] for name in self.keys)
                if change["_w"] > 0:
                    self.rows[table][key] = row
                else:
                    del self.rows[table][key]

    def drain(self, jobs: Sequence[FlowJob]) -> "PlainDrained":
        assert self.gate.wait(30)
        if self.given_up:
            raise DrainGivenUp
        self.drains.append([job.number for job in jobs])
        return PlainDrained({job.number: {table: self._lines(table, job) for table, stream in self.targets.items() if stream in job.inputs} for job in jobs})

    def give_up(self) -> None:
        self.given_up = True
        self.gate.set()

    @property
    def is_scattered(self) -> bool:
        return False

    def compact(self, up_to_job: int) -> None:
        raise AssertionError("there are no files")

    def forget(self) -> None:
        self.rows = {table: {} for table in self.targets}

    def _lines(self, table: str, job: FlowJob) -> pa.Table:
        changes = job.inputs[self.targets[table]].to_pylist()
        before = dict(self.rows[table])
        for change in changes:
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            if self.factor != 1:
                row["v" if "v" in row else "qty"] *= self.factor
            key = tuple(row[name] for name in self.keys)
            if change["_w"] > 0:
                self.rows[table][key] = row
            else:
                del self.rows[table][key]
        after = self.rows[table]
        changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        lines = [{**(after.get(key) or before[key]), "_job": job.number, "_op": OPERATIONS[key in before, key in after]} for key in sorted(changed)]
        names = [*(name for name in job.inputs[self.targets[table]].column_names if not name.startswith("_")), "_job", "_op"]
        schema = pa.schema([*(job.inputs[self.targets[table]].schema.field(name) for name in names[:-2]), ("_job", pa.int64()), ("_op", pa.string())])
        return pa.Table.from_pylist(lines, schema=schema)


class TotalEngine(PlainEngine):
    """Keeps in each target one row with the sum of `qty` and the number of rows of its stream, by adding up and taking away, as an aggregate does."""

    def __init__(self, targets: dict[str, str], keys: Sequence[str], *, factor: int = 1) -> None:
        super().__init__(targets, keys, factor=factor)
        self._totals = dict.fromkeys(targets, (0, 0))

    def _lines(self, table: str, job: FlowJob) -> pa.Table:
        before = qty, rows = self._totals[table]
        for change in job.inputs[self.targets[table]].to_pylist():
            qty, rows = qty + change["_w"] * (change["qty"] or 0), rows + change["_w"]
        self._totals[table] = qty, rows
        assert rows >= 0
        schema = pa.schema([("one", pa.int32()), ("qty", pa.int64()), ("n", pa.int64()), ("_job", pa.int64()), ("_op", pa.string())])
        operation = OPERATIONS[before[1] > 0, rows > 0] if before[1] or rows else None
        return pa.Table.from_pylist([{"one": 1, "qty": qty, "n": rows, "_job": job.number, "_op": operation}] if operation else [], schema=schema)


class PlainDrained:
    """What a drain made."""

    def __init__(self, lines: dict[int, dict[str, pa.Table]]) -> None:
        self._lines = lines

    def unmet(self, number: int) -> dict[str, int]:
        return {}

    def of_job(self, number: int) -> Iterator[tuple[str, pa.Table]]:
        return ((table, lines) for table, lines in self._lines.get(number, {}).items() if lines.num_rows)

    def close(self) -> None:
        """Nothing is in files."""


def run_plain(
    wh: Warehouse,
    targets: dict[str, str],
    *,
    keys: Sequence[str] = ("k",),
    triggers: Triggers | None = None,
    mode: Mode = "on_demand",
    rebuild: bool = False,
    factor: int = 1,
    held: bool = False,
    relieved: bool = False,
    name: str = "plain",
    refresh: str | None = None,
    kind: "type[PlainEngine] | None" = None,
) -> tuple[FlowRunner, PlainEngine]:
    """Maintain tables that are copies of streams; call `runner.stop()` before the warehouse is closed. With `refresh`, as a flow declared so is scheduled.

    Targets that grow large are stored if it is `relieved`.
    """
    flows, parts = wh._flows("test"), wh._writer("test")
    engine = (kind or PlainEngine)(targets, keys, factor=factor)
    if held:
        engine.gate.clear()
    generation = Generation(1, 1, "", tuple(sorted(set(targets.values()))), tuple(targets))
    link = flows.attention.attend(f"flow.{name}", generation)
    engine.load(flows.feed.streams, 0 if rebuild else link.horizon_us)
    link.loose = mode == "near_real_time"
    work = Work(
        catalyst=parts.catalyst,
        feed=flows.feed,
        taps=flows.taps,
        engine=engine,
        content=lambda table, anew: TargetContent(parts.schemas[table], parts.images, parts.settings, anew=anew),
        make_room=lambda table, nbytes, wait_s: parts.room.make(parts.schemas[table], nbytes, wait_s=wait_s),
        relieve=lambda link: flows._relieve(link, engine) if relieved else None,
        rebuilt=lambda horizon_us: flows.attention.rebuilt(f"flow.{name}", generation, horizon_us),
        settings=parts.settings,
        cores=2,
    )
    schedule = Schedule(triggers or Triggers(rows_max=10**9), rows=0, now_s=parts.clock.monotonic_s())
    if refresh is not None:
        declared = Flow(name, refresh=refresh)
        for table, stream in targets.items():
            declared.stream(stream).into(table, keys=keys)
        schedule = flows._schedule(declared, link, mode)
    runner = FlowRunner(link, generation.streams, generation.targets, schedule, work, mode=mode, rebuild=rebuild)
    runner.start()
    return runner, engine
