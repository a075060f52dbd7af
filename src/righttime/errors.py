"""Every error that righttime raises on purpose, as one tree.

    RightTimeError
    ├── InputError               what was passed in cannot be accepted; nothing changed
    │   ├── UnknownTable         table.unknown
    │   ├── UnknownColumn        column.unknown
    │   ├── TableExists          table.exists
    │   ├── TableAmbiguous       table.ambiguous
    │   ├── BadTable             table.bad
    │   ├── WrongType            value.type
    │   ├── NullNotAllowed       value.null
    │   ├── BatchTooLarge        batch.too_large
    │   ├── BadFreshness         freshness.bad
    │   ├── BadPolicy            policy.bad
    │   ├── BadSetting           setting.bad
    │   ├── BadSource            source.bad
    │   ├── OperationFailed      operation.failed
    │   ├── SqlRefused           sql.refused
    │   ├── KeyRequired          operation.key_required
    │   ├── OperationRefused     operation.refused
    │   └── SqlFailed            sql.failed
    │       └── SqlFailedInDatabase  sql.failed_in_database
    ├── ContractError            the answer that was asked for cannot be given
    │   ├── FreshnessUnavailable freshness.unavailable   (retryable)
    │   │   └── FreshnessUnknown freshness.unknown       (retryable)
    │   ├── AsOfUnavailable      as_of.unavailable
    │   ├── LeaseExpired         lease.expired           (retryable)
    │   ├── TooManySnapshots     snapshot.too_many       (retryable)
    │   └── AnswerTooLarge       answer.too_large
    ├── CommitError              a commit did not happen, or nobody can say whether it did
    │   ├── CatalystFull         catalyst.full           (retryable)
    │   ├── LogFull              log.full                (retryable)
    │   ├── CommitFailed         commit.failed           (retryable)
    │   │   └── StoringFailed    storing.failed          (retryable)
    │   ├── NotStored            commit.not_stored       (retryable)
    │   ├── NotLazy              commit.not_lazy         (retryable)
    │   ├── KeyTaken             key.taken
    │   ├── CommitUnknown        commit.unknown          (retryable)
    │   └── ProducerClosed       producer.closed
    ├── WarehouseError           the folder or one of its tables cannot be used
    │   ├── NotAWarehouse        warehouse.not_one
    │   ├── WarehouseNewer       warehouse.newer
    │   ├── WarehouseLocked      warehouse.locked        (retryable)
    │   ├── WarehouseClosed      warehouse.closed
    │   ├── WarehouseReadOnly    warehouse.read_only
    │   ├── WarehouseDamaged     warehouse.damaged
    │   ├── ForeignCommit        warehouse.foreign_commit
    │   ├── DatabaseUnreachable  database.unreachable    (retryable)
    │   ├── WriterLost           warehouse.writer_lost
    │   ├── RightsMissing        database.rights
    │   ├── SchemaChanged        table.changed
    │   ├── ColumnNotKept        table.column_not_kept
    │   ├── RowsMoved            table.rows_moved        (retryable)
    │   ├── VersionGone          table.version_gone      (retryable)
    │   ├── FileNotWritten       file.not_written        (retryable)
    │   └── JavaMissing          java.missing
    ├── ServiceError             the service that has the warehouse cannot be used
    │   ├── ServiceUnreachable   service.unreachable     (retryable)
    │   ├── ServiceBusy          service.busy            (retryable)
    │   ├── ServiceStopping      service.stopping        (retryable)
    │   ├── ServiceFailed        service.failed
    │   ├── SessionLost          session.lost
    │   ├── AccessDenied         access.denied
    │   ├── ClocksApart          service.clocks_apart
    │   ├── BadMessage           message.bad
    │   └── MessageTooLarge      message.too_large
    └── ReceiptError
        ├── ReceiptForged        receipt.forged
        ├── ReceiptUnbound       receipt.unbound
        └── ReceiptUnknown       receipt.unknown

A class's docstring is its message: a format string over the error's context. Its last sentence is the way out.
"""

from typing import Any, ClassVar


class RightTimeError(Exception):
    """Something went wrong in righttime. See the error's code and context."""

    code: ClassVar[str] = "righttime"
    retryable: ClassVar[bool] = False

    def __init__(self, **context: Any) -> None:
        self.context = context
        super().__init__(self._message())

    def _message(self) -> str:
        template = " ".join((type(self).__doc__ or "").split())
        try:
            return template.format(**self.context)
        except (KeyError, IndexError):
            details = ", ".join(f"{name}={value!r}" for name, value in self.context.items())
            return f"{template} [{details}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.context))


def _rebuild(kind: type[RightTimeError], context: dict[str, Any]) -> RightTimeError:
    return kind(**context)


class InputError(RightTimeError):
    """The input cannot be accepted. Nothing changed; correct it and call again."""

    code = "input"


class UnknownTable(InputError):
    """There is no table {table!r}; known tables: {known}. Create it with create_table, or correct the name."""

    code = "table.unknown"


class UnknownColumn(InputError):
    """Table {table!r} has no column {column!r}; its columns are {known}. Correct the name."""

    code = "column.unknown"


class TableExists(InputError):
    """Table or view {table!r} exists already. Use another name, or the existing table."""

    code = "table.exists"


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


class BadSource(InputError):
    """Source {source!r} cannot be used: {reason}. Name the producer otherwise, or close the other one."""

    code = "source.bad"


class OperationFailed(InputError):
    """Table {table!r}, column {column!r}: an operation could not be computed: {reason}. Change its expression or its condition; nothing of it took effect."""

    code = "operation.failed"


class SqlRefused(InputError):
    """This statement is not accepted here: {reason}. {way_out}"""

    code = "sql.refused"


class SqlFailed(InputError):
    """Spark could not run the query over {tables}: {reason}. Correct the query."""

    code = "sql.failed"


class SqlFailedInDatabase(SqlFailed):
    """PostgreSQL could not run the query over {tables}: {reason}. Correct the query."""

    code = "sql.failed_in_database"


class KeyRequired(InputError):
    """Table {table!r} has no keys, and this operation finds rows by key. Declare keys=, or use update() and delete() with a condition."""

    code = "operation.key_required"


class OperationRefused(InputError):
    """This operation on table {table!r} cannot be taken: {reason}. Nothing changed."""

    code = "operation.refused"


class ContractError(RightTimeError):
    """The answer that was asked for cannot be given. See the context."""

    code = "contract"


class FreshnessUnavailable(ContractError):
    """Table {table!r}: source {source!r} could not be brought to the asked freshness within {waited_s:.3f} s; it is {stale_s:.3f} s stale ({why}).
    Ask for a larger freshness, wait longer (wait=), restart the source, or take the stale answer with on_late="answer"."""

    code = "freshness.unavailable"
    retryable = True


class FreshnessUnknown(FreshnessUnavailable):
    """No freshness can be promised for table {table!r}: {why} ({source}); the newest durable state is {stale_s:.3f} s old.
    Take that state with on_late="answer", or close the writer."""

    code = "freshness.unknown"


class AsOfUnavailable(ContractError):
    """The cut as of {asked} cannot be answered for table {table!r}: {reason}. Ask for {earliest} or later."""

    code = "as_of.unavailable"


class LeaseExpired(ContractError):
    """The rows of this query were held for {held_s:.1f} s, longer than lease_ttl_s, and may have been freed. Run it again, or raise lease_ttl_s."""

    code = "lease.expired"
    retryable = True


class TooManySnapshots(ContractError):
    """{held} snapshots are held already, which is the bound. Let queries finish, then ask again."""

    code = "snapshot.too_many"
    retryable = True


class AnswerTooLarge(ContractError):
    """The answer has {size} bytes, over the bound {bound} (answer_bytes_max). Aggregate or filter more, or raise the bound."""

    code = "answer.too_large"


class CommitError(RightTimeError):
    """The commit did not happen. The transaction is as it was; commit again or roll back."""

    code = "commit"


class CatalystFull(CommitError):
    """Table {table!r} holds {used} bytes of rows that are not stored yet, over its bound {bound} ({setting}), and nothing became free within {waited_s:.3f} s.
    Materialize (commit(materialize=True) or Warehouse.materialize) or raise the bound; the transaction is as it was."""

    code = "catalyst.full"
    retryable = True


class LogFull(CommitError):
    """The write-ahead log holds {used} bytes, over the bound {bound} (log_bytes_max).
    Materialize to empty it, or raise the bound; the transaction is as it was."""

    code = "log.full"
    retryable = True


class CommitFailed(CommitError):
    """The commit of source {source!r} failed in step {step!r}: {reason}.
    Nothing of it is visible and the transaction is as it was; commit again or roll back."""

    code = "commit.failed"
    retryable = True


class StoringFailed(CommitFailed):
    """Rows could not be stored, in step {step!r}: {reason}.
    Everything committed stays as it is, in memory or in the log; remove the cause, then materialize again."""

    code = "storing.failed"


class NotStored(CommitError):
    """Commit {number} of source {source!r} is made and is in the write-ahead log, but could not be stored: {reason}.
    Do not commit it again; it is stored with the next materialization."""

    code = "commit.not_stored"
    retryable = True


class NotLazy(CommitError):
    """A lazy commit to table {table!r} cannot be taken now: an operation on it is being tried, and needs every row. Producers commit at once instead."""

    code = "commit.not_lazy"
    retryable = True


class KeyTaken(CommitError):
    """Table {table!r} has a row with the key {key} already, and its keys are unique. Nothing was committed; roll back, or change the rows and commit again."""

    code = "key.taken"


class CommitUnknown(CommitError):
    """Nobody can say whether the commit of source {source!r} happened: {reason}.
    Commit again: as long as the transaction is the same it happens at most once; or roll back and look what is there."""

    code = "commit.unknown"
    retryable = True


class ProducerClosed(CommitError):
    """Producer {source!r} is closed. Open another with Warehouse.producer()."""

    code = "producer.closed"


class WarehouseError(RightTimeError):
    """The warehouse cannot be used. See the context."""

    code = "warehouse"


class NotAWarehouse(WarehouseError):
    """{path} is not a righttime warehouse: {reason}. Name a new folder or a database where one may be made, or where there is one."""

    code = "warehouse.not_one"


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


class DatabaseUnreachable(WarehouseError):
    """The database of {path} does not answer: {reason}. Start it or correct the address, then try again."""

    code = "database.unreachable"
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


class ServiceError(RightTimeError):
    """The service cannot be used. See the context."""

    code = "service"


class ServiceUnreachable(ServiceError):
    """The service at {target} did not answer within {waited_s:.1f} s: {reason}. Start it or correct the address, then call again."""

    code = "service.unreachable"
    retryable = True


class ServiceBusy(ServiceError):
    """The service has {used} {what} open, which is its bound ({setting}). Close some, or call again later."""

    code = "service.busy"
    retryable = True


class ServiceStopping(ServiceError):
    """The service at {target} is stopping and takes no new work. Call again when it has been started anew."""

    code = "service.stopping"
    retryable = True


class ServiceFailed(ServiceError):
    """The service failed in a way that it has no name for: {reason}. Look into its log; this is a bug in righttime."""

    code = "service.failed"


class SessionLost(ServiceError):
    """The service does not know the session of producer {source!r} any more, because it was restarted or heard nothing for too long; {lost}.
    Close the producer, open it again, and load that again; Warehouse.losses() names what is lost."""

    code = "session.lost"


class AccessDenied(ServiceError):
    """The service refuses to {action}: {reason}. Give a token that allows it (token= or RIGHTTIME_TOKEN)."""

    code = "access.denied"


class ClocksApart(ServiceError):
    """The clock of {target} is {ahead_s:.1f} s behind the others, over the bound {bound_s} s (clock_skew_s).
    Set the clocks of the machines, or raise the bound."""

    code = "service.clocks_apart"


class BadMessage(ServiceError):
    """The service got something that is no message of righttime: {reason}. Use the same version of righttime on both sides."""

    code = "message.bad"


class MessageTooLarge(ServiceError):
    """A message of {size} bytes is over the bound {bound} (message_bytes_max). Commit in smaller parts, or raise the bound of the service."""

    code = "message.too_large"


class ReceiptError(RightTimeError):
    """The receipt cannot be used. See the context."""

    code = "receipt"


class ReceiptForged(ReceiptError):
    """Receipt {receipt!r} was not issued by this warehouse in this form: {reason}. Ask the one who gave it for the original."""

    code = "receipt.forged"


class ReceiptUnbound(ReceiptError):
    """Receipt {receipt!r} is not bound to an open warehouse. Open the warehouse and call Warehouse.verify(receipt)."""

    code = "receipt.unbound"


class ReceiptUnknown(ReceiptError):
    """There is no receipt {receipt!r} in this warehouse. List them with `righttime receipt list`."""

    code = "receipt.unknown"
