"""Unfinished commits: what commits of ours did to a table that the ledger never got, told apart from what other writers did.

In: the log entries after the version that the ledger knows.
Out: which files have to leave and which to come back, or why that cannot be told.
Promise: pure; what another writer added or removed itself is never touched, and what it made of rows of ours is never taken for its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from righttime.warehouse.delta_log import Action, batch_id_of


@dataclass(slots=True)
class NetChange:
    """Files that came and left, less those that did both."""

    added: dict[str, Action] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def come(self, add: Action) -> None:
        """Note an add: a file that left and came back has not changed."""
        if add["path"] in self.removed:
            self.removed.discard(add["path"])
        else:
            self.added[add["path"]] = add

    def leave(self, path: str) -> None:
        if path in self.added:
            del self.added[path]
        else:
            self.removed.add(path)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What is left of commits of ours; the first foreign version, if any; and the version in which somebody did something over ours, and what."""

    ours: NetChange
    foreign: int | None
    mixed: tuple[int, str] | None


def unfinished(entries: Iterable[tuple[int, Sequence[Action]]]) -> Unfinished:
    """Follow the entries after a version, in order."""
    ours, everybody = NetChange(), NetChange()
    foreign: int | None = None
    rewritten: tuple[int, str] | None = None
    redefined: tuple[int, str] | None = None
    for number, actions in entries:
        # Removes first: an add of the same path in the same entry is what the file has become.
        removes = [action["remove"]["path"] for action in actions if "remove" in action]
        adds = [action["add"] for action in actions if "add" in action]
        if batch_id_of(actions) is not None:
            _follow(ours, adds, removes)
        else:
            foreign = number if foreign is None else foreign
            if ours.added.keys() & set(removes) or ours.removed & {add["path"] for add in adds}:
                rewritten = number, "rewrote or removed rows of that commit"
            if any("metaData" in action or "protocol" in action for action in actions):
                redefined = number, "changed the definition of the table"
        _follow(everybody, adds, removes)
    if rewritten is not None and not everybody:
        return Unfinished(NetChange(), foreign, None)  # the version that the ledger knows was restored
    return Unfinished(ours, foreign, rewritten or (redefined if ours else None))


def _follow(change: NetChange, adds: Iterable[Action], removes: Iterable[str]) -> None:
    for path in removes:
        change.leave(path)
    for add in adds:
        change.come(add)
