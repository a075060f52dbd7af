"""What a producer over the network owes: commits that it was told are made, and whose rows it still has.

In: lazy commits, and flushes that deliver them.
Out: flushes without what was delivered before; the losses, should the producer never come back.
Promise: a flush that comes twice counts once, and one that delivers something else than was announced is refused.
"""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from righttime.catalyst.messages import Content, Flush
from righttime.changes.position import Commit
from righttime.errors import BadMessage
from righttime.ledger.sqlite import Loss


@dataclass(slots=True)
class _Announced:
    """Commits of one table, oldest first: three numbers each, since there may be a million of them."""

    times: "array[int]" = field(default_factory=lambda: array("q"))
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, commit: Commit, rows: int) -> None:
        self.times.append(commit.time_us)
        self.numbers.append(commit.number)
        self.rows.append(rows)

    def forget(self, time_us: int) -> None:
        place = bisect_right(self.times, time_us)
        del self.times[:place], self.numbers[:place], self.rows[:place]


class Owed:
    """The debts of one producer, by table; its session's guard guards it."""

    def __init__(self) -> None:
        self._tables: dict[str, _Announced] = {}

    def note(self, commit: Commit, rows: Mapping[str, int]) -> None:
        """Remember a lazy commit."""
        for table, count in rows.items():
            if count:
                self._tables.setdefault(table, _Announced()).add(commit, count)

    def outstanding(self, flushes: Sequence[Flush], *, now_us: int) -> list[Flush]:
        """Return the flushes without commits that came before, and with what is really left afterwards."""
        return [self._outstanding(flush, now_us) for flush in flushes]

    def _outstanding(self, flush: Flush, now_us: int) -> Flush:
        announced = self._tables.get(flush.table, _Announced())
        oldest_us = announced.times[0] if announced.times else 2**63
        commits = [(time_us, content) for time_us, content in flush.commits if time_us >= oldest_us]
        if [time_us for time_us, _ in commits] != list(announced.times[: len(commits)]):
            raise BadMessage(reason=f"a flush of table {flush.table!r} leaves commits out or invents them")
        if [_rows(content) for _, content in commits] != list(announced.rows[: len(commits)]):
            raise BadMessage(reason=f"a flush of table {flush.table!r} has another number of rows than was announced")
        left = announced.times[len(commits) : len(commits) + 1]
        watermark_us = flush.watermark_us
        if watermark_us is not None and (watermark_us > now_us or (left and watermark_us >= left[0])):
            raise BadMessage(reason=f"a flush of table {flush.table!r} promises more than is known")
        return Flush(flush.table, commits, left[0] if left else None, watermark_us)

    def delivered(self, flushes: Sequence[Flush]) -> None:
        """Forget what came."""
        for flush in flushes:
            if flush.commits and flush.table in self._tables:
                self._tables[flush.table].forget(flush.commits[-1][0])
                if not self._tables[flush.table].times:
                    del self._tables[flush.table]

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def rows(self) -> int:
        return sum(sum(announced.rows) for announced in self._tables.values())

    def by_commit(self) -> dict[int, int]:
        """Return the rows that are owed of each commit, by its number."""
        rows: dict[int, int] = {}
        for announced in self._tables.values():
            for number, count in zip(announced.numbers, announced.rows, strict=True):
                rows[number] = rows.get(number, 0) + count
        return rows

    def losses(self, source: str, *, found_us: int) -> list[Loss]:
        """Return the debts as losses: runs of neighbouring commits."""
        rows = self.by_commit()
        numbers = sorted(rows)
        losses: list[Loss] = []
        begin = 0
        for end in range(1, len(numbers) + 1):
            if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
                run = numbers[begin:end]
                losses.append(Loss(source, run[0], run[-1], sum(rows[number] for number in run), found_us))
                begin = end
        return losses


def _rows(content: Sequence[Content]) -> int:
    return sum(part.rows for part in content)
