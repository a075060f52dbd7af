"""Dead letters that are taken again, or forgotten.

In: numbers of dead letters of a stream.
Out: one commit of those that can be taken by now.
Promise: a letter is replayed or discarded once, also if two ask for it at the same time.
"""

from collections.abc import Iterable

import numpy as np

from righttime.changes.interrupts import uninterrupted
from righttime.errors.flows import UnknownLetter
from righttime.queues.appending import FedStreams, Terms
from righttime.queues.declared import Appended
from righttime.queues.feed import Work
from righttime.queues.known import AppendId, Outcome
from righttime.queues.letters import Letter, from_text


class ReplayedStreams(FedStreams):
    """The same with what becomes of dead letters."""

    def replay(self, name: str, numbers: Iterable[int] | None = None, *, time_us: int | None = None, append_id: AppendId | None = None) -> Appended:
        """Append dead letters again, all or some; what fails again stays a dead letter, and is counted as rejected. Ids are as those of appends."""
        wanted = None if numbers is None else set(numbers)
        return self._take(lambda: [self._replayed(name, wanted, time_us)], name, Terms(None, time_us, append_id))

    def _replayed(self, name: str, numbers: Iterable[int] | None, time_us: int | None) -> Work:
        """Choose letters and judge them; the caller has the feed lock, so that nobody else takes or discards them meanwhile."""
        letters = self._letters(name, numbers)
        images = [from_text(letter["change"]) for letter in letters]
        # Letters are changes of their own, whatever lies beside them.
        units = np.repeat(np.arange(len(images)), [len(change) for change in images])
        given = self._given(name, [image for change in images for image in change], units)
        work = self._judged(given, time_us, letters_more=len(letters))
        resolved = [letter["number"] for letter, change in zip(letters, images, strict=True) for _ in change]
        work.resolved = sorted({number for number, taken in zip(resolved, given.sound(), strict=True) if taken})
        work.unresolved = len(letters) - len(work.resolved)
        return work

    def _letters(self, name: str, numbers: Iterable[int] | None) -> list[Letter]:
        letters = self._stream(name).letters
        wanted = None if numbers is None else set(numbers)
        found = letters.chosen(wanted)
        if wanted is not None and (unknown := wanted - {letter["number"] for letter in found}):
            raise UnknownLetter(stream=self.schema(name).name, numbers=", ".join(map(str, sorted(unknown, key=str))))
        return found

    def discard(self, name: str, numbers: Iterable[int] | None = None, *, append_id: AppendId | None = None) -> int:
        """Forget dead letters, all or some; return how many. Ids are as those of appends."""
        wanted = None if numbers is None else set(numbers)
        return self._with_room(lambda: self._discard(name, wanted, append_id))

    def _discard(self, name: str, numbers: Iterable[int] | None, append_id: AppendId | None) -> int:
        with self._feed.lock:
            self._check_open()
            if (known := self._known(append_id, name)) is not None:
                return known.discarded
            stream = self._stream(name)
            gone = [letter["number"] for letter in self._letters(name, numbers)]
            if gone:
                given = self._given(name, [])
                plan = stream.plan(given, time_us=None, letters_max=self._settings.stream_dead_letters_max)
                answer = None if append_id is None else (append_id, Outcome(discarded=len(gone)))
                with uninterrupted():
                    self._feed.write([Work(stream, given, plan, resolved=gone)], [], time_us=0, transaction=None, answer=answer)
        return len(gone)
