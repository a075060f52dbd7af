"""Spark's errors in our words.

In: whatever Spark raises while it plans or runs a user's query.
Out: `SqlFailed` with the reason, without the stack trace of a Java process.
Promise: an error of ours passes through unchanged.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from righttime.errors import SqlFailed
from righttime.errors.spark_words import told_by_java, without_task

_REASON_MAX = 500
_translating: ContextVar[bool] = ContextVar("translating", default=False)


def _not_ours(_record: logging.LogRecord) -> bool:
    return not _translating.get()


# PySpark prints every error of a query to stderr before it raises it. Ours are raised in our words; the user's own keep their print.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(_not_ours)


@contextmanager
def quiet() -> Iterator[None]:
    """Run Spark code whose errors are raised in our words elsewhere, without PySpark's own print."""
    token = _translating.set(True)
    try:
        yield
    finally:
        _translating.reset(token)


@contextmanager
def translated(tables: Sequence[str]) -> Iterator[None]:
    """Run Spark code for a query over `tables`; raise `SqlFailed` where Spark raises."""
    try:
        with quiet():
            yield
    except PySparkException as error:
        raise SqlFailed(tables=_named(tables), reason=_short(error.getMessage() or str(error)), condition=error.getCondition() or "") from error
    except Py4JError as error:
        raise SqlFailed(tables=_named(tables), reason=_short(without_task(told_by_java(str(error)))), condition="") from error


def _named(tables: Sequence[str]) -> str:
    return ", ".join(tables) or "no table"


def _short(text: str) -> str:
    first = text.split("\nJVM stacktrace", 1)[0].split("== SQL", 1)[0].strip()
    return first if len(first) <= _REASON_MAX else f"{first[: _REASON_MAX - 3]}..."
