"""The work of a process that is going to be killed: it runs a plan on a warehouse and notes what every call returned.

In: a warehouse folder, a plan, a journal file.
Out: one journal line before each call (`begin`) and one after it (`done`), in the page cache, where SIGKILL cannot reach them.
Promise: what the journal calls done was returned to a caller; nothing is noted that was not.
"""

import json
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import righttime as rt
from righttime.catalyst.messages import Published
from righttime.catalyst.policies import Policy
from righttime.catalyst.producer import Producer
from righttime.errors import CommitFailed
from tests.support.crash_plan import BOUNDS, COLUMNS, SOURCES, TABLES, Chore, Load, Plan, Step

# Far beyond the arrival that any test asks for: a point that the work does not reach ends it, and the test with it.
STEPS_MAX = 600
_RETRIES_MAX = 20


class Journal:
    """Lines appended with one system call each, so that lines of several threads never mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts).encode() + b"\n")


class Work:
    """One process's use of a warehouse."""

    def __init__(self, folder: Path, plan: Plan, journal: Journal) -> None:
        self.warehouse = rt.open(folder, **BOUNDS)
        self._journal = journal
        for name, options in TABLES.items():
            self.warehouse.create_table(name, COLUMNS, if_not_exists=True, **options)
        self._producers = {source: self.warehouse.producer(name=source, policy=policy_of(plan.policies[source])) for source in SOURCES}
        journal.note(event="open")

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._journal.note(event="begin", step=step.key)
            facts = self._load(step) if isinstance(step, Load) else self._chore(step)
            self._journal.note(event="done", step=step.key, **facts)

    def _load(self, load: Load) -> dict[str, Any]:
        return commit_load(self._producers[load.source], load)

    def _chore(self, chore: Chore) -> dict[str, Any]:
        if chore.kind == "materialize":
            return {"state": self.warehouse.materialize(*chore.tables)}
        if chore.kind == "gc":
            return {"removed": sum(found.files for found in self.warehouse.gc().values())}
        if chore.kind == "read":
            return {"rows": self.warehouse.read(chore.tables[0] if chore.tables else "sale").arrow().num_rows}
        if chore.kind == "flush":
            self._producers[chore.source].flush(*chore.tables)
            return {}
        # What an earlier crash may have left: data files of ours that no version knows.
        for table in chore.tables or TABLES:
            (self.warehouse.path / "tables" / table / f"rt-{secrets.token_hex(16)}.parquet").write_bytes(b"PAR1")
        return {}


def commit_load(producer: Producer, load: Load) -> dict[str, Any]:
    """Insert a load's rows, some one by one and some together, change them, and end the transaction; return what the producer said."""
    for table in load.rows:
        rows = load.rows_of(table)
        given = [(*row[:3], "draft") for row in rows] if load.changes == "draft" else rows
        for row in given[:1]:
            producer.insert(table, row)
        producer.insert_many(table, given[1:])
        if load.changes == "draft":
            for source, number, line, pad in rows:
                producer.update(table, {"pad": pad}, {"source": source, "load": number, "line": line})
    if load.changes == "extra":
        producer.insert("sale", (load.source, load.number, 99, "one too many"))
        producer.delete("sale", {"source": load.source, "load": load.number, "line": 99})
    if load.changes == "touch":
        producer.update("sale", {"line": rt.expr("line + 0")}, "source = ? AND load = ?", parameters=[load.source, load.number - 1])
    if not load.kept:
        producer.rollback()
        return {}
    done = _committed(producer, load)
    return {"number": done.commit.number, "replayed": done.replayed}


def _committed(producer: Producer, load: Load) -> Published:
    """Commit, and again where others were in the way: that is what the error says to do."""
    for _ in range(_RETRIES_MAX):
        try:
            return producer.commit(durability=load.durability, batch_id=load.batch_id)  # type: ignore[arg-type]
        except CommitFailed as error:
            if error.context["step"] != "capture":
                raise
    raise AssertionError(f"{load.key} was never taken")


def policy_of(name: str) -> Policy:
    policies: dict[str, Policy] = {
        "immediate": rt.Immediate(),
        "on demand": rt.OnDemand(),
        "every": rt.Every("20ms"),
        "load aware": rt.LoadAware(load_max=0.01, every="30ms"),
    }
    return policies[name]


def run_plan(folder: Path, journal_path: Path, plan: Plan, *, threads: bool) -> None:
    """Open the warehouse and work until killed, in one thread or in one per source and one for the chores."""
    journal = Journal(journal_path)
    work = Work(folder, plan, journal)
    if not threads:
        work.run(_first(plan.steps(), STEPS_MAX))
        return
    roads: list[Iterator[Step]] = [*(plan.loads(source) for source in SOURCES), plan.chores()]
    started = [threading.Thread(target=work.run, args=(_first(road, STEPS_MAX // 4),), daemon=True) for road in roads]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def _first(steps: Iterator[Step], count: int) -> Iterator[Step]:
    return (step for step, _ in zip(steps, range(count), strict=False))
