"""What the producers of the process simulation do, and what that leaves: transactions as values, and a model too simple to be wrong.

In: a seed, a source, the number of a transaction.
Out: its steps, for a producer to carry out and for the judge to apply.
Promise: sources touch only rows of their own, or count where the order does not matter, so the rows of a source depend on its own commits alone.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from righttime.catalyst.producer import Durability, Producer
from righttime.changes.conditions import Expression

TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mark": ("source STRING, load INT", ()),
    "line": ("source STRING, id INT, qty INT", ("source", "id")),
    "spot": ("spot INT, hits INT", ("spot",)),
}
SPOTS = 4
LOAD_LINES = 10
"""A load adds lines with ids from ten times its number on."""

Step = tuple[str, Any]
Lines = dict[int, int]


@dataclass(frozen=True)
class Load:
    """One transaction: a mark, lines and what is done to older lines, perhaps a hit on a spot that all sources share."""

    source: str
    number: int
    steps: tuple[Step, ...]
    durability: Durability
    batch_id: str | None
    kept: bool

    @property
    def spots(self) -> "Counter[int]":
        return Counter(spot for kind, spot in self.steps if kind == "hit")

    @property
    def new_lines(self) -> set[int]:
        """The lines that no other transaction inserts, although one may upsert them."""
        return {line for kind, lines in self.steps if kind == "insert" for line in lines}

    @property
    def durable(self) -> bool:
        return self.durability != "memory"

    def give(self, producer: Producer) -> None:
        """Tell a producer; nothing is committed yet."""
        producer.insert("mark", (self.source, self.number))
        for kind, what in self.steps:
            _give(producer, self.source, kind, what)

    def apply(self, lines: Lines) -> None:
        """Do the same to the lines of the source."""
        for kind, what in self.steps:
            _apply(lines, kind, what)


def plan_load(seed: int, source: str, number: int, *, lazy: bool) -> Load:
    """Return a transaction; those of lazy producers mostly insert, since nothing else can be lazy."""
    dice = random.Random(f"{seed} {source} {number}")
    steps: list[Step] = [("insert", {number * LOAD_LINES + each: dice.randint(0, 9) for each in range(dice.randint(1, 5))})]
    if not lazy or dice.random() < 0.15:
        kinds = ("update", "delete", "upsert", "raise", "prune", "hit", "insert more")
        steps += [_step(dice, dice.choice(kinds), number, place) for place in range(dice.randint(0, 3))]
    durability: Durability = "memory" if lazy and dice.random() < 0.85 else dice.choices(("memory", "log", "warehouse"), (5, 4, 1))[0]
    return Load(source, number, tuple(steps), durability, f"load-{number}" if dice.random() < 0.3 else None, dice.random() > 0.08)


def _step(dice: random.Random, kind: str, number: int, place: int) -> Step:
    oldest = max(number - 8, 0) * LOAD_LINES
    some = [dice.randint(oldest, number * LOAD_LINES + 5) for _ in range(dice.randint(1, 3))]
    low = dice.choice(some)
    return {
        "update": ("update", dict.fromkeys(some, dice.randint(10, 99))),
        "delete": ("delete", some),
        "upsert": ("upsert", dict.fromkeys(some, dice.randint(100, 199))),
        "raise": ("raise", (low, low + dice.randint(0, 20))),
        "prune": ("prune", (low, low + dice.randint(0, 9))),
        "hit": ("hit", dice.randrange(SPOTS)),
        "insert more": ("insert", {number * LOAD_LINES + 6 + place: 7}),
    }[kind]


def _give(producer: Producer, source: str, kind: str, what: Any) -> None:
    if kind == "insert":
        producer.insert_many("line", [(source, line, qty) for line, qty in what.items()])
    elif kind == "update":
        producer.update_many("line", [{"source": source, "id": line, "qty": qty} for line, qty in what.items()])
    elif kind == "delete":
        producer.delete_many("line", [{"source": source, "id": line} for line in what])
    elif kind == "upsert":
        producer.upsert_many("line", [{"source": source, "id": line, "qty": qty} for line, qty in what.items()])
    elif kind == "raise":
        producer.update("line", {"qty": Expression("qty + 1")}, "source = ? AND id BETWEEN ? AND ?", parameters=[source, *what])
    elif kind == "prune":
        producer.delete("line", "source = ? AND id >= ? AND id <= ? AND qty < 5", parameters=[source, *what])
    else:
        producer.update("spot", {"hits": Expression("hits + 1")}, {"spot": what})


def _apply(lines: Lines, kind: str, what: Any) -> None:
    if kind in ("insert", "upsert"):
        lines.update(what)
    elif kind == "update":
        lines.update({line: qty for line, qty in what.items() if line in lines})
    elif kind == "delete":
        for line in what:
            lines.pop(line, None)
    elif kind == "raise":
        lines.update({line: qty + 1 for line, qty in lines.items() if what[0] <= line <= what[1]})
    elif kind == "prune":
        for line in [line for line, qty in lines.items() if what[0] <= line <= what[1] and qty < 5]:
            del lines[line]


def lines_after(loads: Iterable[Load]) -> Lines:
    """Return the lines of a source after some of its transactions, one after the other."""
    lines: Lines = {}
    for load in loads:
        load.apply(lines)
    return lines
