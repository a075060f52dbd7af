"""The dead letters of a flow: rows that a step could not take, as a table that is kept like the other targets.

In: rows that failed in a drain, with the step, the reason, and whether the row came or was taken back.
Out: lines of the table `<flow>_dead_letters`, job by job, and the same as state of the flow.
Promise: a row that failed and was deleted later is no dead letter any more; nothing is counted twice.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from righttime.changes.schema import TableSchema, declare_table

STEP = "dead_letters"
PART = "letters"
_COLUMNS = "id STRING NOT NULL, step STRING, line STRING, reason STRING, row STRING, times BIGINT, job BIGINT"
_STATE = pa.schema([("step", pa.string()), ("line", pa.string()), ("reason", pa.string()), ("row", pa.string()), ("_job", pa.int64()), ("_w", pa.int64())])


def letters_table(flow: str) -> TableSchema:
    """Return the table in which a flow keeps its dead letters."""
    return declare_table(f"{flow}_dead_letters", _COLUMNS, keys=["id"])


@dataclass(frozen=True, slots=True)
class Letter:
    """A row that failed, `times` times, first in `job`; `line` is the file and line of the step that it failed in, `row` is JSON."""

    step: str
    line: str
    reason: str
    row: str
    times: int
    job: int

    @property
    def letter_id(self) -> str:
        return hashlib.blake2b("\0".join((self.step, self.reason, self.row)).encode(), digest_size=16).hexdigest()


class LetterBook:
    """All dead letters of one flow; used by its engine only, one drain after the other."""

    def __init__(self, flow: str) -> None:
        self.table = letters_table(flow)
        self._letters: dict[str, Letter] = {}

    def __len__(self) -> int:
        return len(self._letters)

    def load(self, state: pa.Table) -> None:
        """Begin with what earlier drains left."""
        for row in state.sort_by("_job").to_pylist():
            self._apply(Letter(row["step"], row["line"], row["reason"], row["row"], row["_w"], row["_job"]))

    def take(self, failed: pa.Table) -> tuple[dict[int, pa.Table], pa.Table]:
        """Take the failed rows of a drain; return the lines of the table by job, and what to keep as state."""
        rows = failed.to_pylist()
        lines: dict[int, list[dict[str, Any]]] = {}
        for number in sorted({row["job"] for row in rows}):
            mine = [Letter(row["step"], row["origin"], row["reason"], row["row"], row["weight"], number) for row in rows if row["job"] == number]
            lines[number] = list(self._lines(mine, number))
        schema = pa.schema([("_job", pa.int64()), ("_op", pa.string()), *self.table.columns])
        kept = [
            {"step": row["step"], "line": row["origin"], "reason": row["reason"], "row": row["row"], "_job": row["job"], "_w": row["weight"]} for row in rows
        ]
        return {number: pa.Table.from_pylist(each, schema=schema) for number, each in lines.items() if each}, pa.Table.from_pylist(kept, schema=_STATE)

    def _lines(self, failed: list[Letter], number: int) -> Iterator[dict[str, Any]]:
        before = {letter.letter_id: self._letters.get(letter.letter_id) for letter in failed}
        for letter in failed:
            self._apply(letter)
        for letter_id, old in before.items():
            new = self._letters.get(letter_id)
            if new == old:
                continue
            kind = "insert" if old is None else "delete" if new is None else "update"
            shown = new or old
            assert shown is not None
            yield {
                "_job": number,
                "_op": kind,
                "id": letter_id,
                "step": shown.step,
                "line": shown.line,
                "reason": shown.reason,
                "row": shown.row,
                "times": shown.times,
                "job": shown.job,
            }

    def _apply(self, letter: Letter) -> None:
        known = self._letters.get(letter.letter_id)
        times = letter.times + (known.times if known is not None else 0)
        if times:
            self._letters[letter.letter_id] = replace(letter, times=times, job=known.job if known is not None else letter.job)
        else:
            self._letters.pop(letter.letter_id, None)
