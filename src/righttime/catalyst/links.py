"""Links: what the catalyst knows of a producer that commits lazily, and how it asks it for rows.

In: announcements of archived commits, signs of life, answers.
Out: requests for data ("everything of table m committed up to t"), and whether the producer still answers.
Promise: a commit that is archived is announced before any query can pick a cut beyond it.
"""

from dataclasses import dataclass, field
from threading import Condition


@dataclass(slots=True)
class Link:
    """One open producer; the catalyst's lock guards it, `asked` wakes the producer's listener."""

    source: str
    asked: Condition
    policy: str
    archived_from: dict[str, int] = field(default_factory=dict)
    archived_rows: int = 0
    staged: dict[str, int] = field(default_factory=dict)
    staged_rows: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    alive_s: float = 0.0
    closed: bool = False

    def archive(self, tables: list[str], time_us: int, *, rows: int) -> None:
        """Note a lazy commit: these tables have unflushed rows from `time_us` on."""
        for table in tables:
            self.archived_from.setdefault(table, time_us)
        self.archived_rows += rows

    def request(self, table: str, time_us: int) -> None:
        """Ask for everything of `table` committed up to `time_us`."""
        if self.requests.get(table, 0) < time_us:
            self.requests[table] = time_us
            self.asked.notify_all()

    def complete_us(self, *, otherwise_us: int) -> int:
        """Return the newest time up to which nothing of this producer is unflushed, over all its tables."""
        return min(self.archived_from.values(), default=otherwise_us + 1) - 1
