"""Errors of what was passed in: tables, values, settings, operations.

In: what code that declares tables, loads rows or gives settings did.
Out: one class for each outcome, with its code and the way out.
Promise: as all errors of righttime; the tree is drawn in the package's docstring.
"""

from collections.abc import Iterable

from righttime.errors.groups import InputError


class UnknownTable(InputError):
    """There is no table {table!r}; known tables: {known}. Create it with create_table, or correct the name."""

    code = "table.unknown"

    @classmethod
    def among(cls, table: object, known: Iterable[str], *, is_stream: bool = False) -> "UnknownTable":
        """Return the error for a name that no table has, with those that there are; a stream may have it."""
        return NotATable(table=table) if is_stream else cls(table=table, known=", ".join(sorted(known)) or "none")


class NotATable(UnknownTable):
    """{table!r} is a stream, not a table: only tables are queried, and loaded by producers. Read its changes with Warehouse.stream({table!r}).changes(),
    append to it there, or have a flow keep a table of them, Flow.stream({table!r}).into(…), and query that."""

    code = "table.is_stream"


class UnknownColumn(InputError):
    """Table {table!r} has no column {column!r}; its columns are {known}. Correct the name."""

    code = "column.unknown"


class TableExists(InputError):
    """Table or view {table!r} exists already. Use another name, or the existing table."""

    code = "table.exists"


class NameTaken(InputError):
    """There is a {kind} {name!r} already, and one name is one thing. Use another name; nothing was declared."""

    code = "name.taken"


class TableAmbiguous(InputError):
    """The name {table!r} is taken at two catalysts, {first} and {second}. Open them one by one, and only one of the two in a group with others."""

    code = "table.ambiguous"


class BadTable(InputError):
    """Table {table!r} cannot be declared: {reason}. Correct the declaration."""

    code = "table.bad"


class WrongType(InputError):
    """Table {table!r}, column {column!r}: {value} does not fit {expected}. Correct the row; the transaction is as it was before this call."""

    code = "value.type"


class NullNotAllowed(InputError):
    """Table {table!r}, column {column!r} is {why} and may not be null. Correct the row; the transaction is as it was before this call."""

    code = "value.null"


class BatchTooLarge(InputError):
    """Table {table!r}: a batch of {size} bytes is over the bound {bound} (batch_bytes_max). Insert it in smaller parts; the transaction is as it was."""

    code = "batch.too_large"


class BadFreshness(InputError):
    """{value!r} is not a {what}: {reason}. Write a duration such as "500ms", "5s", "2 min", "1h", a number of seconds or a timedelta."""

    code = "freshness.bad"


class BadPolicy(InputError):
    """{policy!r} is not a flush policy: {reason}. Use Immediate, OnDemand, LoadAware, Every, or an object with should_flush() and flushed()."""

    code = "policy.bad"


class BadSetting(InputError):
    """Setting {name!r}: {reason}. See the settings page of the reference."""

    code = "setting.bad"


class BadArgument(BadSetting):
    """Argument {name!r}: {reason}. Correct the call; nothing changed."""

    code = "argument.bad"


class BadSource(InputError):
    """Source {source!r} cannot be used: {reason}. Name the producer otherwise, or close the other one."""

    code = "source.bad"


class OperationFailed(InputError):
    """Table {table!r}, column {column!r}: an operation could not be computed: {reason}. Change its expression or its condition; nothing of it took effect."""

    code = "operation.failed"


class KeyRequired(InputError):
    """Table {table!r} has no keys, and this operation finds rows by key. Declare keys=, or use update() and delete() with a condition."""

    code = "operation.key_required"


class OperationRefused(InputError):
    """This operation on table {table!r} cannot be taken: {reason}. Nothing changed."""

    code = "operation.refused"
