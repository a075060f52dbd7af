"""The two indexes of a lane: which rows are where, and which commit time covers which row.

In: row ids and commit times, each only ever growing.
Out: positions for a row-id interval; the newest row committed at or before a time.
Promise: uncommitted rows carry no finite time, so no time, however late, reaches them.
"""

from bisect import bisect_left, bisect_right


class TimeIndex:
    """Commit time to the id of the last row committed then; `uncommitted_id` stands for the time stamp ∞."""

    __slots__ = ("ids", "times", "uncommitted_id")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.ids: list[int] = []
        self.uncommitted_id: int | None = None

    @property
    def newest_us(self) -> int:
        """The greatest finite time, 0 if there is none."""
        return self.times[-1] if self.times else 0

    @property
    def committed_id(self) -> int:
        """The id of the newest committed row, 0 if there is none."""
        return self.ids[-1] if self.ids else 0

    def add(self, time_us: int, row_id: int) -> None:
        """Note that everything up to `row_id` was committed at or before `time_us`."""
        assert time_us > self.newest_us, (time_us, self.newest_us)
        assert row_id >= self.committed_id, (row_id, self.committed_id)
        if len(self.ids) >= 2 and self.ids[-1] == self.ids[-2] == row_id:
            # A run of watermarks without rows needs only its ends: every time between them gives the same row.
            self.times[-1] = time_us
            return
        self.times.append(time_us)
        self.ids.append(row_id)

    def at(self, time_us: int) -> int:
        """Return the id of the last row committed at or before `time_us`, -1 if no time is indexed that early."""
        place = bisect_right(self.times, time_us)
        return self.ids[place - 1] if place else -1

    def time_of(self, row_id: int) -> int:
        """Return the time at which `row_id` was committed (the first indexed time that covers it), 0 if none does."""
        place = bisect_left(self.ids, row_id)
        return self.times[place] if place < len(self.ids) else 0

    def at_or_after(self, time_us: int) -> list[int]:
        """Return the indexed times at or after `time_us`: C(m, t) of the paper."""
        return self.times[bisect_left(self.times, time_us) :]

    def entries_after(self, time_us: int, *, up_to_id: int) -> list[tuple[int, int]]:
        """Return (time, row id) entries later than `time_us` that end at or before `up_to_id`."""
        start, stop = bisect_right(self.times, time_us), bisect_right(self.ids, up_to_id)
        return list(zip(self.times[start:stop], self.ids[start:stop], strict=True))

    def forget(self, row_id: int) -> None:
        """Drop entries that end before `row_id`, but never the newest one: it answers for what was here."""
        drop = min(bisect_left(self.ids, row_id), len(self.ids) - 1)
        if drop > 0:
            del self.times[:drop], self.ids[:drop]


class RowIds:
    """The one sequence of row ids over all memory tables; ids are never reused."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def take(self, rows: int) -> int:
        """Reserve ids for `rows` rows and return the first."""
        first = self.last + 1
        self.last += rows
        return first
