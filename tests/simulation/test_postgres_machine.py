"""AT-X9 on PostgreSQL: the same histories as on Delta, and what only a database can do to a warehouse."""

import os
from typing import ClassVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from righttime.changes.faults import CrashPoint
from righttime.errors import CommitFailed, DatabaseUnreachable, FreshnessUnavailable
from righttime.query.postgres_queries import PostgresQueries
from tests.simulation.long_histories import POINTS, Walk
from tests.simulation.test_state_machine import Machine, counted, run, sources, table_sets, tables
from tests.support.crash import drop_connections, happening_at
from tests.support.list_model import numbers
from tests.support.machine_places import Place, PostgresPlace
from tests.support.postgres import TempPostgres

EXAMPLES = int(os.environ.get("RIGHTTIME_POSTGRES_EXAMPLES", "2"))
WALKS = int(os.environ.get("RIGHTTIME_POSTGRES_WALKS", "2"))


class PostgresMachine(Machine):
    """Queries in PostgreSQL's SQL, in a session that keeps hot rows from one to the next; vacuums; connections that break, also within a step."""

    server: ClassVar[TempPostgres]

    def __init__(self) -> None:
        super().__init__()
        self.queries: PostgresQueries | None = None

    def new_place(self) -> Place:
        return PostgresPlace(self.server)

    @initialize(bounds=st.sampled_from(["roomy", "tight", "forgetful"]))
    def begin(self, bounds: str) -> None:
        """Somebody refers to the table with unique keys: its rows are updated where they are."""
        super().begin(bounds)
        assert isinstance(self.place, PostgresPlace)
        with psycopg.connect(self.server.dsn, autocommit=True) as other:
            other.execute(f"CREATE TABLE {self.place.table_schema}.refers_to_u (a int REFERENCES {self.place.table_schema}.u)".encode())

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


@pytest.mark.parametrize("seed", range(WALKS))
def test_at_x9_a_long_history_in_postgresql_gives_the_answers_of_the_list_model(postgres: TempPostgres, seed: int) -> None:
    """Producers of every policy, unique keys, cuts in the past, held readers, failing steps, kills: every row once, every cut honoured."""
    machine = machine_on(postgres)()
    walk = Walk(machine, seed)
    dice = walk.dice
    walk.run(
        [
            (3, lambda: machine.read_in_sql(walk.some(), 0)),
            (2, lambda: machine.vacuum(walk.table(), dice.choice(["VACUUM", "VACUUM FULL", "VACUUM FULL"]))),
            (1, lambda: machine.connections_break()),
            (2, lambda: machine.connections_break_in_a_step(walk.source(), walk.table(), walk.point(), dice.choice(["log", "warehouse", "care"]))),
        ]
    )


@pytest.mark.timeout(1800)
def test_at_x9_any_history_in_postgresql_gives_the_answers_of_the_list_model(postgres: TempPostgres) -> None:
    """The same rules in any order, as Hypothesis finds them."""
    run(EXAMPLES, machine=machine_on(postgres))


def machine_on(postgres: TempPostgres) -> type[PostgresMachine]:
    class OnThisServer(PostgresMachine):
        server = postgres

    return OnThisServer
