"""Named points at which a test may kill the process; each marks a step whose loss must be survivable.

In: `RIGHTTIME_CRASH_AT=name[:n]`, read once at import: die at the n-th arrival at that point.
Out: nothing; in production every call is one comparison.
Promise: the list below is complete, and the fault tests run over all of it.
"""

import os
import signal
from enum import StrEnum


class CrashPoint(StrEnum):
    """Steps of commit, log, materialize, ledger, gc and streams, in the order they happen."""

    COMMIT_STAGED = "commit.staged"  # rows encoded, nothing written
    COMMIT_PUBLISHED = "commit.published"  # visible in memory
    LOG_WRITTEN = "log.written"  # record in the page cache only
    LOG_SYNCED = "log.synced"  # record on disk, ledger does not know it
    FILES_WRITTEN = "materialize.files_written"  # data files synced, table log untouched
    TABLE_COMMITTED = "materialize.table_committed"  # one table's Delta commit done, others and the ledger not
    TABLES_COMMITTED = "materialize.tables_committed"  # all Delta commits done, ledger not
    LEDGER_BEGUN = "ledger.begun"  # inside the SQLite transaction
    LEDGER_COMMITTED = "ledger.committed"  # durable, memory not told
    NOTICE_GIVEN = "materialize.notice_given"  # catalyst told, old log not removed
    LOG_REMOVED = "log.removed"  # superseded log files gone
    GC_PLANNED = "gc.planned"  # victims chosen, none removed
    GC_REMOVED_ONE = "gc.removed_one"  # some removed
    FEED_WRITTEN = "feed.written"  # an append to streams in the page cache only
    FEED_SYNCED = "feed.synced"  # durable, not acknowledged
    SEGMENT_WRITTEN = "segment.written"  # a stream's tail in a Parquet file without its name
    SEGMENT_NAMED = "segment.named"  # the segment counts, the feed log has its rows too
    FEED_BEGUN = "feed.begun"  # next file of the feed log there, old ones not removed
    FEED_REMOVED = "feed.removed"  # a superseded file of the feed log gone
    JOB_PREPARED = "job.prepared"  # a flow's job has its inputs, nothing is computed
    JOB_COMPUTED = "job.computed"  # results are in memory, operators' state is not written
    JOB_STAGED = "job.staged"  # computed, operators' state written, nothing visible
    JOB_PUBLISHED = "job.published"  # visible in memory, not durable


_name, _, _count = os.environ.get("RIGHTTIME_CRASH_AT", "").partition(":")
_armed = CrashPoint(_name) if _name else None
_arrivals_left = int(_count or "1")


def reach(point: CrashPoint) -> None:
    """Die here by SIGKILL if a test armed this point; otherwise return at once."""
    global _arrivals_left
    if point is not _armed:
        return
    _arrivals_left -= 1
    if _arrivals_left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
