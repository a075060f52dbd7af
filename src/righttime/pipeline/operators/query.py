"""SQL text over frames: how the operators speak to Spark.

In: DataFrames and SQL that names them.
Out: DataFrames.
Promise: one call to the JVM for a whole operator. Built column by column, a plan of this size takes a thousand calls, longer than Spark needs to run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Literal

from pyspark.sql import DataFrame

# How far the rows of a drain travel. `task`: everything is in one partition, and one task does the whole drain, without exchanges.
# `sent`: changes are sent whole to every executor. `shuffled`: they are too large for that.
Reach = Literal["task", "sent", "shuffled"]

_FAR: tuple[Reach, ...] = ("task", "sent", "shuffled")
_HINTS = {"task": "SHUFFLE_HASH", "sent": "BROADCAST"}
_numbers = count(1)


class Query:
    """A session of SQL over frames; their views are gone when it ends, what was made of them stays."""

    def __init__(self, frame: DataFrame) -> None:
        self._session = frame.sparkSession
        self._views: list[str] = []

    def __enter__(self) -> Query:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for view in self._views:
            self._session.catalog.dropTempView(view)

    def view(self, frame: DataFrame) -> str:
        """Return a name for the frame, to be used in `run`."""
        view = f"__righttime_{next(_numbers)}"
        frame.createTempView(view)
        self._views.append(view)
        return view

    def run(self, text: str) -> DataFrame:
        """Return the frame that the text means."""
        return self._session.sql(text)


def quoted(name: str) -> str:
    """Return the name as SQL text, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


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
