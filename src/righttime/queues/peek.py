"""Looking at streams without opening them: what their files hold at this moment.

In: the folder of the streams, which another process may have open.
Out: declarations, and the times and sizes of commits.
Promise: writes and locks nothing. What is reported is durable; what is appended meanwhile may be missing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from righttime.errors import WarehouseDamaged
from righttime.queues.commits import commits_in
from righttime.queues.declared import StreamSchema
from righttime.queues.feed_log import Record, read_records
from righttime.queues.history import CommitTimes
from righttime.queues.letters import DeadLetters
from righttime.queues.segments import COMMIT_COLUMNS, Commits, commits_of


@dataclass(frozen=True, slots=True)
class Peeked:
    """One stream: its declaration, its commits, up to when its source said it is complete, and its dead letters."""

    schema: StreamSchema
    commits: CommitTimes = field(default_factory=CommitTimes)
    heartbeats: list[int] = field(default_factory=list)
    letters: DeadLetters = field(default_factory=DeadLetters)

    @property
    def rows(self) -> int:
        """All changes."""
        return self.commits.last_seq(len(self.commits))

    @property
    def last_us(self) -> int:
        """The time of the last commit, 0 if there is none."""
        last = self.commits.commit(len(self.commits))
        return 0 if last is None else last.time_us

    @property
    def complete_us(self) -> int | None:
        """Up to when the source has delivered; None: the times are the warehouse's, and the stream is always complete."""
        return max([self.last_us, *self.heartbeats]) if self.schema.times == "source" else None

    def rows_after(self, time_us: int) -> int:
        """Return how many changes were committed after a time."""
        return self.rows - self.commits.last_seq(self.commits.up_to(time_us))

    def first_after(self, time_us: int) -> int | None:
        """Return the time of the first commit after a time."""
        commit = self.commits.commit(self.commits.up_to(time_us) + 1)
        return None if commit is None else commit.time_us


def stream_names(folder: Path) -> list[str]:
    """Return the names of the streams of a folder."""
    return sorted(path.parent.name for path in folder.glob("*/stream.json"))


def peek(folder: Path) -> dict[str, Peeked]:
    """Look at all streams of a folder, by name."""
    # The log first: rows that leave it meanwhile are in segments by then.
    records = list(read_records(folder / "_feed"))
    found: dict[str, Peeked] = {}
    for path in sorted(folder.glob("*/stream.json")):
        stream = Peeked(StreamSchema.from_json(path.read_text(encoding="utf-8")))
        found[stream.schema.name] = stream
        for segment in sorted(path.parent.glob("*.parquet")):
            stream.commits.extend(_commits(segment))
    for record in records:
        _note(record, found)
    return found


def _commits(segment: Path) -> Commits:
    try:
        return commits_of(pq.read_table(segment, columns=list(COMMIT_COLUMNS)), int(segment.stem.split("-")[0]))
    except (OSError, pa.ArrowException) as error:
        raise WarehouseDamaged(path=segment, reason=f"the segment cannot be read ({error})") from error


def _note(record: Record, found: dict[str, Peeked]) -> None:
    head = record.head
    if head["kind"] == "begin":
        for stream, state in _known(head["streams"], found):
            stream.heartbeats.extend([] if state["heartbeat_us"] is None else [state["heartbeat_us"]])
            stream.letters.restore(state["letters"])
    elif head["kind"] == "heartbeat":
        for stream, time_us in _known(dict.fromkeys(head["streams"], head["time_us"]), found):
            stream.heartbeats.append(time_us)
    else:
        _note_append(head, found)


def _note_append(head: Mapping[str, Any], found: dict[str, Peeked]) -> None:
    for stream, time_us in _known(dict.fromkeys(head.get("quiet", ()), head["time_us"]), found):
        stream.heartbeats.append(time_us)
    for stream, letters in _known(head["letters"], found):
        stream.letters.add(letters)
    for stream, numbers in _known(head["resolved"], found):
        stream.letters.drop(numbers)
    for stream, part in _known({part["stream"]: part for part in head["shares"]}, found):
        if part["first_seq"] == stream.rows + 1:
            stream.commits.extend(commits_in(part, time_us=head["time_us"], transaction=head["transaction"]))


def _known(values: Mapping[str, Any], found: dict[str, Peeked]) -> Iterator[tuple[Peeked, Any]]:
    """Return streams with their values; one that was created meanwhile is not known."""
    return ((found[name], value) for name, value in values.items() if name in found)
