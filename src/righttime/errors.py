"""Every error that righttime raises on purpose, as one tree.

    RightTimeError
    ├── InputError               what was passed in cannot be accepted; nothing changed
    │   ├── UnknownTable         table.unknown
    │   ├── UnknownColumn        column.unknown
    │   ├── TableExists          table.exists
    │   ├── BadTable             table.bad
    │   ├── WrongType            value.type
    │   ├── NullNotAllowed       value.null
    │   ├── BatchTooLarge        batch.too_large
    │   ├── BadFreshness         freshness.bad
    │   ├── BadPolicy            policy.bad
    │   ├── BadSetting           setting.bad
    │   ├── BadSource            source.bad
    │   ├── SqlRefused           sql.refused
    │   └── SqlFailed            sql.failed
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
    │   └── ProducerClosed       producer.closed
    ├── WarehouseError           the folder or one of its tables cannot be used
    │   ├── NotAWarehouse        warehouse.not_one
    │   ├── WarehouseNewer       warehouse.newer
    │   ├── WarehouseLocked      warehouse.locked        (retryable)
    │   ├── WarehouseClosed      warehouse.closed
    │   ├── WarehouseReadOnly    warehouse.read_only
    │   ├── WarehouseDamaged     warehouse.damaged
    │   ├── ForeignCommit        warehouse.foreign_commit
    │   └── JavaMissing          java.missing
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


class SqlRefused(InputError):
    """This statement is not accepted here: {reason}. {way_out}"""

    code = "sql.refused"


class SqlFailed(InputError):
    """Spark could not run the query over {tables}: {reason}. Correct the query."""

    code = "sql.failed"


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


class ProducerClosed(CommitError):
    """Producer {source!r} is closed. Open another with Warehouse.producer()."""

    code = "producer.closed"


class WarehouseError(RightTimeError):
    """The warehouse cannot be used. See the context."""

    code = "warehouse"


class NotAWarehouse(WarehouseError):
    """{path} is not a righttime warehouse: {reason}. Name an empty or new folder to create one, or the folder of an existing one."""

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


class JavaMissing(WarehouseError):
    """Spark needs a Java runtime of version 17 or newer, and none was found ({looked}). Install one, set JAVA_HOME, or install righttime[java]."""

    code = "java.missing"


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
