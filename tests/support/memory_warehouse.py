"""A small warehouse in memory that keeps its promises: real row checks, real SQL (DuckDB), commits that become visible together.

In: the calls a PEP 249 connection makes.
Out: answers with receipts, and a list of the calls that were made.
Promise: no row is visible before its commit, and a refused row leaves the transaction as it was.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from righttime.changes.encoder import RowEncoder
from righttime.changes.rows import table_of
from righttime.changes.schema import TableSchema, declare_table
from righttime.errors import ProducerClosed, UnknownTable, WarehouseClosed
from righttime.ledger.receipts import Receipt
from righttime.query.contract import make_contract
from righttime.query.digest import answer_digest
from righttime.query.statement import read_statement, split_currency


class MemoryAnswer:
    """Rows and their receipt."""

    def __init__(self, content: pa.Table, receipt: Receipt) -> None:
        self._content = content
        self.receipt = receipt

    def arrow(self) -> pa.Table:
        return self._content

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._content.to_pylist()]


class MemoryProducer:
    """Buffers checked rows until commit."""

    def __init__(self, warehouse: "MemoryWarehouse", options: dict[str, Any]) -> None:
        self._warehouse = warehouse
        self.options = options
        self.closed = False
        self._buffer: list[tuple[str, pa.Table]] = []

    @property
    def in_transaction(self) -> bool:
        return bool(self._buffer)

    def sql(self, query: str, *, freshness: Any = None, wait: Any = None, parameters: Sequence[Any] = ()) -> "MemoryAnswer":
        committed = dict(self._warehouse.tables)
        try:
            for table, rows in self._buffer:
                self._warehouse.tables[table] = pa.concat_tables([self._warehouse.tables[table], rows])
            return self._warehouse.sql(query, freshness=freshness, wait=wait, parameters=parameters)
        finally:
            self._warehouse.tables.update(committed)

    def insert(self, table: str, row: Sequence[Any]) -> None:
        self._add("insert", table, [row])

    def insert_many(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        self._add("insert_many", table, rows)

    def _add(self, call: str, table: str, rows: Sequence[Sequence[Any]]) -> None:
        if self.closed:
            raise ProducerClosed(source="memory")
        schema = self._warehouse.schema(table)
        self._warehouse.calls.append((call, table, list(rows)))
        self._buffer.append((table, table_of([RowEncoder(schema).encode(rows)], schema.columns)))

    def update(self, table: str, set: Mapping[str, Any], where: Mapping[str, Any] | str | None = None) -> None:
        self._warehouse.calls.append(("update", table, dict(set), where))

    def delete(self, table: str, where: Mapping[str, Any] | str | None = None) -> None:
        self._warehouse.calls.append(("delete", table, where))

    def update_many(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._warehouse.calls.append(("update_many", table, list(rows)))

    def delete_many(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._warehouse.calls.append(("delete_many", table, list(rows)))

    def upsert_many(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._warehouse.calls.append(("upsert_many", table, list(rows)))

    def commit(self, *, materialize: bool = False, durability: str | None = None) -> None:
        self._warehouse.calls.append(("commit", materialize, durability))
        for table, rows in self._buffer:
            self._warehouse.tables[table] = pa.concat_tables([self._warehouse.tables[table], rows])
        self._buffer = []

    def rollback(self) -> None:
        self._buffer = []

    def close(self) -> None:
        self.rollback()
        self.closed = True


class MemoryWarehouse:
    """Tables in memory, by name."""

    def __init__(self, **columns: str) -> None:
        self._schemas = {name: declare_table(name, ddl) for name, ddl in columns.items()}
        self.tables = {name: schema.columns.empty_table() for name, schema in self._schemas.items()}
        self.views: dict[str, str] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.producers: list[MemoryProducer] = []
        self.closed = False

    def schema(self, table: str) -> TableSchema:
        self._check_open()
        if table.lower() not in self._schemas:
            raise UnknownTable(table=table, known=", ".join(self._schemas))
        return self._schemas[table.lower()]

    def producer(self, *, name: str | None = None, policy: Any = None) -> MemoryProducer:
        self._check_open()
        self.producers.append(MemoryProducer(self, {"name": name, "policy": policy}))
        return self.producers[-1]

    def sql(self, text: str, *, freshness: Any = None, wait: Any = None, parameters: Sequence[Any] = ()) -> MemoryAnswer:
        self._check_open()
        self.calls.append(("sql", freshness, wait, parameters))
        plain, bound_us = split_currency(text)
        contract = make_contract(freshness=freshness, wait=wait, on_late="error", as_of=None, bound_us=bound_us, wait_default_s=1.0)
        statement = read_statement(plain)
        with duckdb.connect() as engine:
            for table in {*self._tables_read(plain), *(self.tables if self.views else ())}:
                engine.register(table, self.tables[table])
            for name, query in self.views.items():
                engine.execute(f"CREATE TEMP VIEW {name} AS {query}")
            content = engine.execute(statement.text, list(parameters)).to_arrow_table()
        return MemoryAnswer(content, self._receipt(statement.text, content, asked_s=contract.freshness_us / 1e6))

    def _tables_read(self, query: str) -> list[str]:
        names = read_statement(query).tables
        return sorted({table for name in names for table in (self._tables_read(self.views[name]) if name in self.views else [self.schema(name).name])})

    def _open_queries(self) -> Any:
        return None

    def close(self) -> None:
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise WarehouseClosed(path="memory")

    def _receipt(self, text: str, content: pa.Table, *, asked_s: float) -> Receipt:
        return Receipt(
            receipt_id="r1",
            warehouse_id="memory",
            state=len(self.calls),
            query=text,
            parameters=(),
            tables=(),
            cut=(),
            cut_us=0,
            asked_s=asked_s,
            given_s=0.0,
            late=False,
            waited_s=0.0,
            rows=content.num_rows,
            digest=answer_digest(content),
            issued_us=0,
        )
