"""Errors of warehouses: a folder or a database that cannot be used, or tables in it.

In: what was found where the warehouse should be.
Out: one class for each outcome, with its code and the way out.
Promise: as all errors of righttime; the tree is drawn in the package's docstring.
"""

from righttime.errors.groups import WarehouseError


class NotAWarehouse(WarehouseError):
    """{path} is not a righttime warehouse: {reason}. Name a new folder or a database where one may be made, or where there is one."""

    code = "warehouse.not_one"


class NoWarehouseYet(NotAWarehouse):
    """The project in {project} has no warehouse yet: {path} is made by the first program that feeds its streams, or by `righttime run`.
    Do one of them, then ask again."""

    code = "warehouse.not_yet"


class WarehouseNewer(WarehouseError):
    """{path} was written in format {found}, this version knows formats up to {known}. Install a newer righttime."""

    code = "warehouse.newer"


class WarehouseLocked(WarehouseError):
    """{path} is open for writing in process {pid} on {host}. Close it there, or open it here with read_only=True."""

    code = "warehouse.locked"
    retryable = True


class WarehouseClosed(WarehouseError):
    """The warehouse {path} is closed. Open it again with righttime.open()."""

    code = "warehouse.closed"


class WarehouseReadOnly(WarehouseError):
    """The warehouse {path} is open read-only and refuses to {action}. Open it without read_only=True."""

    code = "warehouse.read_only"


class WarehouseDamaged(WarehouseError):
    """{path}: {reason}. Restore it from a backup; nothing was changed."""

    code = "warehouse.damaged"


class ForeignCommit(WarehouseError):
    """Table {table!r} was changed by another Delta writer (version {found}, the ledger knows {known}).
    Take the change over with Warehouse.adopt({table!r}), or restore version {known}."""

    code = "warehouse.foreign_commit"


class CommitsMixed(ForeignCommit):
    """Table {table!r} has a commit of this warehouse that never came to its end, and it cannot be taken out: in version {found} another Delta writer {what}.
    Restore version {known}, which the ledger knows, with that writer, adopt it with Warehouse.adopt({table!r}), and let the writer make its changes again."""

    code = "warehouse.commits_mixed"


class AdoptionRefused(WarehouseError):
    """Version {version} of table {table!r} cannot be adopted: a change that is committed here, on version {known}, and not stored yet fails on it ({reason}).
    Correct those rows with the other writer; or restore version {known} with it, adopt and materialize that, and let it make its changes again."""

    code = "table.adoption_refused"


class DatabaseUnreachable(WarehouseError):
    """The database of {path} does not answer: {reason}. Start it or correct the address, then try again."""

    code = "database.unreachable"
    retryable = True


class OtherDatabase(WarehouseError):
    """{path} is not the database that has this warehouse, though it may be a copy or a replica of it.
    Give the address of the server and the database that the service has open."""

    code = "database.other"


class StateInDoubt(WarehouseError):
    """Nobody knows yet whether state {state} was committed: {reason}.
    Until the database tells, nothing is committed or answered; make sure that it can be reached, and try again."""

    code = "warehouse.in_doubt"
    retryable = True


class WriterLost(WarehouseError):
    """This process may no longer write {path}: {reason}. Close the warehouse and open it again; it starts from what is durable."""

    code = "warehouse.writer_lost"


class RightsMissing(WarehouseError):
    """{path} does not allow this user to {step}: {reason}. Nothing was written; have the right granted, then go on."""

    code = "database.rights"


class SchemaChanged(WarehouseError):
    """Table {table!r} is not in the database as it was declared: {difference}. Nothing was written and hot rows stay; change it back, then go on."""

    code = "table.changed"


class ColumnNotKept(WarehouseError):
    """Table {table!r} has a column {column!r} that is not declared, and stored rows that are updated would lose what it holds: {reason}.
    Nothing was written and hot rows stay; move the column to a table of its own, then go on."""

    code = "table.column_not_kept"


class ReferenceBroken(WarehouseError):
    """Table {table!r} could not be stored, because of a foreign key of the database: {reason}.
    Everything committed stays as it is, in memory or in the log; load what is missing, or delete what refers to it, then materialize again."""

    code = "table.reference_broken"


class RowsMoved(WarehouseError):
    """The stored rows of table {table!r} are moved or removed by somebody else again and again ({reason}), so changes of them cannot be applied.
    Nothing is lost; try again when that has ended."""

    code = "table.rows_moved"
    retryable = True


class VersionGone(WarehouseError):
    """Table {table!r} is at version {found} by now; version {version} can no longer be read. Look again."""

    code = "table.version_gone"
    retryable = True


class FileNotWritten(WarehouseError):
    """A file of the warehouse could not be written in {path!r}: {reason}. Nothing is lost; make space, then try again."""

    code = "file.not_written"
    retryable = True


class JavaMissing(WarehouseError):
    """Spark needs a Java runtime of version 17 or newer, and none was found ({looked}). Install one, set JAVA_HOME, or install righttime[java]."""

    code = "java.missing"
