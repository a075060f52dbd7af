"""What the producers of the load test do: a fixed sequence of transactions each, and the rows that are there after any of them.

In: the place of a producer.
Out: its transactions, one after the other; sums over its rows after each commit.
Promise: the same place gives the same transactions in every process, so that any process can judge any answer.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import righttime as rt
from righttime.catalyst.producer import Durability, Producer
from righttime.changes.conditions import Expression

PRODUCERS = 20
CONSUMERS = 20
TABLES = ("sale", "visit")
COLUMNS = {"sale": "source INT, line INT, qty INT, note STRING", "visit": "source INT, line INT, qty INT"}
LIVE_LINES = 150
"""About as many lines of a producer are there at any time, so that a run of ten minutes reads tables as large as one of a minute does."""

Lines = dict[int, int]
Sums = tuple[int, int, int, int]


def source_name(place: int) -> str:
    return f"load-{place:02}"


def policy_of(place: int) -> rt.Policy:
    """Three of five producers are immediate; the others keep their rows, until asked or for a while."""
    kinds: dict[int, Callable[[], rt.Policy]] = {2: rt.OnDemand, 3: lambda: rt.Every("1s")}
    return kinds.get(place % 5, rt.Immediate)()


@dataclass(frozen=True)
class Change:
    """One call of the producer, and what it does to the lines of a table."""

    table: str
    give: Callable[[Producer], None]
    apply: Callable[[Lines], None]
    rows: int = 0


@dataclass(frozen=True)
class Transaction:
    """The changes of one commit, and how it is committed; `abandoned` rows are inserted and rolled back before, `batch_id` is committed twice."""

    number: int
    changes: tuple[Change, ...]
    durability: Durability
    abandoned: int
    batch_id: str | None


class Plan:
    """The transactions of one producer."""

    def __init__(self, place: int) -> None:
        self.place = place
        self._dice = random.Random(place)
        self._next = dict.fromkeys(TABLES, 0)
        self._number = 0

    def transactions(self) -> Iterator[Transaction]:
        while True:
            yield self._transaction()

    def _transaction(self) -> Transaction:
        self._number += 1
        dice, kind = self._dice, self.place % 5
        changes = [self._insert(table) for table in TABLES if dice.random() < 0.8] or [self._insert("sale")]
        # What a lazy producer changes goes to the catalyst at once, so it changes seldom; without it, its tables would only grow.
        if dice.random() < (0.15 if kind in (2, 3) else 0.7):
            changes += [self._change(kind)(table) for table in dice.sample(TABLES, dice.randint(1, 2))]
        if self._number % (30 if kind in (2, 3) else 15) == 0:
            changes += [self._trim(table) for table in TABLES]
        mixed: tuple[tuple[Durability, ...], tuple[int, ...]] = (("memory", "log", "warehouse"), (30, 65, 5))
        durability: Durability = dice.choices(*mixed)[0] if kind == 4 else "memory"
        batch_id = f"batch-{self._number}" if dice.random() < 0.03 else None
        return Transaction(self._number, tuple(changes), durability, dice.randint(1, 20) if dice.random() < 0.05 else 0, batch_id)

    def _change(self, kind: int) -> Callable[[str], Change]:
        """Conditions are for every fifth producer, and rare with the others: each is tried on all rows before its commit is acknowledged."""
        return self._dice.choices((self._key_changes, self._upsert, self._conditional), (3, 3, 6 if kind == 1 else 0.5))[0]

    def _insert(self, table: str) -> Change:
        count = 200 if self._dice.random() < 0.02 else self._dice.randint(1, 8)
        first = self._next[table]
        self._next[table] += count
        lines = {line: self._dice.randint(0, 9) for line in range(first, first + count)}
        rows = rows_of(table, self.place, lines)
        return Change(table, lambda producer: producer.insert_many(table, rows), lambda there: there.update(lines), count)

    def _key_changes(self, table: str) -> Change:
        """Update or delete some of the newest lines by key; some are gone already, which is no harm."""
        lines = self._some(table)
        if self._dice.random() < 0.3:
            keys = [{"source": self.place, "line": line} for line in lines]
            return Change(table, lambda producer: producer.delete_many(table, keys), lambda there: _drop(there, lambda line, _: line in lines))
        qty = self._dice.randint(10, 99)
        changed = [{"source": self.place, "line": line, "qty": qty} for line in lines]
        return Change(table, lambda producer: producer.update_many(table, changed), lambda there: there.update({line: qty for line in lines if line in there}))

    def _upsert(self, table: str) -> Change:
        lines = dict.fromkeys([*self._some(table), self._next[table]], self._dice.randint(100, 999))
        self._next[table] += 1
        rows = [dict(zip(columns_of(table), row, strict=True)) for row in rows_of(table, self.place, lines)]
        return Change(table, lambda producer: producer.upsert_many(table, rows), lambda there: there.update(lines), len(rows))

    def _conditional(self, table: str) -> Change:
        low = max(self._next[table] - self._dice.randint(1, LIVE_LINES), 0)
        high = low + self._dice.randint(0, 30)
        place = self.place
        if self._dice.random() < 0.5:
            where = f"source = {place} AND line BETWEEN {low} AND {high} AND qty < 100000"
            return Change(
                table,
                lambda producer: producer.update(table, {"qty": Expression("qty + 1")}, where),
                lambda there: there.update({line: qty + 1 for line, qty in there.items() if low <= line <= high and qty < 100000}),
            )
        return Change(
            table,
            lambda producer: producer.delete(table, "source = ? AND line >= ? AND line <= ? AND qty % 7 = 3", parameters=[place, low, high]),
            lambda there: _drop(there, lambda line, qty: low <= line <= high and qty % 7 == 3),
        )

    def _trim(self, table: str) -> Change:
        floor, place = self._next[table] - LIVE_LINES, self.place
        return Change(
            table,
            lambda producer: producer.delete(table, "source = ? AND line < ?", parameters=[place, floor]),
            lambda there: _drop(there, lambda line, _: line < floor),
        )

    def _some(self, table: str) -> list[int]:
        newest = self._next[table]
        return sorted({self._dice.randint(max(newest - 60, 0), max(newest - 1, 0)) for _ in range(self._dice.randint(1, 6))})


def _drop(there: Lines, gone: Callable[[int, int], bool]) -> None:
    for line in [line for line, qty in there.items() if gone(line, qty)]:
        del there[line]


def columns_of(table: str) -> list[str]:
    return [column.split()[0] for column in COLUMNS[table].split(", ")]


def rows_of(table: str, place: int, lines: Lines) -> list[tuple[Any, ...]]:
    return [(place, line, qty, note(place, line)) if table == "sale" else (place, line, qty) for line, qty in lines.items()]


def note(place: int, line: int) -> str:
    return f"line {line} of producer {place}, with a note that makes memory a matter"


@dataclass
class Expected:
    """The rows of one producer after each of its commits, as sums; computed as far as somebody asked."""

    place: int
    lines: dict[str, Lines] = field(default_factory=lambda: {table: {} for table in TABLES})
    sums: dict[str, list[Sums]] = field(default_factory=lambda: {table: [(0, 0, 0, 0)] for table in TABLES})

    def __post_init__(self) -> None:
        self._coming = Plan(self.place).transactions()

    def after(self, table: str, number: int) -> Sums:
        """Return count, sum of lines, of quantities and of both multiplied, after commit `number`."""
        while len(self.sums[table]) <= number:
            for change in next(self._coming).changes:
                change.apply(self.lines[change.table])
            for name, lines in self.lines.items():
                self.sums[name].append((len(lines), sum(lines), sum(lines.values()), sum(line * qty for line, qty in lines.items())))
        return self.sums[table][number]


def sums_of(rows: pa.Table) -> dict[int, Sums]:
    """Return the same sums over the rows of an answer, by producer."""
    line, qty = pc.cast(rows["line"], pa.int64()), pc.cast(rows["qty"], pa.int64())
    wide = pa.table({"source": pc.add(rows["source"], 0), "line": line, "qty": qty, "both": pc.multiply(line, qty)})
    sums = wide.group_by("source").aggregate([("line", "count"), ("line", "sum"), ("qty", "sum"), ("both", "sum")])
    names = ("source", "line_count", "line_sum", "qty_sum", "both_sum")
    return {source: (count, lines, qtys, both) for source, count, lines, qtys, both in zip(*(sums[name].to_pylist() for name in names), strict=True)}
