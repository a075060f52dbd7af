"""Spans: between which values the changes of a drain lie, so that state which cannot meet them is not read.

In: the least and the greatest value of the columns of a drain's inputs, and the steps that the rows go through.
Out: the same of the columns of any step, as far as it is known.
Promise: pure; a span holds every value that the changes of a step can have, also those that come from state. What is not known for sure is not known.

New facts have keys of their own, mostly greater than all before: then a join, a total or a target needs nothing of what it has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from righttime.pipeline.nodes import Aggregate, Derive, Distinct, Expect, History, Join, Lookup, Node, Select, StreamNode, Union, Where

_TEXT_MAX = 64


@dataclass(frozen=True)
class Span:
    """All values from `least` to `greatest`, if they are given, and null if `nulls` says so."""

    least: int | str | None
    greatest: int | str | None
    nulls: bool

    def meets(self, other: Span) -> bool:
        """Return whether both can have one value, null included."""
        if self.nulls and other.nulls:
            return True
        if self.least is None or self.greatest is None or other.least is None or other.greatest is None:
            return False
        if isinstance(self.least, str) != isinstance(other.least, str):
            return True  # whatever Spark makes of comparing them
        return bool(self.least <= other.greatest and other.least <= self.greatest)  # type: ignore[operator]


Spans = Mapping[str, Span]  # by column


def spans_of(rows: pa.Table) -> dict[str, Span]:
    """Return the spans of the columns that have whole numbers or short texts."""
    found = {}
    for field in rows.schema:
        kind = field.type
        if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = rows.column(field.name)
            ends = pc.min_max(column).as_py()
            if max(len(str(end or "")) for end in ends.values()) <= _TEXT_MAX:
                found[field.name] = Span(ends["min"], ends["max"], column.null_count > 0)
    return found


def can_meet(kept: Spans, wanted: Spans) -> bool:
    """Return whether rows with these spans can have the same values as the wanted ones in all columns that both know."""
    return all(kept[name].meets(span) for name, span in wanted.items() if name in kept)


class Traced:
    """Follows columns through the steps of one drain; `changes` tells whether a step has changes in it."""

    def __init__(self, inputs: Mapping[str, Spans], changes: Callable[[Node], bool]) -> None:
        self._inputs = inputs
        self._changes = changes
        self._known: dict[tuple[Node, str], Span | None] = {}

    def keys(self, node: Node, names: Iterable[str]) -> dict[str, Span]:
        """Return the spans of some columns of a step's changes, those that are known."""
        return {name: span for name in names if (span := self._of(node, name)) is not None}

    def joined(self, node: Join) -> tuple[dict[str, Span], dict[str, Span]]:
        """Return the spans of a join's keys, as its left and as its right side calls them."""
        spans = [(left, right, span) for left, right in node.on if (span := self._key(node, left, right)) is not None]
        return {left: span for left, _, span in spans}, {right: span for _, right, span in spans}

    def _of(self, node: Node, name: str) -> Span | None:
        # Ways through steps that several others read double with each of them; each column of a step is followed once.
        if (node, name) not in self._known:
            self._known[node, name] = self._found(node, name)
        return self._known[node, name]

    def _found(self, node: Node, name: str) -> Span | None:
        match node:
            case StreamNode():
                return self._inputs.get(node.stream, {}).get(name)
            case Where() | Expect() | Distinct():
                return self._of(node.input, name)
            case Select() | Derive():
                return self._derived(node, name)
            case Union():
                return _hull([self._of(part, name) for part in node.parts if self._changes(part)])
            case Join() | Lookup():
                return self._of_pairs(node, name)
            case Aggregate() if name in node.by:
                return self._of(node.input, name)
            case History() if name not in (node.key, node.start, node.end):
                return self._of(node.input, name)
            case _:
                return None

    def _derived(self, node: Select | Derive, name: str) -> Span | None:
        derived = next((column for column in node.columns if column.name.lower() == name.lower()), None)
        if derived is None:
            return self._of(node.input, name) if isinstance(node, Derive) else None
        return None if derived.column is None else self._of(node.input, derived.column)

    def _of_pairs(self, node: Join | Lookup, name: str) -> Span | None:
        for left, right in node.on:
            if name == left:
                return self._key(node, left, right)
        # Other columns may come from rows that are kept, if the other side changes.
        taken = {new for new, _ in node.take} if isinstance(node, Lookup) else frozenset()
        return None if self._changes(node.right) or name in taken else self._of(node.left, name)

    def _key(self, node: Join | Lookup, left: str, right: str) -> Span | None:
        """Return the span of a key: each pair has a row that changes, on the one side or the other."""
        sides = ((node.left, left), (node.right, right))
        return _hull([self._of(side, name) for side, name in sides if self._changes(side)])


def _hull(spans: list[Span | None]) -> Span | None:
    """Return the span that holds all of these, None if one is not known."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    values = [end for span in known for end in (span.least, span.greatest) if end is not None]
    if len({isinstance(value, str) for value in values}) > 1:
        return None
    return Span(min(values, default=None), max(values, default=None), any(span.nulls for span in known))
