"""Errors of commits: those that did not happen, and those of which nobody can say it.

In: what became of a transaction.
Out: one class for each outcome, with its code and the way out.
Promise: as all errors of righttime; the tree is drawn in the package's docstring.
"""

from righttime.errors.groups import CommitError


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


class AppendUnknown(CommitUnknown):
    """Nobody can say whether the append to stream {stream} was taken: {reason}.
    Append the same changes again with the same handle of the warehouse: they are taken at most once; or look at the last commit of the stream."""

    code = "append.unknown"


class AppendForgotten(CommitUnknown):
    """An append to stream {stream} was sent before, and nobody knows any more whether it was taken: {reason}.
    Look with last and changes() whether it is there, and append it again if not."""

    code = "append.forgotten"
    retryable = False


class ProducerClosed(CommitError):
    """Producer {source!r} is closed. Open another with Warehouse.producer()."""

    code = "producer.closed"
