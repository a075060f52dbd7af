"""Errors of queries: their SQL, their contracts, their receipts.

In: what code that asks, or that shows a receipt, did.
Out: one class for each outcome, with its code and the way out.
Promise: as all errors of righttime; the tree is drawn in the package's docstring.
"""

from righttime.errors.groups import ContractError, InputError, ReceiptError
from righttime.errors.spark_words import SaysWhy


class SqlRefused(InputError):
    """This statement is not accepted here: {reason}. {way_out}"""

    code = "sql.refused"


class SqlFailed(SaysWhy, InputError):
    """Spark could not run the query over {tables}: {reason}. Correct the query."""

    code = "sql.failed"


class SqlFailedInDatabase(SqlFailed):
    """PostgreSQL could not run the query over {tables}: {reason}. Correct the query."""

    code = "sql.failed_in_database"


class NotInSnapshot(InputError):
    """Table {table!r} is not in this snapshot, which has {known}. Name the table when you take the snapshot, or ask the warehouse."""

    code = "snapshot.without_table"


class FreshnessUnavailable(ContractError):
    """Table {table!r}: source {source!r} could not be brought to the asked freshness within {waited_s:.3f} s; it is {stale_s:.3f} s stale ({why}).
    Ask for a larger freshness, wait longer (wait=), restart the source, or take the stale answer with on_late="answer"."""

    code = "freshness.unavailable"
    retryable = True


class FreshnessUnknown(FreshnessUnavailable):
    """No freshness can be promised for table {table!r}: {why} ({source}); the newest durable state is {stale_s:.3f} s old.
    Take that state with on_late="answer", or close the writer."""

    code = "freshness.unknown"


class FlowAsleep(FreshnessUnavailable):
    """Table {table!r} is {stale_s:.3f} s stale, and flow {flow!r}, which keeps it, brings it no further: {why}.
    Waiting does not help: run the flow, ask for a larger freshness, or take the stale answer with on_late="answer"."""

    code = "freshness.flow_asleep"
    retryable = False


class AsOfUnavailable(ContractError):
    """The cut as of {asked} cannot be answered for table {table!r}: {reason}. Ask for {earliest} or later."""

    code = "as_of.unavailable"


class LeaseExpired(ContractError):
    """The rows of this query are not held any more: {reason}. Run it again."""

    code = "lease.expired"
    retryable = True

    @classmethod
    def after(cls, held_s: float) -> "LeaseExpired":
        """Return the error for a query that took too long."""
        return cls(reason=f"they were for {held_s:.1f} s, longer than lease_ttl_s, which can be raised")


class TooManySnapshots(ContractError):
    """{held} snapshots are held already, which is the bound. Let queries finish, then ask again."""

    code = "snapshot.too_many"
    retryable = True


class AnswerTooLarge(ContractError):
    """The answer has {size} bytes, over the bound {bound} (answer_bytes_max). Aggregate, filter or take a shorter span, or raise the bound."""

    code = "answer.too_large"


class AnswerUnreadable(ContractError):
    """Column {column!r} of the answer has a value that Python has none for ({reason}). Cast the column to STRING in the query, or take Answer.arrow()."""

    code = "answer.unreadable"


class ReceiptForged(ReceiptError):
    """Receipt {receipt!r} was not issued by this warehouse in this form: {reason}. Ask the one who gave it for the original."""

    code = "receipt.forged"


class ReceiptUnbound(ReceiptError):
    """Receipt {receipt!r} is not bound to an open warehouse. Open the warehouse and call Warehouse.verify(receipt)."""

    code = "receipt.unbound"


class ReceiptUnknown(ReceiptError):
    """There is no receipt {receipt!r} in this warehouse. List them with `righttime receipt list`."""

    code = "receipt.unknown"


class ReceiptUnproven(ReceiptError):
    """Receipt {receipt!r} cannot be verified from here now: {why} (process {writer}).
    Verify it there, or here once that process has made its commits durable."""

    code = "receipt.unproven"
    retryable = True
