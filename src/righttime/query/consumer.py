"""Consumers: a query's whole way, from its contract to the answer with a receipt.

In: SQL text or a table's name, and how fresh the answer must be.
Out: an `Answer`.
Promise: the user's SQL runs unchanged, in a session of its own, on relations made for this query only.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from righttime.catalyst.producer import OwnRows
from righttime.changes.durations import Duration
from righttime.changes.schema import TableSchema
from righttime.errors import AnswerTooLarge, FreshnessUnavailable, SqlRefused, UnknownColumn, UnknownTable
from righttime.ledger.book import Book
from righttime.ledger.receipts import Receipt, Verification
from righttime.pipeline.spark import SparkOwner
from righttime.pipeline.translate import translated
from righttime.query.answer import Answer
from righttime.query.contract import Contract, make_contract
from righttime.query.digest import answer_digest
from righttime.query.issue import issue_receipt
from righttime.query.parameters import placeholders_text
from righttime.query.postgres_statement import MARK, postgres_statement, views_behind
from righttime.query.question import SqlAnswers
from righttime.query.snapshot import Snapshot, Snapshots, TableSnapshot
from righttime.query.standing import StandingSnapshot
from righttime.query.statement import ReadStatement, read_statement
from righttime.settings import Settings

_VIEWS_DEEP_MAX = 32
Take = Callable[[Sequence[str]], AbstractContextManager[Snapshot]]
"""Gives one state of some tables, until the block ends."""
# What `read_text` writes, and nothing that means anything else in SQL.
_PLAIN_READ = re.compile(r"TABLE (?P<whole>\w+)|SELECT (?P<columns>`\w+`(?:, `\w+`)*) FROM (?P<part>\w+)")


class Consumer(SqlAnswers):
    """Runs queries; safe to call from any thread."""

    def __init__(
        self, snapshots: Snapshots, ledger: Book, spark: SparkOwner, *, schemas: Mapping[str, TableSchema], views: Mapping[str, str], settings: Settings
    ) -> None:
        self._snapshots = snapshots
        self._ledger = ledger
        self._spark = spark
        self._schemas = schemas
        self._views = views
        self._settings = settings
        self._turns = threading.BoundedSemaphore(settings.queries_max)
        self.verifier: Callable[[Receipt], Verification] | None = None
        self.is_stream: Callable[[str], bool] = lambda name: False  # of a name that no table has
        self.rerun_in_database: Callable[[str, Mapping[str, TableSnapshot], Sequence[Any]], pa.Table] | None = None

    def _answer_sql(self, text: str, contract: Contract, parameters: Sequence[Any], own: OwnRows | None) -> Answer:
        return self.sql_on(text, contract, parameters, lambda tables: self._snapshots.take(tables, contract, own=own))

    def sql_on(self, text: str, contract: Contract, parameters: Sequence[Any], take: Take) -> Answer:
        """Answer a statement on what `take` gives of its tables."""
        statement = read_statement(text)
        texts, plan = placeholders_text(statement.placeholders, parameters), self.plan(statement)
        return self.answer(statement.text, texts, contract, take(plan.tables), lambda tables: self.run(statement.text, plan, tables, parameters))

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        as_of: datetime | int | None = None,
    ) -> Answer:
        """Answer with one table, or some of its columns, without Spark."""
        contract = self._contract(freshness, wait, on_late, as_of)
        return self.read_on(table, columns, contract, lambda tables: self._snapshots.take(tables, contract))

    def _contract(self, freshness: Duration | None, wait: Duration | None, on_late: str, as_of: datetime | int | None) -> Contract:
        return make_contract(freshness=freshness, wait=wait, on_late=on_late, as_of=as_of, bound_us=None, wait_default_s=self._settings.wait_s)

    def read_on(self, table: str, columns: Sequence[str] | None, contract: Contract, take: Take) -> Answer:
        """Answer with one table, or some of its columns, as `take` gives it."""
        name = str(table).lower()
        if name not in self._schemas:
            raise UnknownTable.among(table, self._schemas, is_stream=self.is_stream(name))
        chosen = self._chosen(self._schemas[name], columns)
        return self.answer(read_text(name, columns and chosen), (), contract, take([name]), lambda tables: self._rows(tables[name], columns and chosen))

    def hold(
        self,
        names: Sequence[str],
        *,
        freshness: Duration | None = None,
        wait: Duration | None = None,
        on_late: str = "error",
        as_of: datetime | int | None = None,
    ) -> StandingSnapshot:
        """Take one state of some tables, or those behind some views, or of all, for questions to come."""
        contract = replace(self._contract(freshness, wait, on_late, as_of), standing=True)
        tables: set[str] = set()
        self._resolve([str(name).lower() for name in names] or list(self._schemas), tables, {}, depth=0)
        with ExitStack() as held:
            snapshot = held.enter_context(self._snapshots.take(sorted(tables), contract))
            return StandingSnapshot(self, contract, snapshot, held.pop_all())

    def _rows(self, table: TableSnapshot, columns: Sequence[str] | None) -> pa.Table:
        rows = self._snapshots.rows(table)
        return rows if columns is None else rows.select(columns)

    def _chosen(self, schema: TableSchema, columns: Sequence[str] | None) -> list[str]:
        known = {name.lower(): name for name in schema.columns.names}
        if isinstance(columns, str) or (columns is not None and not columns):
            raise UnknownColumn(table=schema.name, column=columns, known=f"given as a list of {', '.join(schema.columns.names)}")
        for column in columns or ():
            if column.lower() not in known:
                raise UnknownColumn(table=schema.name, column=column, known=", ".join(schema.columns.names))
        return [known[column.lower()] for column in columns or ()]

    def plan(self, statement: ReadStatement) -> "Plan":
        """Resolve the names of a query to tables, through views."""
        tables: set[str] = set()
        views: dict[str, str] = {}
        self._resolve(statement.tables, tables, views, depth=0)
        return Plan(tuple(sorted(tables)), views)

    def _resolve(self, names: Sequence[str], tables: set[str], views: dict[str, str], *, depth: int) -> None:
        for name in names:
            if name in self._schemas:
                tables.add(name)
            elif name in self._views and depth < _VIEWS_DEEP_MAX:
                if name not in views:
                    self._resolve(read_statement(self._views[name]).tables, tables, views, depth=depth + 1)
                    views[name] = self._views[name]  # after what it stands on, so that Spark can resolve it
            else:
                raise UnknownTable.among(name, [*self._schemas, *self._views], is_stream=self.is_stream(name))

    def rerun(self, text: str, tables: Mapping[str, TableSnapshot], parameters: Sequence[Any]) -> pa.Table:
        """Run the query of a receipt again, a plain read without Spark."""
        plain = _PLAIN_READ.fullmatch(text)
        if plain is not None and (name := plain["whole"] or plain["part"]) in tables:
            columns = tables[name].schema.columns.names if plain["whole"] else [column[1:-1] for column in plain["columns"].split(", ")]
            if set(columns) <= set(tables[name].schema.columns.names):
                return self._snapshots.rows(tables[name]).select(columns)
        if text.startswith(MARK):
            if self.rerun_in_database is None:  # Spark would read the same words otherwise
                raise SqlRefused(reason="PostgreSQL ran it, and this handle has no session there", way_out="Open the warehouse for writing.")
            return self.rerun_in_database(text, tables, parameters)
        return self.run(text, self.plan(read_statement(text)), tables, parameters)

    def texts(self, query: str) -> list[str]:
        """Return the text of a receipt's query and those of the declared views behind it."""
        if query.startswith(MARK):
            asked = postgres_statement(query.removeprefix(MARK))
            return [asked.text, *(self._views[name] for name in views_behind(asked, self._views))]
        statement = read_statement(query)
        return [statement.text, *self.plan(statement).views.values()]

    def others(self, texts: Sequence[str]) -> set[str]:
        """Return the tables of others that PostgreSQL reads for these texts; no state holds them."""
        read = [postgres_statement(text) for text in texts]
        unknown = {name for one in read for name in one.names if name not in one.given and name not in self._schemas and name not in self._views}
        return unknown | {".".join(pair) for one in read for pair in one.qualified}

    def run(self, text: str, plan: "Plan", tables: Mapping[str, TableSnapshot], parameters: Sequence[Any]) -> pa.Table:
        """Run a query on Spark over exactly these tables and collect it."""
        kept: list[object] = []
        child = self._spark.child()
        with translated(plan.tables):
            for name, table in tables.items():
                frame, held = self._snapshots.relation(self._spark, child, table)
                kept.append(held)
                frame.createOrReplaceTempView(name)
            for name, view in plan.views.items():
                child.sql(view).createOrReplaceTempView(name)
            rows: pa.Table = child.sql(text, args=list(parameters) or None).toArrow()
        return rows

    def answer(
        self,
        text: str,
        parameters: tuple[str, ...],
        contract: Contract,
        taken: AbstractContextManager[Snapshot],
        run: Callable[[Mapping[str, TableSnapshot]], pa.Table],
    ) -> Answer:
        """Hold a snapshot, wait for a turn, run a query over its tables and answer with a receipt, which shows `text`."""
        deadline_s = time.monotonic() + contract.wait_s
        # Who waits for changes to arrive keeps nobody from running.
        with taken as snapshot, self._turn(contract, deadline_s=deadline_s) as turn_s:
            if isinstance(snapshot, Snapshot):  # one that a service holds stays as the service knows it
                snapshot = replace(snapshot, waited_s=snapshot.waited_s + turn_s)
            rows = run(snapshot.tables)
            if rows.nbytes > self._settings.answer_bytes_max:
                raise AnswerTooLarge(size=rows.nbytes, bound=self._settings.answer_bytes_max)
            receipt = self.issue(snapshot, contract, query=text, parameters=parameters, rows=rows.num_rows, digest=answer_digest(rows))
            return Answer(rows, receipt.bound(self.verifier) if self.verifier else receipt, to_df=lambda table: self._spark.session().createDataFrame(table))

    @contextmanager
    def _turn(self, contract: Contract, *, deadline_s: float) -> Iterator[float]:
        """Let at most `queries_max` queries run at once; give the seconds that this one waited for it."""
        begun_s = time.monotonic()
        if not self._turns.acquire(timeout=max(deadline_s - begun_s, 0.001)):
            waited_s = time.monotonic() - deadline_s + contract.wait_s
            raise FreshnessUnavailable(
                table="*", source="*", waited_s=waited_s, stale_s=0.0, why=f"{self._settings.queries_max} queries are running (queries_max)"
            )
        try:
            yield time.monotonic() - begun_s
        finally:
            self._turns.release()

    def issue(self, snapshot: Snapshot, contract: Contract, *, query: str, parameters: tuple[str, ...], rows: int, digest: str) -> Receipt:
        """Seal and keep the receipt of an answer."""
        return issue_receipt(self._ledger, snapshot, contract, query=query, parameters=parameters, rows=rows, digest=digest)


class Plan:
    """The tables a query reads and the views between, each after those it stands on."""

    __slots__ = ("tables", "views")

    def __init__(self, tables: tuple[str, ...], views: Mapping[str, str]) -> None:
        self.tables = tables
        self.views = views


def read_text(table: str, columns: Sequence[str] | None) -> str:
    """Return the query that a `read` stands for, as its receipt shows it."""
    return f"SELECT {', '.join(f'`{column}`' for column in columns)} FROM {table}" if columns else f"TABLE {table}"
