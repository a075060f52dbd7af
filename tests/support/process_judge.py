"""The judge of the process simulation: it hears what clients began and were told, looks at the warehouse, and says whether both can be true.

In: events of clients; a quiet warehouse.
Out: an assertion with the story of the source, if something is lost, doubled, half there or stale.
Promise: knows only what users know: acknowledgements, the durability asked for, answers, receipts and reported losses.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from righttime.flight.warehouse import RemoteWarehouse
from righttime.ledger.sqlite import Loss
from tests.support.process_client import SOURCES, Begun, Ended, Note, Seen
from tests.support.process_plan import SPOTS, TABLES, Load, lines_after

_EXCEPTIONS_MAX = 4


@dataclass
class Fate:
    """One transaction as far as it is known; `there` says whether it is there for good."""

    load: Load
    lazy: bool
    how: str = "begun"
    number: int = 0
    time_us: int = 0
    why: str = ""
    there: bool | None = None

    @property
    def may_wait(self) -> bool:
        """Whether its rows may have been left with the producer, until somebody needs them."""
        return self.lazy and not self.load.durable and all(kind == "insert" for kind, _ in self.load.steps)

    @property
    def in_doubt(self) -> bool:
        return self.how in ("begun", "doubt")

    def __str__(self) -> str:
        commit = f" {self.number}" if self.number else ""
        return f"{self.load.source}-{self.load.number} {self.load.durability}{' lazy' if self.may_wait else ''} {self.how}{commit} {self.why[:90]}"


@dataclass
class Judge:
    """What is known of one warehouse over all lives of its service."""

    fates: dict[str, list[Fate]] = field(default_factory=lambda: {source: [] for source in SOURCES})
    answers: list[Seen] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    killed: bool = False
    judged: "Counter[str]" = field(default_factory=Counter)

    # -- what clients say --------------------------------------------------------------------------------------------

    def hear(self, event: object) -> None:
        if isinstance(event, Begun):
            self.fates[event.load.source].append(Fate(event.load, event.lazy))
        elif isinstance(event, Ended):
            fate = next(fate for fate in reversed(self.fates[event.source]) if fate.load.number == event.load)
            fate.how, fate.number, fate.time_us, fate.why = event.how, event.number, event.time_us, event.why
            self.judged[event.how] += 1
        elif isinstance(event, Seen):
            self.answers.append(event)
        elif isinstance(event, Note):
            assert event.what != "failed", event.text
            self.notes.append(f"{event.what} {event.text}")

    def keeping(self) -> list[str]:
        """Return the sources whose last commit may not have left its producer."""
        return [source for source, fates in self.fates.items() if fates and fates[-1].may_wait]

    # -- what is there -----------------------------------------------------------------------------------------------

    def look(self, warehouse: RemoteWarehouse, *, settle: bool) -> None:
        """Judge everything since the last look; nobody loads meanwhile. With `settle` all is stored first and stays for good."""
        if settle:
            warehouse.materialize(wait=60.0)
        answers = {table: warehouse.read(table, wait=60.0) for table in TABLES}
        earlier, self.losses = len(self.losses), warehouse.losses()
        self._check_losses(self.losses[earlier:])
        self._check_numbers()
        rows = {table: [tuple(row) for row in answer.rows()] for table, answer in answers.items()}
        there = self._check_rows(rows)
        for answer in self.answers:
            self._check_answer(answer)
        for receipt, sound in [(answer.receipt, self._sound(answer)) for answer in self.answers]:
            verification = warehouse.verify(receipt)
            assert verification.ok or not sound, f"{verification.detail}: {receipt}"
        self.judged["answers"] += len(self.answers)
        self.judged["looks"] += 1
        self.judged["lost"] += sum(loss.last - loss.first + 1 for loss in self.losses[earlier:])
        self.answers.clear()
        if settle:
            self._settle(there)

    def _check_losses(self, found: Sequence[Loss]) -> None:
        """What is reported as lost was not durable, and was lost by a kill or by its producer."""
        for loss in found:
            for fate in self._open(loss.source):
                if fate.how == "acknowledged" and loss.first <= fate.number <= loss.last:
                    assert not fate.load.durable, f"{fate} is reported as {loss}"
                    assert self.killed or fate.may_wait, f"nobody killed the service: {fate} is reported as {loss}"
                    later = [other for other in self._open(loss.source) if other.load.durable and other.how == "acknowledged" and other.number > fate.number]
                    saved = [other for other in later if 0 < other.time_us < loss.found_us]
                    assert not saved, f"{fate} was before {saved[0]} and is reported as {loss}"
        self.killed = False

    def _check_numbers(self) -> None:
        """Numbers of a source grow; one that nobody was told is a commit in doubt, or a lost one."""
        for source, fates in self.fates.items():
            told = [fate.number for fate in fates if fate.how == "acknowledged"]
            assert told == sorted(set(told)), self._story(source)
            unknown = [number for number in range(1, max(told, default=0)) if number not in set(told) and not self._lost(source, number)]
            assert len(unknown) <= sum(fate.in_doubt for fate in fates), f"commits {unknown} of nobody: {self._story(source)}"

    def _check_rows(self, rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[bool]]:
        """Everything is there once, or is reported as lost, or was in doubt; nothing is half there."""
        marks = Counter(rows["mark"])
        assert set(marks.values()) <= {1}, f"twice: {[mark for mark, count in marks.items() if count > 1]}"
        strangers = marks.keys() - {(source, fate.load.number) for source, fates in self.fates.items() for fate in fates}
        assert not strangers, f"nobody loaded {strangers}"
        there = {source: self._check_source(source, marks.keys(), rows["line"]) for source in SOURCES}
        hits: Counter[int] = Counter()
        for source, known in there.items():
            for fate, is_there in zip(self.fates[source], known, strict=True):
                hits += fate.load.spots if is_there else Counter()
        assert sorted(rows["spot"]) == [(spot, hits[spot]) for spot in range(SPOTS)], f"{sorted(rows['spot'])} is not {hits}"
        return there

    def _check_source(self, source: str, marks: Any, lines: list[tuple[Any, ...]]) -> list[bool]:
        there = [(source, fate.load.number) in marks for fate in self.fates[source]]
        for fate, marked in zip(self.fates[source], there, strict=True):
            self._check_mark(fate, marked)
        found = sorted((line, qty) for owner, line, qty in lines if owner == source)
        wanted = sorted(lines_after(self._ordered(source, there)).items())
        assert found == wanted, f"lines {found} instead of {wanted}: {self._story(source)}"
        return there

    def _check_mark(self, fate: Fate, marked: bool) -> None:
        source = fate.load.source
        if fate.there is not None:
            assert marked == fate.there, f"{fate} was {'there' if fate.there else 'gone'} for good, and is not: {self._story(source)}"
        elif fate.how == "refused":
            assert not marked, f"{fate} is there: {self._story(source)}"
        elif fate.how == "acknowledged":
            lost = self._lost(source, fate.number)
            assert marked or lost, f"{fate} is gone without a word: {self._story(source)}"
            assert not marked or not lost, f"{fate} is there and reported as lost: {self._story(source)}"

    def _settle(self, there: dict[str, list[bool]]) -> None:
        for source, known in there.items():
            for fate, is_there in zip(self.fates[source], known, strict=True):
                fate.there = is_there

    # -- what consumers saw ------------------------------------------------------------------------------------------

    def _check_answer(self, seen: Seen) -> None:
        """An answer is everything up to its cut, and its cut is behind nothing that was acknowledged before."""
        for source in SOURCES:
            if not seen.late and seen.freshness == 0 and (source in seen.cut or seen.table == "mark"):
                before, cut = seen.acknowledged[source], seen.cut.get(source, 0)
                assert before <= cut or self._lost(source, before), f"{source} {before} was acknowledged, cut of {seen.table} {cut}: {self._story(source)}"
        if seen.table == "spot":
            self._check_spots(seen)
            return
        for source in SOURCES:
            sure, maybe = self._inside(seen, source)
            if seen.table == "mark":
                numbers = [load for owner, load in seen.rows if owner == source]
                assert len(set(numbers)) == len(numbers), f"twice: {sorted(numbers)} of {source}"
                low = {self.fates[source][place].load.number for place in sure}
                high = low | {self.fates[source][place].load.number for place in maybe}
                assert low <= set(numbers) <= high, f"cut {seen.cut}: {sorted(numbers)} not between {sorted(low)} and {sorted(high)}: {self._story(source)}"
            else:
                self._check_lines(seen, source, sure, maybe)

    def _check_lines(self, seen: Seen, source: str, sure: set[int], maybe: list[int]) -> None:
        found = sorted((line, qty) for owner, line, qty in seen.rows if owner == source)
        for chosen in _choices(self.fates[source], maybe, found):
            inside = [place in sure or place in chosen for place in range(len(self.fates[source]))]
            if sorted(lines_after(self._ordered(source, inside)).items()) == found:
                return
        raise AssertionError(f"cut {seen.cut}: lines {found} of {source} are of no history of {self._story(source)}")

    def _check_spots(self, seen: Seen) -> None:
        low: Counter[int] = Counter()
        high: Counter[int] = Counter()
        for source in SOURCES:
            sure, maybe = self._inside(seen, source)
            if source not in seen.cut:  # then it is not known how far the answer goes
                sure, maybe = {place for place in sure if self.fates[source][place].there}, [*range(len(self.fates[source]))]
            for place in sure:
                low += self.fates[source][place].load.spots
            for place in sure | set(maybe):
                high += self.fates[source][place].load.spots
        assert len(seen.rows) == SPOTS
        for spot, hits in seen.rows:
            assert low[spot] <= hits <= high[spot], f"cut {seen.cut}: spot {spot} has {hits} hits, not between {low[spot]} and {high[spot]}"

    def _inside(self, seen: Seen, source: str) -> tuple[set[int], list[int]]:
        """Return the places of the transactions that an answer has to contain, and of those that it may contain."""
        sure, maybe = set(), []
        for place, (fate, key) in enumerate(zip(self.fates[source], self._keys(source), strict=True)):
            if fate.there is not None:
                if fate.there:
                    sure.add(place)
            elif fate.how != "refused" and key <= seen.cut.get(source, 0) + 0.5:
                if fate.in_doubt or self._lost(source, fate.number):
                    maybe.append(place)
                elif key <= seen.cut.get(source, 0):
                    sure.add(place)
        return sure, maybe

    def _sound(self, seen: Seen) -> bool:
        """Whether nothing that an answer contained was lost afterwards."""
        return not any(self._inside(seen, source)[1] for source in SOURCES)

    # -- order and losses --------------------------------------------------------------------------------------------

    def _keys(self, source: str) -> Iterator[float]:
        """Number the transactions; one in doubt comes after what was acknowledged before it."""
        last = 0
        for fate in self.fates[source]:
            last = fate.number or last
            yield fate.number or last + 0.5

    def _ordered(self, source: str, inside: Sequence[bool]) -> list[Load]:
        placed = zip(self._keys(source), range(len(inside)), self.fates[source], inside, strict=True)
        return [fate.load for _, _, fate, is_in in sorted(placed, key=lambda one: one[:2]) if is_in]

    def _lost(self, source: str, number: int) -> bool:
        return any(loss.source == source and loss.first <= number <= loss.last for loss in self.losses)

    def _open(self, source: str) -> list[Fate]:
        return [fate for fate in self.fates[source] if fate.there is None]

    def _story(self, source: str) -> str:
        losses = [(loss.first, loss.last, loss.rows) for loss in self.losses if loss.source == source]
        return "\n  ".join(["", *map(str, self._open(source)), f"lost {losses}", *self.notes[-20:]])


def _choices(fates: Sequence[Fate], maybe: Sequence[int], lines: Sequence[tuple[int, int]]) -> Iterator[set[int]]:
    """Yield which transactions of `maybe` may have left these lines: those whose new lines are there, then with more and more exceptions.

    A later delete hides a transaction, a later upsert feigns one.
    """
    ids = {line for line, _ in lines}
    shown = {place for place in maybe if ids & fates[place].load.new_lines}
    for count in range(min(len(maybe), _EXCEPTIONS_MAX) + 1):
        for others in itertools.combinations(maybe, count):
            yield shown ^ set(others)
