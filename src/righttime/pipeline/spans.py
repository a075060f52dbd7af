"""Spans: where the values of a drain's changes lie, so that state which cannot meet them is not read.

In: the values in the columns of a drain's inputs, and the steps that the rows go through.
Out: the same of the columns of any step, as far as it is known.
Promise: pure; a span holds every value that the changes of a step can have, also those that come from state. What is not known for sure is not known.

New facts have keys of their own, mostly greater than all before: then a join, a total or a target needs nothing of what it has kept. Where some old rows
change with them, it needs the files that these are in, and nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from righttime.pipeline.nodes import Aggregate, Derive, Distinct, Expect, History, Join, Lookup, Node, Select, StreamNode, Union, Where
from righttime.pipeline.stretches import Stretches, meet, merged, stretches_of


@dataclass(frozen=True)
class Span:
    """All values in `stretches`, and null if `nulls` says so."""

    stretches: Stretches
    nulls: bool

    def meets(self, other: Span) -> bool:
        """Return whether both can have one value, null included."""
        if self.nulls and other.nulls:
            return True
        if not self.stretches or not other.stretches:
            return False
        if self.is_text != other.is_text:
            return True  # whatever Spark makes of comparing them
        return meet(self.stretches, other.stretches)

    @property
    def is_text(self) -> bool:
        """Whether its values are texts; without any it does not matter."""
        return bool(self.stretches) and isinstance(self.stretches[0][0], str)


Spans = Mapping[str, Span]  # by column


def spans_of(rows: pa.Table, columns: Iterable[str] | None = None) -> dict[str, Span]:
    """Return the spans of these columns, or of all, as far as they are there and have whole numbers or short texts."""
    names = rows.column_names if columns is None else [name for name in columns if name in rows.column_names]
    found = {name: _span_of(rows.column(name)) for name in names}
    return {name: span for name, span in found.items() if span is not None}


def _span_of(column: pa.ChunkedArray) -> Span | None:
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    stretches = stretches_of(column)
    return None if stretches is None else Span(stretches, column.null_count > 0)


class SpansAsked(Mapping[str, Span]):
    """The spans of a table's columns, each looked for when it is asked for: of most nobody asks."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._found: dict[str, Span | None] = {}

    def __getitem__(self, name: str) -> Span:
        if name not in self._found:
            self._found[name] = spans_of(self._rows, [name]).get(name)
        span = self._found[name]
        if span is None:
            raise KeyError(name)
        return span

    def __iter__(self) -> Iterator[str]:
        return iter(spans_of(self._rows))

    def __len__(self) -> int:
        return len(spans_of(self._rows))


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
    if len({span.is_text for span in known if span.stretches}) > 1:
        return None
    return Span(merged(stretch for span in known for stretch in span.stretches), any(span.nulls for span in known))
