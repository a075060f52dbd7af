"""What a process does until it is killed: endless loads and chores, the same for the same seed in the process and in its judge.

In: a seed, and which run on the same warehouse it is.
Out: loads (transactions of one source over several tables) and chores (materialize, collect, read, flush, litter).
Promise: every row names its source, load and line, so that a judge can tell a whole load from a half one, and a row from its double.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

SOURCES = ("till", "web", "depot")
COLUMNS = "source STRING, load INT, line INT, pad STRING"
# `stock` is split by source into partitions; `audit` has no memory table, so its rows make any commit go to the warehouse.
KEYS = ["source", "load", "line"]
TABLES: Mapping[str, Mapping[str, Any]] = {
    "sale": {"keys": KEYS},
    "stock": {"keys": KEYS, "partition_by": ["source"]},
    "audit": {"keys": KEYS, "in_memory": False},
}
# Bounds so small that some ten loads already go past the catalyst, spill, fill several log files and write checkpoints.
BOUNDS: Mapping[str, Any] = {
    "bypass_bytes": 20_000,
    "memory_bytes_max": 300,
    "operations_bytes_max": 1_000_000,
    "segment_rows": 16,
    "log_file_bytes": 3_000,
    "checkpoint_versions": 4,
    "policy_poll_s": 0.01,
    "states_max": 40,
}
_WIDE = "w" * 25_000
_LOADS_PER_RUN = 100_000

Line = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Load:
    """One transaction: rows per table, how it ends, and the batch id it carries.

    `changes`: "draft" inserts other rows and updates them by key to what they shall be, "extra" inserts a row too many and deletes it again,
    "touch" updates what the load before inserted, by a condition, to what it is already. So the rows of a load are the same in any case.
    """

    source: str
    number: int
    rows: Mapping[str, int]
    durability: str
    wide: bool
    has_batch: bool
    kept: bool
    changes: str = ""

    @property
    def key(self) -> str:
        return f"{self.source}-{self.number}"

    @property
    def batch_id(self) -> str | None:
        return self.key if self.has_batch else None

    @property
    def durable(self) -> bool:
        """Whether the commit is safe when it returns: asked for, or because some of its rows go straight to the warehouse."""
        return self.durability != "memory" or self.wide or bool(self.rows.get("audit"))

    @property
    def one_step(self) -> bool:
        """Whether one durable step, or none, makes the commit; storing into a table with operations takes two."""
        return self.durability != "warehouse" and not self.wide and not self.rows.get("audit")

    @property
    def row_count(self) -> int:
        """Rows and operations of the commit; 0 if it has none of both."""
        return sum(self.rows.values()) + {"draft": sum(self.rows.values()), "extra": 2, "touch": 1}.get(self.changes, 0)

    @property
    def has_rows(self) -> bool:
        return any(self.rows.values())

    def rows_of(self, table: str) -> list[tuple[str, int, int, str]]:
        pad = _WIDE if self.wide and table == "sale" else f"{table} of {self.key}"
        return [(self.source, self.number, line, pad) for line in range(self.rows.get(table, 0))]


@dataclass(frozen=True, slots=True)
class Chore:
    """Something that is done beside the loads; `tables` empty means all."""

    kind: str
    number: int
    tables: tuple[str, ...] = ()
    source: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.number}"


Step = Load | Chore


class Plan:
    """The steps of one run; ask for as many as you like."""

    def __init__(self, seed: int, *, run: int = 0) -> None:
        self._name = f"{seed}/{run}"
        self._first = run * _LOADS_PER_RUN + 1
        self.policies = _policies(Random(f"{seed}/policies"))
        # Some runs make nearly everything safe at once, some keep most in memory for long.
        self._memory_weight = Random(f"{seed}/weight").choice([2, 6, 20])

    def loads(self, source: str) -> Iterator[Load]:
        """Yield the loads of one source, without end."""
        dice = Random(f"{self._name}/{source}")
        number = self._first
        while True:
            yield _load(dice, source, number, memory_weight=self._memory_weight)
            number += 1

    def chores(self) -> Iterator[Chore]:
        """Yield the chores, without end."""
        dice = Random(f"{self._name}/chores")
        number = self._first
        while True:
            # Litter and collections come often, so that each point of a collection is reached soon.
            yield _chore(dice, number, kind="litter" if number % 4 == 1 else "gc" if number % 4 == 2 else dice.choice(["materialize", "read", "flush"]))
            number += 1

    def steps(self) -> Iterator[Step]:
        """Yield loads of all sources and chores in one random order, without end."""
        dice = Random(f"{self._name}/order")
        loads = {source: self.loads(source) for source in SOURCES}
        chores = self.chores()
        while True:
            source = dice.choice([*SOURCES, *SOURCES, "chore"])
            yield next(chores) if source == "chore" else next(loads[source])


def _policies(dice: Random) -> dict[str, str]:
    policies = ["immediate", "on demand", dice.choice(["every", "load aware", "on demand"])]
    dice.shuffle(policies)
    return dict(zip(SOURCES, policies, strict=True))


def _load(dice: Random, source: str, number: int, *, memory_weight: int) -> Load:
    rows = {} if dice.random() < 0.04 else {"sale": dice.randint(1, 4), "stock": dice.randint(0, 3), "audit": dice.choice([0] * 6 + [2])}
    wide = bool(rows) and dice.random() < 0.06
    return Load(
        source=source,
        number=number,
        rows=rows,
        durability=dice.choices(["memory", "log", "warehouse"], weights=[memory_weight, 3, 2])[0],
        wide=wide,
        has_batch=dice.random() < 0.4,
        kept=dice.random() > 0.06,
        changes=dice.choice(["", "", "draft", "extra", "touch"]) if rows and not wide else "",
    )


def _chore(dice: Random, number: int, *, kind: str) -> Chore:
    tables = tuple(sorted(dice.sample(sorted(TABLES), k=dice.randint(1, 2)))) if kind != "gc" and dice.random() < 0.6 else ()
    return Chore(kind, number, tables, source=dice.choice(SOURCES))
