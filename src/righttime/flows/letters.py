"""The dead letters of a flow: rows that a step could not take, as a table that is kept like the other targets.

In: rows that failed in a drain, with the step, the reason, and whether the row came or was taken back.
Out: lines of the table `<flow>_dead_letters`, job by job, and the same as state of the flow.
Promise: a row that failed and was deleted later is no dead letter any more; nothing is counted twice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from righttime.catalyst.table import MemoryTable
from righttime.changes.schema import TableSchema, declare_table
from righttime.errors.flows import TooManyDeadLetters
from righttime.errors.spark_words import in_short
from righttime.flows.replays import Retried
from righttime.pipeline.again import rows_again
from righttime.pipeline.failed import DeadLetter
from righttime.pipeline.filed import Lines, jobs_of, lines_of

STEP = "dead_letters"
PART, IMAGES, FIRSTS = "letters", "images", "first_jobs"
_COLUMNS = "id STRING NOT NULL, step STRING, line STRING, reason STRING, row STRING, times BIGINT, job BIGINT"
_IMAGES = pa.schema([("id", pa.string()), ("image", pa.binary()), ("_job", pa.int64()), ("_w", pa.int64())])
_FIRSTS = pa.schema([("id", pa.string()), ("first", pa.int64()), ("_job", pa.int64()), ("_w", pa.int64())])
_STATE = pa.schema([("step", pa.string()), ("line", pa.string()), ("reason", pa.string()), ("row", pa.string()), ("_job", pa.int64()), ("_w", pa.int64())])


def letters_table(flow: str) -> TableSchema:
    """Return the table in which a flow keeps its dead letters."""
    return declare_table(letters_name(flow), _COLUMNS, keys=["id"])


def letters_name(flow: str) -> str:
    """Return the name of that table."""
    return f"{flow}_dead_letters"


def letters_kept(flow: str, tables: Mapping[str, MemoryTable]) -> int:
    """Return how many dead letters the table of a flow has, as it is published; the caller holds the lock of the tables."""
    table = tables.get(letters_name(flow))
    return 0 if table is None else table.rows_kept()


@dataclass(frozen=True, slots=True)
class Letter:
    """A row that failed, `times` times, first in `job`; `line` is the file and line of the step that it failed in, `row` is JSON."""

    step: str
    line: str
    reason: str
    row: str
    times: int
    job: int


class LetterBook:
    """All dead letters of one flow; used by its engine only, one drain after the other.

    A row that a table cannot hold (`keys` by such steps) is one letter for each key, which the next line of that key replaces or takes away.
    """

    def __init__(self, flow: str, keys: Mapping[str, Sequence[str]], *, letters_max: int) -> None:
        self.table = letters_table(flow)
        self._flow = flow
        self._keys = keys
        self._letters_max = letters_max
        self._letters: dict[str, Letter] = {}
        self._images: dict[str, Counter[bytes]] = {}  # of letters that can be tried again
        self._images_kept: list[dict[str, Any]] = []
        self._firsts_kept: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._letters)

    def load(self, state: pa.Table) -> None:
        """Begin with what earlier drains left."""
        for row in state.group_by(["step", "line", "reason", "row"]).aggregate([("_w", "sum"), ("_job", "max")]).to_pylist():
            if row["_w_sum"]:
                letter = Letter(row["step"], row["line"], row["reason"], row["row"], row["_w_sum"], row["_job_max"])
                self._letters[self._id(letter)] = letter

    def load_firsts(self, state: pa.Table) -> None:
        """Begin with the jobs in which letters came; call it after `load`. What was kept before these were has the last job that changed it."""
        for row in state.group_by(["id", "first"]).aggregate([("_w", "sum")]).to_pylist():
            if row["_w_sum"] > 0 and row["id"] in self._letters:
                self._letters[row["id"]] = replace(self._letters[row["id"]], job=row["first"])

    def kept_firsts(self) -> pa.Table:
        """Return in which jobs letters of the last drain came and which went with it, to keep as state: that of other rows is summed up over all jobs."""
        rows, self._firsts_kept = self._firsts_kept, []
        return pa.Table.from_pylist(rows, schema=_FIRSTS)

    def load_images(self, state: pa.Table) -> None:
        """Begin with the images that earlier drains left."""
        for row in state.to_pylist():
            self._images.setdefault(row["id"], Counter())[row["image"]] += row["_w"]

    def kept_images(self) -> pa.Table:
        """Return which images the last drain brought and took, to keep as state."""
        rows, self._images_kept = self._images_kept, []
        return pa.Table.from_pylist(rows, schema=_IMAGES)

    def again(self, ids: Collection[str] | None, *, job: int) -> Retried:
        """Return what is given to steps once more: all letters that have an image, or those of these ids. They are taken away by `take`."""
        chosen = [name for name in self._letters if (ids is None or name in ids) and +self._images.get(name, Counter())]
        steps: dict[str, Counter[bytes]] = {}
        failed = []
        for name in chosen:
            letter = self._letters[name]
            for image, times in (+self._images[name]).items():
                steps.setdefault(letter.step, Counter())[image] += times
                failed.append(DeadLetter(letter.step, letter.line, letter.reason, job, -times, letter.row, image))
        unknown = tuple(sorted(set(ids or ()) - self._letters.keys()))
        return Retried({step: rows_again(images, job=job) for step, images in steps.items()}, failed, unknown)

    def take(self, failed: pa.Table, targets: Mapping[str, Lines], parts_of: Mapping[int, int]) -> tuple[dict[int, pa.Table], pa.Table]:
        """Take the failed rows of a drain, and the lines that did not fail; return the lines of our table by job, and what to keep as state.

        `parts_of` has the jobs that are shown for those that are parts of them.
        """
        rows = failed.to_pylist()
        jobs = {row["job"] for row in rows}
        # A letter may end in the drain that brings it.
        held = self._held() | {row["step"] for row in rows if row["step"] in self._keys}
        touched = (targets.get(step.removeprefix("into_")) for step in held)
        jobs |= {number for lines in touched if lines is not None for number in jobs_of(lines)}
        lines: dict[int, pa.Table] = {}
        kept: list[dict[str, Any]] = []
        schema = pa.schema([("_job", pa.int64()), ("_op", pa.string()), *self.table.columns])
        for number in sorted(jobs):
            before = dict(self._letters)
            self._take_away(targets, number)
            # First what comes: what goes is among it, or was there before.
            for row in sorted((row for row in rows if row["job"] == number), key=lambda row: row["weight"] < 0):
                given = Letter(row["step"], row["origin"], row["reason"], row["row"], row["weight"], parts_of.get(number, number))
                for letter in self._worded(given, row.get("image")):
                    self._apply(letter)
                    self._note_image(letter, row.get("image"), number)
            changed = [(name, before.get(name), self._letters.get(name)) for name in before.keys() | self._letters.keys()]
            changed = [(name, old, new) for name, old, new in changed if old != new]
            kept += [_state(old, -old.times, number) for _, old, _ in changed if old is not None]
            kept += [_state(new, new.times, number) for _, _, new in changed if new is not None]
            for name, old, new in changed:
                if old is None or new is None or old.job != new.job:
                    self._firsts_kept += [{"id": name, "first": one.job, "_job": number, "_w": w} for one, w in ((old, -1), (new, 1)) if one is not None]
            if changed:
                lines[number] = pa.Table.from_pylist([_line(*one, number) for one in changed], schema=schema)
        if len(self._letters) > self._letters_max:
            last = next(reversed(self._letters.values()))
            reason = f"{len(self._letters)} rows wait in {self.table.name}; {last.reason}"
            raise TooManyDeadLetters(flow=self._flow, bound=self._letters_max, jobs=str(max(jobs)), origin=last.line, reason=reason)
        return lines, pa.Table.from_pylist(kept, schema=_STATE)

    def _note_image(self, letter: Letter, image: bytes | None, number: int) -> None:
        if image is None:
            return
        name = self._id(letter)
        known = self._images.setdefault(name, Counter())
        if letter.times < 0 and known[image] <= 0:
            # One of a letter that came before images were kept, or that differs in nothing that can be seen.
            image = next(iter(+known), image)
        known[image] += letter.times
        self._images_kept.append({"id": name, "image": image, "_job": number, "_w": letter.times})
        if not known[image]:
            del known[image]
        if name not in self._letters:
            del self._images[name]

    def _worded(self, letter: Letter, image: bytes | None) -> list[Letter]:
        """Return the letter with its reason in short, unless it is known by a long one: the first version kept these, and it is the same letter.

        A row that goes has the reasons that it came with, whatever it fails for now: what a function raises may have an address or a time in it.
        """
        short = replace(letter, reason=in_short(letter.reason))
        own = letter if self._id(letter) in self._letters else short
        if letter.times > 0 or letter.step in self._keys:
            return [own]
        known = self._letters.get(self._id(own))
        if known is not None and known.times + letter.times >= 0 and (image is None or self._times(self._id(own), image) + letter.times >= 0):
            return [own]
        return self._parted(own, image)

    def _parted(self, letter: Letter, image: bytes | None) -> list[Letter]:
        """Return what goes as parts of the letters that the row came with, those of its image first: one that stays could be tried again, and is no row."""
        same = [(name, one) for name, one in self._letters.items() if (one.step, one.row) == (letter.step, letter.row) and one.times > 0]
        same.sort(key=lambda each: (self._times(each[0], image) <= 0, each[0] != self._id(letter)))
        parts, left = [], -letter.times
        for name, one in same:
            here = min(left, self._times(name, image) or one.times)
            if here > 0:
                parts.append(replace(letter, reason=one.reason, times=-here))
                left -= here
        return [*parts, replace(letter, times=-left)] if left else parts

    def _times(self, name: str, image: bytes | None) -> int:
        """Return how often a letter has an image."""
        return self._images[name][image] if image is not None and name in self._images else 0

    def _held(self) -> set[str]:
        """Return the steps into tables that have letters."""
        return {letter.step for letter in self._letters.values() if letter.step in self._keys}

    def _take_away(self, targets: Mapping[str, Lines], number: int) -> None:
        """A line of a key that the table could take, or its end, is the end of that key's letter."""
        for step in self._held():
            found = targets.get(step.removeprefix("into_"))
            if found is not None:
                for some in lines_of(found, number):
                    for line in some.select(list(self._keys[step])).to_pylist():
                        self._letters.pop(_key_id(step, line), None)

    def _apply(self, letter: Letter) -> None:
        name = self._id(letter)
        if letter.step in self._keys:
            if letter.times > 0:
                self._letters[name] = replace(letter, times=1)
            else:
                self._letters.pop(name, None)
            return
        known = self._letters.get(name)
        times = letter.times + (known.times if known is not None else 0)
        if times:
            self._letters[name] = replace(letter, times=times, job=known.job if known is not None else letter.job)
        else:
            self._letters.pop(name, None)

    def _id(self, letter: Letter) -> str:
        if letter.step in self._keys:
            row = json.loads(letter.row)
            return _key_id(letter.step, {key: row.get(key) for key in self._keys[letter.step]})
        return _digest(letter.step, letter.reason, letter.row)


def _key_id(step: str, key: Mapping[str, Any]) -> str:
    return _digest(step, json.dumps(key, default=str, sort_keys=True))


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _state(letter: Letter, weight: int, number: int) -> dict[str, Any]:
    return {"step": letter.step, "line": letter.line, "reason": letter.reason, "row": letter.row, "_job": number, "_w": weight}


def _line(name: str, old: Letter | None, new: Letter | None, number: int) -> dict[str, Any]:
    shown = new or old
    assert shown is not None
    kind = "insert" if old is None else "delete" if new is None else "update"
    about = {"step": shown.step, "line": shown.line, "reason": shown.reason, "row": shown.row, "times": shown.times, "job": shown.job}
    return {"_job": number, "_op": kind, "id": name, **about}
