"""The judge: compares a warehouse that was reopened after a kill with what the killed process was told.

In: the journals of all runs on one folder, and the warehouse.
Out: assertions that name the load and what is wrong with it.
Promise: knows nothing of the inside; rows, cuts, losses and files are what any user can see.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta  # type: ignore[import-untyped]
import pyarrow as pa
from deltalake import DeltaTable

import righttime as rt
from righttime.ledger.state import State
from righttime.query.answer import Answer
from tests.support.crash_plan import BOUNDS, COLUMNS, SOURCES, TABLES, Load, Plan
from tests.support.crash_work import commit_load

Seen = dict[str, dict[str, Counter[tuple[int, str]]]]
Answers = dict[str, Answer]


@dataclass(frozen=True, slots=True)
class Told:
    """What the journal says of one step: when it began and ended (line numbers), and what it returned."""

    begun: int
    done: int | None
    facts: Mapping[str, Any]


@dataclass(slots=True)
class Run:
    """One killed process."""

    plan: Plan
    told: dict[str, Told]
    loads: dict[str, Load]

    @classmethod
    def read(cls, journal: Path, plan: Plan) -> "Run":
        told: dict[str, Told] = {}
        for place, line in enumerate(journal.read_text().splitlines() if journal.exists() else ()):
            facts = json.loads(line)
            if facts["event"] == "begin":
                told[facts["step"]] = Told(place, None, {})
            elif facts["event"] == "done":
                told[facts["step"]] = Told(told[facts["step"]].begun, place, facts)
        return cls(plan, told, dict(_begun_loads(plan, told)))

    def acknowledged(self, source: str) -> Iterator[tuple[Load, int]]:
        """Yield the commits that returned, with their numbers, in order."""
        for load in self.loads.values():
            if load.source == source and "number" in self.told[load.key].facts:
                yield load, self.told[load.key].facts["number"]

    def in_flight(self, source: str) -> Load | None:
        """Return the commit that had begun and not returned."""
        return next((load for load in self.loads.values() if load.source == source and load.kept and self.told[load.key].done is None), None)

    def safe_from(self) -> int:
        """Return the line before which every commit that was in the catalyst had to be safe: the begin of the last durable step that returned."""
        return max((told.begun for key, told in self.told.items() if told.done is not None and self._durable(key)), default=-1)

    def materialized_from(self) -> int:
        """Return the line before which every commit, however lazy, had to be stored or logged."""
        return max((told.begun for key, told in self.told.items() if told.done is not None and key.startswith("materialize")), default=-1)

    def _durable(self, key: str) -> bool:
        load = self.loads.get(key)
        return key.startswith("materialize") or (load is not None and load.kept and load.durable)


def _begun_loads(plan: Plan, told: Mapping[str, Told]) -> Iterator[tuple[str, Load]]:
    for source in SOURCES:
        for load in plan.loads(source):
            if load.key not in told:
                break
            yield load.key, load


@dataclass(slots=True)
class Judge:
    """What is known of one folder over all its runs."""

    folder: Path
    there: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    loads: dict[str, Load] = field(default_factory=dict)
    last_numbers: dict[str, int] = field(default_factory=dict)
    losses: int = 0

    def open(self) -> rt.Warehouse:
        return rt.open(self.folder, **{**BOUNDS, "file_grace_s": 0})

    def after_kill(self, run: Run, *, expected_there: bool | None = None) -> None:
        """Check the reopened warehouse against a run; `expected_there` says, if known, whether the commit in flight made it."""
        self.loads.update(run.loads)
        with self.open() as warehouse:
            answers = read_all(warehouse)
            seen = visible(answers)
            self.check_whole(seen)
            self._check_kept(run, seen)
            positions = self._positions(answers)
            for source in SOURCES:
                self._check_source(run, source, seen, position=positions[source], expected_there=expected_there)
            self._check_losses(warehouse, run, positions)
            self.check_stored(answers)
            self.there, self.gone = set(seen), set(self.loads) - set(seen)

    def check_whole(self, seen: Seen) -> None:
        """Nothing twice, nothing half, nothing that was never committed, nothing lost come back."""
        for key, tables in seen.items():
            load = self.loads.get(key)
            assert load is not None and load.kept, f"{key} was never committed"
            assert key not in self.gone, f"{key} was lost and came back"
            wanted = {table: Counter((line, pad) for _, _, line, pad in load.rows_of(table)) for table, rows in load.rows.items() if rows}
            assert tables == wanted, f"{key}: {_short(tables)} instead of {_short(wanted)}"
        assert self.there <= seen.keys(), f"stored before and gone now: {sorted(self.there - seen.keys())}"

    def _check_kept(self, run: Run, seen: Seen) -> None:
        handed_over, stored = run.safe_from(), run.materialized_from()
        for key, told in run.told.items():
            load = run.loads.get(key)
            if load is None or not load.kept or not load.has_rows or told.done is None:
                continue
            lazy = run.plan.policies[load.source] != "immediate"
            assert key in seen or not load.durable, f"{key} was acknowledged as {load.durability} and is lost"
            assert key in seen or lazy or told.done > handed_over, f"{key} was in the catalyst when a later durable commit began, and is lost"
            assert key in seen or told.done > stored, f"{key} was committed before everything was materialized, and is lost"

    def _check_source(self, run: Run, source: str, seen: Seen, *, position: int, expected_there: bool | None) -> None:
        """The commits of a source that are there are exactly those up to its position."""
        last = self.last_numbers.get(source, 0)
        for load, number in run.acknowledged(source):
            assert number == last + 1, f"{load.key} is commit {number} after commit {last}"
            last = number
            assert not load.has_rows or (load.key in seen) == (number <= position), f"{load.key} is commit {number}, the position is {position}"
        flying = run.in_flight(source)
        if flying is not None and flying.has_rows:
            there = flying.key in seen
            assert there == (position == last + 1), f"{flying.key} in flight, position {position}, last acknowledged {last}"
            assert expected_there in (None, there) or not flying.one_step, f"{flying.key} was in flight; there: {there}, expected: {expected_there}"

    def _check_losses(self, warehouse: rt.Warehouse, run: Run, positions: Mapping[str, int]) -> None:
        """Every acknowledged commit that is not there is reported, by its number and with its rows; nothing else is."""
        found = warehouse.losses()[self.losses :]
        assert len(found) == len({loss.source for loss in found}), f"reported twice: {found}"
        for source in SOURCES:
            position = positions[source]
            lost = [(number, load.row_count) for load, number in run.acknowledged(source) if number > position]
            reported = [(loss.first, loss.last, loss.rows) for loss in found if loss.source == source]
            flying = run.in_flight(source)
            last = max([self.last_numbers.get(source, 0), position, *(number for _, number in run.acknowledged(source))])
            possible = [_span(lost)] if flying is None else [_span(lost), _span([*lost, (last + 1, flying.row_count)])]
            assert reported in possible, f"{source}: {reported} reported, lost {possible}"
            self.last_numbers[source] = max([last, *(loss.last for loss in found if loss.source == source)])
        self.losses += len(found)

    def _positions(self, answers: Answers) -> dict[str, int]:
        """Return the number of each source's last durable commit; answers have to agree as far as they name the source."""
        positions = {source: commit.number for source, commit in newest_state(self.folder).positions.items()}
        for table, answer in answers.items():
            for cut in answer.receipt.cut:
                assert cut.last_inside.number == positions.get(cut.source, 0), f"{table}: {cut}, the ledger says {positions}"
        return dict.fromkeys(SOURCES, 0) | positions

    def check_stored(self, answers: Answers) -> None:
        """Any Delta reader sees, at the ledger's version and at the newest, the stored rows and no others."""
        state = newest_state(self.folder)
        for table, answer in answers.items():
            (about,) = answer.receipt.tables
            newest = DeltaTable(str(self.folder / "tables" / table))
            versions = {state.tables[table].version, newest.version()}
            for version in versions:
                newest.load_as_version(version)
                stored = _bag(newest.to_pyarrow_table())
                assert stored.total() == about.rows_stored, (
                    f"{table}: {stored.total()} rows in version {version} of {versions}, the receipt says {about.rows_stored}"
                )
                assert stored <= _bag(answer.arrow()), f"{table}: version {version} of {versions} has rows that no query sees"
            assert about.rows_stored + about.rows_hot - about.rows_hidden == answer.arrow().num_rows

    def check_in_duckdb(self) -> None:
        """A reader that shares no code with us sees the same rows at the ledger's version and at the newest."""
        (extension,) = Path(str(duckdb_extension_delta.__file__)).parent.glob(f"extensions/v{duckdb.__version__}/*.duckdb_extension")
        with duckdb.connect() as duck:
            duck.execute(f"LOAD '{extension}'")
            for name, table in newest_state(self.folder).tables.items():
                folder = self.folder / "tables" / name
                wanted = _bag(DeltaTable(str(folder), version=table.version).to_pyarrow_table())
                for version in ("", f", version={table.version}"):
                    assert _bag(duck.execute(f"FROM delta_scan('{folder}'{version})").to_arrow_table()) == wanted

    def use_again(self, run: Run) -> None:
        """Replay batches (I7), load in every way, materialize, collect and reopen; leave nothing behind that nobody needs."""
        with self.open() as warehouse:
            for table, options in TABLES.items():
                warehouse.create_table(table, COLUMNS, if_not_exists=True, **options)
            for source in SOURCES:
                with warehouse.producer(name=source) as producer:
                    self._replay(producer, run, source)
                    self._load_anew(producer, run, source)
            before = visible(read_all(warehouse))
            self.check_whole(before)
            assert before.keys() == self.there
            warehouse.materialize()
            warehouse.gc()
            answers = read_all(warehouse)
            assert visible(answers) == before
            self.check_stored(answers)
            self.check_nothing_left()
            losses = warehouse.losses()
        assert not [*self.folder.glob("spill/*")], "closed, and spilled rows are left"
        with self.open() as warehouse:
            answers = read_all(warehouse)
            assert visible(answers) == before
            assert warehouse.losses() == losses
            self.last_numbers = {source: max(number, self.last_numbers.get(source, 0)) for source, number in self._positions(answers).items()}

    def _replay(self, producer: Any, run: Run, source: str) -> None:
        batches = [load for load in run.loads.values() if load.source == source and load.has_batch and load.kept]
        for load in batches[-4:]:
            known = load.key in self.there
            told = commit_load(producer, load)
            # Whether a batch without rows got there cannot be seen; that it does no harm can.
            assert not load.has_rows or told["replayed"] == known, f"batch {load.key}: {told}, there before: {known}"
            assert not told["replayed"] or told["number"] == run.told[load.key].facts.get("number", told["number"])
            if load.has_rows:
                self.there.add(load.key)
                self.gone.discard(load.key)

    def _load_anew(self, producer: Any, run: Run, source: str) -> None:
        for place, durability in enumerate(("memory", "log", "memory", "warehouse", "memory")):
            load = Load(source, -len(self.loads) - 1, {"sale": 1 + place, "stock": 2}, durability, wide=False, has_batch=False, kept=True)
            self.loads[load.key] = load
            self.there.add(load.key)
            commit_load(producer, load)

    def check_nothing_left(self) -> None:
        """After a materialization and a collection only what is in use is on the disk."""
        for table in TABLES:
            folder = self.folder / "tables" / table
            used = {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
            found = {path.name for path in folder.iterdir()} - {"_delta_log", "_staging"}
            assert found == used, f"{table}: left over {sorted(found - used)}, missing {sorted(used - found)}"
            assert not [*folder.glob("_delta_log/*.tmp")]
        assert {path.name for path in self.folder.iterdir() if not path.name.startswith("ledger.db")} <= {
            "writer.lock",
            "trace.bin",
            "log",
            "spill",
            "tables",
            "producers.json",
            "streams",
        }
        assert not [*(self.folder / "log").iterdir()], "everything is stored, and the log is not empty"


def read_all(warehouse: rt.Warehouse) -> Answers:
    """Read every table."""
    return {table: warehouse.read(table) for table in warehouse.tables()}


def visible(answers: Answers) -> Seen:
    """Return every row that a user can read, by load and table."""
    seen: Seen = defaultdict(dict)
    for table, answer in answers.items():
        for (source, load, line, pad), count in _bag(answer.arrow()).items():
            seen[f"{source}-{load}"].setdefault(table, Counter())[line, pad] = count
    return dict(seen)


def newest_state(folder: Path) -> State:
    """Return the newest durable state, read from the ledger as another program would."""
    connection = sqlite3.connect(f"file:{folder / 'ledger.db'}?mode=ro", uri=True)
    try:
        ((text,),) = connection.execute("SELECT json FROM state ORDER BY number DESC LIMIT 1").fetchall()
    finally:
        connection.close()
    return State.from_json(text)


def _span(lost: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(lost[0][0], lost[-1][0], sum(rows for _, rows in lost))] if lost else []


def _bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(rows.column(name).to_pylist() for name in ("source", "load", "line", "pad")), strict=True))


def _short(tables: Mapping[str, Counter[tuple[int, str]]]) -> dict[str, dict[int, int]]:
    return {table: {line: count for (line, _), count in lines.items()} for table, lines in tables.items()}
