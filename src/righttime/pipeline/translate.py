"""Spark's errors in our words.

In: whatever Spark raises while it plans or runs a user's query.
Out: `SqlFailed` with the reason, without the stack trace of a Java process.
Promise: an error of ours passes through unchanged.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from righttime.errors import SqlFailed

_REASON_MAX = 500


@contextmanager
def translated(tables: Sequence[str]) -> Iterator[None]:
    """Run Spark code for a query over `tables`; raise `SqlFailed` where Spark raises."""
    try:
        yield
    except PySparkException as error:
        raise SqlFailed(tables=_named(tables), reason=_short(error.getMessage() or str(error)), condition=error.getCondition() or "") from error
    except Py4JJavaError as error:
        raise SqlFailed(tables=_named(tables), reason=_short(str(error.java_exception)), condition="") from error
    except Py4JError as error:
        raise SqlFailed(tables=_named(tables), reason=_short(str(error)), condition="") from error


def _named(tables: Sequence[str]) -> str:
    return ", ".join(tables) or "no table"


def _short(text: str) -> str:
    first = text.split("\nJVM stacktrace", 1)[0].split("== SQL", 1)[0].strip()
    return first if len(first) <= _REASON_MAX else f"{first[: _REASON_MAX - 3]}..."
