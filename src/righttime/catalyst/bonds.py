"""Tables whose rows refer to each other: which have to be stored together, and in which order.

In: by table, the tables that its rows refer to.
Out: sets and orders of names.
Promise: pure; a table comes after those it refers to, unless they refer to it in a circle.
"""

from collections.abc import Collection, Mapping

References = Mapping[str, Collection[str]]


def connected(tables: Collection[str], references: References) -> set[str]:
    """Return these tables and all that refer to one of them or are referred to, directly or through others: a part of them may not be storable alone."""
    neighbours: dict[str, set[str]] = {}
    for table, others in references.items():
        for other in others:
            neighbours.setdefault(table, set()).add(other)
            neighbours.setdefault(other, set()).add(table)
    found: set[str] = set()
    waiting = list(tables)
    while waiting:
        table = waiting.pop()
        if table not in found:
            found.add(table)
            waiting.extend(neighbours.get(table, ()))
    return found


def in_order(tables: Collection[str], references: References) -> list[str]:
    """Return these tables, those that others refer to first, by name where nothing else decides."""
    found: dict[str, None] = {}
    under_way: set[str] = set()

    def visit(table: str) -> None:
        if table in found or table in under_way:
            return
        under_way.add(table)
        for other in sorted(set(references.get(table, ())) & set(tables)):
            visit(other)
        found[table] = None

    for table in sorted(tables):
        visit(table)
    return list(found)
