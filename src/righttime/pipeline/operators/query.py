"""SQL text over frames: how the operators speak to Spark.

In: DataFrames and SQL that names them.
Out: DataFrames, or within a drain text that is put into further text.
Promise: few calls to the JVM for a whole drain. Built column by column, a plan of this size takes a thousand calls, longer than Spark needs to run it; and
beside busy threads each call may wait for Python's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

# How far the rows of a drain travel. `task`: everything is in one partition, and one task does the whole drain, without exchanges.
# `sent`: changes are sent whole to every executor. `shuffled`: they are too large for that.
Reach = Literal["task", "sent", "shuffled"]

_FAR: tuple[Reach, ...] = ("task", "sent", "shuffled")
_HINTS = {"task": "SHUFFLE_HASH", "sent": "BROADCAST"}
_numbers = count(1)


# Views of sessions in which a drain is written: the frame, so that no other gets its identity meanwhile, and its name. One thread works in such a session.
_writing: dict[SparkSession, dict[int, tuple[DataFrame, str]]] = {}


@dataclass(frozen=True, eq=False)
class Written:
    """A relation as text, over views that are there as long as the drain is written."""

    sparkSession: SparkSession  # as frames call it
    text: str

    @cached_property
    def frame(self) -> DataFrame:
        """The frame that the text means."""
        return self.sparkSession.sql(self.text)

    @property
    def schema(self) -> StructType:
        """The columns, as a frame has them."""
        return self.frame.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.frame.columns


Frame = DataFrame | Written


def frame_of(relation: Frame) -> DataFrame:
    """Return a relation as a frame."""
    return relation.frame if isinstance(relation, Written) else relation


@contextmanager
def writing(session: SparkSession) -> Iterator[None]:
    """Let queries in this session be text until somebody needs a frame, and frames have one view each, as long as the block lasts."""
    _writing[session] = {}
    try:
        yield
    finally:
        del _writing[session]
        catalog: Any = session._jsparkSession.sessionState().catalog()
        catalog.clearTempTables()


class Query:
    """A session of SQL over relations; their views are gone when it ends, what was made of them stays."""

    def __init__(self, relation: Frame) -> None:
        self._session = relation.sparkSession
        self._known = _writing.get(self._session)
        self._views: list[str] = []

    def __enter__(self) -> Query:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for view in self._views:
            self._session.catalog.dropTempView(view)

    def view(self, relation: Frame) -> str:
        """Return the relation as it stands in a text for `run`: its name, or itself in parentheses."""
        if isinstance(relation, Written):
            return f"({relation.text})"
        if self._known is not None and id(relation) in self._known:
            return self._known[id(relation)][1]
        view = f"__righttime_{next(_numbers)}"
        relation.createTempView(view)
        if self._known is not None:
            self._known[id(relation)] = (relation, view)
        else:
            self._views.append(view)
        return view

    def run(self, text: str) -> Frame:
        """Return the relation that the text means."""
        return self._session.sql(text) if self._known is None else Written(self._session, text)


def quoted(name: str) -> str:
    """Return the name as SQL text, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


def type_text(kind: DataType) -> str:
    """Return a type as SQL text, whatever names the fields of structs have."""
    match kind:
        case ArrayType():
            return f"ARRAY<{type_text(kind.elementType)}>"
        case MapType():
            return f"MAP<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
        case StructType():
            return f"STRUCT<{', '.join(f'{quoted(field.name)}: {type_text(field.dataType)}' for field in kind)}>"
        case _:
            return kind.simpleString()


def names(columns: Iterable[str], *more: str, of: str = "") -> str:
    """Return the columns as SQL text, quoted and separated by commas, of the relation `of` if given; `more` is SQL already."""
    prefix = f"{of}." if of else ""
    return ", ".join([*(prefix + quoted(name) for name in columns), *more])


def farthest(reaches: Iterable[Reach]) -> Reach:
    """Return the farthest of some; with none, nothing travels."""
    return max(reaches, key=_FAR.index, default="task")


def hint(relation: str, reach: Reach) -> str:
    """Return the hint that makes a join build its hash table of this side, where it is."""
    return f"/*+ {_HINTS[reach]}({relation}) */" if reach in _HINTS else ""


def spread(keys: Sequence[str], reach: Reach) -> str:
    """Return the clause that brings rows with equal keys together, so that later grouping and windows by them share one shuffle."""
    return f" DISTRIBUTE BY {names(keys)}" if keys and reach != "task" else ""


def in_one_partition(relation: str) -> str:
    """Return the query for a relation whose rows are all in one partition afterwards."""
    return in_partitions(relation, 1)


def in_partitions(relation: str, most: int) -> str:
    """Return the query for a relation that has at most so many partitions afterwards; nothing is sent for it."""
    return f"SELECT /*+ COALESCE({most}) */ * FROM {relation}"
