"""The steps of a flow as frozen values: what a user declared, and where.

In: calls of `Flow` and `Step`.
Out: a graph that engines read: the Spark plan, the reference engine, the zone finder.
Promise: nothing here changes after it was made, and every step knows the line that declared it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

JoinKind = Literal["inner", "left"]
Missing = Literal["null", "drop", "dead_letter", "fail"]
Otherwise = Literal["keep", "drop", "fail"]
Rows = Literal["same", "any"]
MeasureFunction = Literal["sum", "count", "avg", "min", "max", "count_distinct"]
ArrowFunction = Callable[[Any], Any]

_NAME = re.compile(r"([A-Za-z]\w*)|`([A-Za-z]\w*)`", re.ASCII)

SINCE, ORDINAL, COMMITTED = "_since", "_ordinal", "_commit_timestamp"


@dataclass(frozen=True)
class Origin:
    """The file and line of the user's call."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Derived:
    """One column and the Spark SQL expression that gives it."""

    name: str
    expression: str

    @property
    def column(self) -> str | None:
        """The name that the expression is, if it is nothing else: that of a column, or of something that Spark knows by a name alone."""
        found = _NAME.fullmatch(self.expression.strip())
        return None if found is None else found[1] or found[2]


@dataclass(frozen=True)
class Measure:
    """One aggregate: its column, its function, and what it is taken of; `*` for `count(*)`."""

    name: str
    function: MeasureFunction
    expression: str


# Steps are compared by identity: two declarations that read the same are two steps.
@dataclass(frozen=True, eq=False)
class Node:
    """One step of a flow."""

    origin: Origin

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Return the steps this one reads, in their order."""
        return ()

    @property
    def kind(self) -> str:
        """Return the name of the step in ids and messages."""
        return _KINDS[type(self)]


@dataclass(frozen=True, eq=False)
class StreamNode(Node):
    """The changes of one stream."""

    stream: str


@dataclass(frozen=True, eq=False)
class _OneInput(Node):
    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class _TwoInputs(Node):
    left: Node
    right: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Where(_OneInput):
    """The rows for which a condition is true."""

    condition: str


@dataclass(frozen=True, eq=False)
class Select(_OneInput):
    """Exactly these columns."""

    columns: tuple[Derived, ...]


@dataclass(frozen=True, eq=False)
class Derive(_OneInput):
    """All columns, and these; a name that exists is replaced in its place."""

    columns: tuple[Derived, ...]


@dataclass(frozen=True, eq=False)
class Apply(_OneInput):
    """The outcome of a user's function on Arrow batches; `columns` is the column list of what it returns.

    `same`: one row out for each row in, in their order. `any`: each row gives any number of rows, independently of the others.
    """

    function: ArrowFunction
    columns: str
    rows: Rows


@dataclass(frozen=True, eq=False)
class Expect(_OneInput):
    """A condition that rows should meet; rows that do not are counted, and kept, dropped or refused."""

    name: str
    condition: str
    otherwise: Otherwise


@dataclass(frozen=True, eq=False)
class Join(_TwoInputs):
    """Pairs of rows with equal keys; `on` has pairs of a left and a right column."""

    on: tuple[tuple[str, str], ...]
    how: JoinKind


@dataclass(frozen=True, eq=False)
class Lookup(_TwoInputs):
    """Columns of the one right row with the same key; `take` has pairs of a new name and a right column."""

    on: tuple[tuple[str, str], ...]
    take: tuple[tuple[str, str], ...]
    missing: Missing


@dataclass(frozen=True, eq=False)
class AsOf(_TwoInputs):
    """Columns of the version, in a history, that was current when the left row was committed; rows without one have nulls."""

    on: tuple[tuple[str, str], ...]
    take: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Union(Node):
    """All rows of all parts; columns are matched by name."""

    parts: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class Distinct(_OneInput):
    """Each row once."""


@dataclass(frozen=True, eq=False)
class Aggregate(_OneInput):
    """One row for each group that has rows."""

    by: tuple[str, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True, eq=False)
class History(_OneInput):
    """Type 2 history of a keyed stream: one row for each version, with its surrogate key, start and end."""

    keys: tuple[str, ...]
    key: str
    key_from: int
    start: str
    end: str


@dataclass(frozen=True, eq=False)
class Target:
    """A table that a step is kept in. `additive` columns are sums over all rows of a key; without them a key has at most one row."""

    table: str
    keys: tuple[str, ...]
    additive: tuple[str, ...]
    node: Node
    origin: Origin


_KINDS: dict[type[Node], str] = {
    StreamNode: "stream",
    Where: "where",
    Select: "select",
    Derive: "derive",
    Apply: "apply",
    Expect: "expect",
    Join: "join",
    Lookup: "lookup",
    AsOf: "as_of",
    Union: "union",
    Distinct: "distinct",
    Aggregate: "aggregate",
    History: "history",
}
