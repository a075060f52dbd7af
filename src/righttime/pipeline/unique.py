"""Which columns identify a row of a step, and which system columns its rows still carry.

In: a flow and the keys of its streams.
Out: the sets of columns that are unique in each step; the system columns that have to travel through each step.
Promise: pure; what is called unique is unique at every cut, what cannot be proven is not called so.
"""

from collections.abc import Iterable, Mapping

from righttime.pipeline.nodes import (
    COMMITTED,
    ORDINAL,
    SINCE,
    Aggregate,
    Apply,
    AsOf,
    Derive,
    Derived,
    Distinct,
    Expect,
    History,
    Join,
    Lookup,
    Node,
    Select,
    StreamNode,
    Union,
    Where,
)

Keys = frozenset[frozenset[str]]


def unique_keys(node: Node, known: Mapping[Node, Keys], *, stream_keys: Mapping[str, tuple[str, ...]], columns: Iterable[str]) -> Keys:
    """Return the sets of columns that identify a row of this step, given those of its inputs; `columns` are the step's own."""
    inputs = [known[given] for given in node.inputs]
    match node:
        case StreamNode():
            keys = stream_keys[node.stream]
            return frozenset({frozenset(keys)} if keys else ())
        case Where() | Expect() | Lookup() | AsOf():
            return inputs[0]
        case Derive():
            replaced = {column.name.lower() for column in node.columns}
            return frozenset(keys for keys in inputs[0] if replaced.isdisjoint(name.lower() for name in keys))
        case Select():
            return _renamed(inputs[0], node.columns)
        case Aggregate():
            return frozenset({frozenset(node.by)})
        case Distinct():
            # What is unique already is so with more columns, too; said of each, it would be said of all pairs of them after a join.
            return inputs[0] or frozenset({frozenset(columns)})
        case History():
            return frozenset({frozenset({node.key})})
        case Join():
            return _joined(node, inputs[0], inputs[1])
        case _:
            return frozenset()


def is_unique(keys: Keys, names: Iterable[str]) -> bool:
    """Return whether rows with equal values in these columns are one row."""
    given = frozenset(names)
    return any(known <= given for known in keys)


def _renamed(keys: Keys, columns: tuple[Derived, ...]) -> Keys:
    names: dict[str, str] = {}
    for column in columns:
        names.setdefault(column.expression.strip("`"), column.name)
    return frozenset(frozenset(names[name] for name in known) for known in keys if known <= names.keys())


def _joined(node: Join, left: Keys, right: Keys) -> Keys:
    if is_unique(right, (column for _, column in node.on)):
        return left
    equal = {column: name for name, column in node.on}
    pairs = frozenset(one | frozenset(equal.get(name, name) for name in other) for one in left for other in right)
    return pairs if node.how == "inner" else frozenset()


def carried_columns(order: Iterable[Node]) -> dict[Node, frozenset[str]]:
    """Return the system columns that each step has to hand on, because a later one needs them; `order` has inputs first."""
    needed: dict[Node, frozenset[str]] = {}
    nodes = list(order)
    for node in reversed(nodes):
        needed.setdefault(node, frozenset())
        for given, names in asked_columns(node, needed[node]):
            needed[given] = needed.get(given, frozenset()) | names
    return needed


def asked_columns(node: Node, needed: frozenset[str]) -> list[tuple[Node, frozenset[str]]]:
    """Return which system columns a step asks of each of its inputs, in their order, if `needed` are those that it has to hand on."""
    match node:
        case History():
            return [(node.input, frozenset({SINCE, ORDINAL, COMMITTED}))]
        case AsOf():
            return [(node.left, needed | {SINCE}), (node.right, frozenset())]
        case Lookup():
            return [(node.left, needed), (node.right, frozenset())]
        case Where() | Select() | Derive() | Expect() | Union() | Apply():
            return [(given, needed) for given in node.inputs]
        case _:
            return [(given, frozenset()) for given in node.inputs]


def can_carry(node: Node) -> frozenset[str]:
    """Return the system columns that rows of this step can have: those that still belong to one row of one stream."""
    return _can_carry(node, {})


def _can_carry(node: Node, known: dict[Node, frozenset[str]]) -> frozenset[str]:
    # Ways through steps that several others read double with each of them; each step is looked at once.
    if node not in known:
        known[node] = _carried(node, known)
    return known[node]


def _carried(node: Node, known: dict[Node, frozenset[str]]) -> frozenset[str]:
    match node:
        case StreamNode():
            return frozenset({SINCE, ORDINAL, COMMITTED})
        case Where() | Select() | Derive() | Expect():
            return _can_carry(node.input, known)
        case Apply():
            return _can_carry(node.input, known) if node.rows == "same" else frozenset()
        case Lookup() | AsOf():
            # The time of a change is not the same for a row and for its removal, so it cannot pass through kept state.
            return _can_carry(node.left, known) & {SINCE}
        case Union():
            return frozenset({SINCE}).intersection(*(_can_carry(part, known) for part in node.parts))
        case _:
            return frozenset()
