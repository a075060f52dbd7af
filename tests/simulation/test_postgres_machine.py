"""AT-X9 on PostgreSQL: the same histories as on Delta, and what only a database can do to a warehouse."""

import os
import random
from collections.abc import Callable
from typing import ClassVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from righttime.changes.faults import CrashPoint
from righttime.errors import CommitFailed, DatabaseUnreachable, FreshnessUnavailable
from righttime.query.postgres_queries import PostgresQueries
from tests.simulation.test_state_machine import BOUNDS, CHANGES, POLICIES, SOURCES, TABLES, Machine, counted, run, sources, table_sets, tables
from tests.support.crash import drop_connections, happening_at
from tests.support.list_model import numbers
from tests.support.machine_places import Place, PostgresPlace
from tests.support.postgres import TempPostgres

EXAMPLES = int(os.environ.get("RIGHTTIME_POSTGRES_EXAMPLES", "3"))
WALKS = int(os.environ.get("RIGHTTIME_POSTGRES_WALKS", "3"))
STEPS = 120
POINTS = [CrashPoint.LOG_WRITTEN, CrashPoint.FILES_WRITTEN, CrashPoint.TABLE_COMMITTED, CrashPoint.TABLES_COMMITTED, CrashPoint.LEDGER_BEGUN]
POINTS += [CrashPoint.LEDGER_COMMITTED, CrashPoint.NOTICE_GIVEN]


class PostgresMachine(Machine):
    """Queries in PostgreSQL's SQL, in a session that keeps hot rows from one to the next; vacuums; connections that break, also within a step."""

    server: ClassVar[TempPostgres]

    def __init__(self) -> None:
        super().__init__()
        self.queries: PostgresQueries | None = None

    def new_place(self) -> Place:
        return PostgresPlace(self.server)

    def begin_life(self) -> None:
        self.end_queries()
        super().begin_life()

    def teardown(self) -> None:
        self.end_queries()
        super().teardown()

    def end_queries(self) -> None:
        if self.queries is not None:
            self.queries.close()
        self.queries = None

    @rule(some=table_sets, freshness=st.sampled_from([0, 0, 10]))
    def read_in_sql(self, some: list[str], freshness: float) -> None:
        """PostgreSQL's own SQL over several tables at once sees what the model has at the cut of the receipt."""
        self.queries = self.queries or self.engine.open_queries()
        assert self.queries is not None
        text = " UNION ALL ".join(f"SELECT '{name}' AS t, a::text, b::text FROM {name}" for name in sorted(some))
        try:
            answer = self.queries.sql(text, freshness=freshness, wait=self.wait())
        except FreshnessUnavailable:
            assert self.tight
            return
        cut = numbers(answer.receipt.cut)
        expected = {(name, str(a), str(b)): count for name in some for (a, b), count in self.model.content(name, cut).items()}
        assert counted(answer.arrow()) == expected
        self.receipts.append((answer.receipt, True))

    @rule(table=tables, how=st.sampled_from(["VACUUM", "VACUUM", "VACUUM FULL", "ANALYZE"]))
    def vacuum(self, table: str, how: str) -> None:
        """Rows may move: places of stored rows are found again."""
        if how == "VACUUM FULL":
            self.drop_held()  # it waits for those who read
        assert isinstance(self.place, PostgresPlace)
        with psycopg.connect(self.server.dsn, autocommit=True) as other:
            other.execute(f"{how} {self.place.table_schema}.{table}".encode())

    @rule()
    def connections_break(self) -> None:
        """Between two steps, with no reader at work: everything goes on with new connections."""
        self.drop_held()
        drop_connections(self.wh)

    @rule(source=sources, table=tables, point=st.sampled_from(POINTS), way=st.sampled_from(["log", "warehouse", "care"]))
    def connections_break_in_a_step(self, source: str, table: str, point: CrashPoint, way: str) -> None:
        """A step that loses its connection leaves nothing visible, and the transaction as it was, to be committed by somebody later."""
        self.drop_held()
        self.insert(source, table, "many", 2)
        self.failing = True
        try:
            with happening_at(point, lambda: drop_connections(self.wh)):
                if way == "care":
                    self.materialize([table])
                else:
                    self.commit(source, way, None)
        except (DatabaseUnreachable, CommitFailed):
            pass
        finally:
            self.failing = False
        self.check_all_there()


def wander(machine: PostgresMachine, dice: random.Random, *, bounds: str, steps: int) -> None:
    """Live through one long history, in which what is stored is changed, read and lost; Hypothesis prefers many short ones."""

    def source() -> str:
        return dice.choice(SOURCES)

    def table() -> str:
        return dice.choice(sorted(TABLES))

    def some() -> list[str]:
        return dice.sample(sorted(TABLES), dice.randint(1, 3))

    def changes() -> list[tuple[str, str, int, int]]:
        return [(table(), dice.choice(CHANGES), dice.randint(0, 25), dice.randint(1, 4)) for _ in range(dice.randint(1, 3))]

    def way() -> str:
        return dice.choice(["memory", "memory", "log", "warehouse"])

    moves: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: machine.load(source(), [(table(), dice.randint(1, 9)), (table(), 2)], way())),
        (8, lambda: machine.load_changes(source(), changes(), way())),
        (1, lambda: machine.flush(source(), [])),
        (3, lambda: machine.materialize(some())),
        (4, lambda: machine.read(table(), dice.choice([0, 0, 1, 10]), True)),
        (3, lambda: machine.read_together(some(), dice.choice([0, 10]))),
        (3, lambda: machine.read_as_of(some(), dice.randint(0, 1000), dice.choice([-1, 0, 1]))),
        (2, lambda: machine.read_own(source(), some())),
        (2, lambda: machine.hold(some(), 0)),
        (4, lambda: machine.read_held(dice.randint(0, 2), True)),
        (3, lambda: machine.read_in_sql(some(), 0)),
        (1, lambda: machine.verify(dice.randint(0, 1000))),
        (2, lambda: machine.vacuum(table(), dice.choice(["VACUUM", "VACUUM FULL", "VACUUM FULL"]))),
        (1, lambda: machine.connections_break()),
        (2, lambda: machine.connections_break_in_a_step(source(), table(), dice.choice(POINTS), dice.choice(["log", "warehouse", "care"]))),
        (1, lambda: machine.disk_fails(source(), table(), dice.choice(["write_files", "remove", "commit", "write_state"]), 1, "warehouse")),
        (1, lambda: machine.time_passes(7.0)),
        (1, lambda: machine.open_anew(source(), dice.choice(sorted(POLICIES)))),
        (1, lambda: machine.reopen()),
        (1, lambda: machine.crash()),
        (2, lambda: machine.crash_in_commit(source(), table(), ("warehouse", dice.choice(POINTS)), dice.choice([None, "b1"]), 1, dice.choice([None, 3]))),
    ]
    machine.begin(bounds)
    try:
        for move in dice.choices([move for _, move in moves], [weight for weight, _ in moves], k=steps):
            move()
            machine.bounds_are_kept()
        machine.read_together(list(TABLES), 0)
    finally:
        machine.teardown()


@pytest.mark.parametrize(("seed", "bounds"), [(seed, sorted(BOUNDS)[seed % len(BOUNDS)]) for seed in range(WALKS)])
def test_at_x9_a_long_history_in_postgresql_gives_the_answers_of_the_list_model(postgres: TempPostgres, seed: int, bounds: str) -> None:
    """Producers of every policy, unique keys, cuts in the past, held readers, failing steps, kills: every row once, every cut honoured."""
    wander(machine_on(postgres)(), random.Random(seed), bounds=bounds, steps=STEPS)


@pytest.mark.timeout(1800)
def test_at_x9_any_history_in_postgresql_gives_the_answers_of_the_list_model(postgres: TempPostgres) -> None:
    """The same rules in any order, as Hypothesis finds them."""
    run(EXAMPLES, machine=machine_on(postgres))


def machine_on(postgres: TempPostgres) -> type[PostgresMachine]:
    class OnThisServer(PostgresMachine):
        server = postgres

    return OnThisServer
