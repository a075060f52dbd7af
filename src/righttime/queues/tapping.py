"""Streams that follow a table: the commits of the table become the commits of the stream.

In: what some commits of a table changed, in their order, and the time up to which that is all.
Out: as many commits of the stream, each with its own time and transaction.
Promise: all of it is there or nothing, whenever it comes and however many commits come together.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from righttime.queues.appending import Terms
from righttime.queues.commits import CommitIn
from righttime.queues.declared import Appended
from righttime.queues.feed import Work
from righttime.queues.replaying import ReplayedStreams


class FollowingStreams(ReplayedStreams):
    """The same with what taps append."""

    def append_commits(self, name: str, changes: pa.Table, commits: Sequence[CommitIn], *, up_to_us: int) -> Appended:
        """Append the rows of `changes`, parted as `commits` say, and note that nothing else came up to a time.

        It is one record of the log: a tap that is far behind would otherwise wait for the disk with each commit.
        """
        assert changes.num_rows == sum(commit.rows for commit in commits)
        given = self._given(name, changes)

        def works() -> list[Work]:
            work = self._judged(given, commits[0].time_us if commits else up_to_us)
            return [replace(work, commits=commits, quiet=(work.stream.watermark_us or 0) < up_to_us)]

        straight = self._is_large(given)
        appended = self._take(works, name, Terms(time_us=up_to_us, straight=straight))
        if straight:  # past the log, where the time would be
            self.heartbeat(name, up_to_us)
        return appended
