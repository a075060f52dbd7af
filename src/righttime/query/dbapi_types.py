"""The names PEP 249 asks of a database module besides its connections: errors, type objects and constructors of values.

In: errors of righttime, types of Arrow.
Out: `Error` and its kinds, `NUMBER`, `STRING` and their like, `Date()`, `Binary()` and their like.
Promise: pure; an error keeps the code, context and retryable of the one it stands for, and has that one as its cause.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa

from righttime import errors

Date = date
Time = time
Timestamp = datetime
Binary = bytes


class Warning(Exception):
    """Something worth knowing that stops nothing; righttime raises none."""


class Error(Exception):
    """Base of all errors of this module; `code` says which error of righttime it is."""

    def __init__(self, message: str, *, code: str, retryable: bool = False, context: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.context = context or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), self.code, self.retryable, self.context))


def _rebuild(kind: type["Error"], message: str, code: str, retryable: bool, context: dict[str, Any]) -> "Error":
    return kind(message, code=code, retryable=retryable, context=context)


class InterfaceError(Error):
    """The connection or cursor was used wrongly, for example after it was closed."""


class DatabaseError(Error):
    """The warehouse refused or failed."""


class DataError(DatabaseError):
    """A value does not fit its column."""


class OperationalError(DatabaseError):
    """The warehouse could not do it now; see `retryable`."""


class IntegrityError(DatabaseError):
    """A row breaks a rule of its table."""


class InternalError(DatabaseError):
    """The warehouse itself is damaged."""


class ProgrammingError(DatabaseError):
    """The statement or its parameters are wrong."""


class NotSupportedError(DatabaseError):
    """The statement is fine SQL, but not done here."""


# The first line that fits decides.
_KINDS: tuple[tuple[type[errors.RightTimeError], type[Error]], ...] = (
    (errors.SqlRefused, NotSupportedError),
    (errors.WrongType, DataError),
    (errors.BatchTooLarge, DataError),
    (errors.AnswerTooLarge, DataError),
    (errors.AnswerUnreadable, DataError),
    (errors.OperationFailed, DataError),
    (errors.NullNotAllowed, IntegrityError),
    (errors.KeyTaken, IntegrityError),
    (errors.FlowFailed, OperationalError),
    (errors.InputError, ProgrammingError),
    (errors.ProducerClosed, InterfaceError),
    (errors.WarehouseClosed, InterfaceError),
    (errors.WarehouseReadOnly, NotSupportedError),
    (errors.WarehouseDamaged, InternalError),
    (errors.ContractError, OperationalError),
    (errors.CommitError, OperationalError),
    (errors.WarehouseError, OperationalError),
    (errors.ServiceError, OperationalError),
    (errors.RightTimeError, DatabaseError),
)


def as_dbapi(error: errors.RightTimeError) -> Error:
    """Return the PEP 249 error that stands for one of righttime."""
    kind = next(kind for ours, kind in _KINDS if isinstance(error, ours))
    if error.context.get("syntax"):
        kind = ProgrammingError
    return kind(str(error), code=error.code, retryable=error.retryable, context=error.context)


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn errors of righttime into those of PEP 249, with the original as the cause."""
    try:
        yield
    except errors.RightTimeError as error:
        raise as_dbapi(error) from error


@dataclass(frozen=True, slots=True)
class TypeCode:
    """A column's type in `Cursor.description`; equal to the type object of its kind, with the exact type in `arrow`."""

    kind: str
    arrow: pa.DataType | None = field(default=None, compare=False)


STRING = TypeCode("STRING")
BINARY = TypeCode("BINARY")
NUMBER = TypeCode("NUMBER")
DATETIME = TypeCode("DATETIME")
ROWID = TypeCode("ROWID")
BOOLEAN = TypeCode("BOOLEAN")
NESTED = TypeCode("NESTED")
OTHER = TypeCode("OTHER")

_TESTS = (
    (pa.types.is_boolean, BOOLEAN),
    (pa.types.is_integer, NUMBER),
    (pa.types.is_floating, NUMBER),
    (pa.types.is_decimal, NUMBER),
    (pa.types.is_string, STRING),
    (pa.types.is_large_string, STRING),
    (pa.types.is_binary, BINARY),
    (pa.types.is_large_binary, BINARY),
    (pa.types.is_fixed_size_binary, BINARY),
    (pa.types.is_temporal, DATETIME),
    (pa.types.is_nested, NESTED),
)


def type_code(kind: pa.DataType) -> TypeCode:
    """Return the type code of an Arrow type."""
    found = next((code for test, code in _TESTS if test(kind)), OTHER)
    return TypeCode(found.kind, arrow=kind)


def DateFromTicks(ticks: float) -> date:
    """Return the date, in UTC, of a number of seconds since 1970."""
    return TimestampFromTicks(ticks).date()


def TimeFromTicks(ticks: float) -> time:
    """Return the time of day, in UTC, of a number of seconds since 1970."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:
    """Return the instant, in UTC, of a number of seconds since 1970."""
    return datetime.fromtimestamp(ticks, tz=UTC)
