"""Which columns of each step somebody uses: nothing else is computed, shuffled or kept as state.

In: the steps of a flow, and the columns that their expressions read.
Out: the used columns of each step.
Promise: pure; an expression is evaluated exactly if its column is used, in every drain alike, so that a row that fails always fails.
"""

from collections.abc import Iterable, Mapping

from righttime.pipeline.nodes import Aggregate, AsOf, Derive, Distinct, Expect, History, Join, Lookup, Node, Select, Union, Where

# By step: the columns that each of its expressions reads; conditions are named "".
References = Mapping[Node, Mapping[str, frozenset[str]]]


def used_columns(order: Iterable[Node], kept: Iterable[Node], columns: Mapping[Node, tuple[str, ...]], references: References) -> dict[Node, frozenset[str]]:
    """Return the used columns of each step; `order` has inputs first, `kept` are the steps that go into tables, `columns` has all columns of each step."""
    used: dict[Node, frozenset[str]] = {}
    for node in kept:
        used[node] = frozenset(columns[node])
    for node in reversed(list(order)):
        for given, names in _reads(node, used.get(node, frozenset()), columns, references.get(node, {})):
            used[given] = used.get(given, frozenset()) | (names & frozenset(columns[given]))
    return used


def _reads(node: Node, used: frozenset[str], columns: Mapping[Node, tuple[str, ...]], reads: Mapping[str, frozenset[str]]) -> list[tuple[Node, frozenset[str]]]:
    match node:
        case Expect() if node.otherwise == "fail":
            return [(node.input, frozenset(columns[node.input]))]
        case Where() | Expect():
            return [(node.input, used | reads[""])]
        case Select():
            return [(node.input, _all(reads[name] for name in used))]
        case Derive():
            return [(node.input, (used - reads.keys()) | _all(reads[name] for name in used & reads.keys()))]
        case Join():
            return [(node.left, used | {left for left, _ in node.on}), (node.right, used | {right for _, right in node.on})]
        case Lookup():
            whole = node.missing in ("dead_letter", "fail")
            return [(node.left, _left_of(node, used) | (frozenset(columns[node.left]) if whole else frozenset())), (node.right, _right_of(node, used))]
        case AsOf():
            history = node.right
            assert isinstance(history, History)
            return [(node.left, _left_of(node, used)), (node.right, _right_of(node, used) | {history.start, history.end})]
        case Aggregate():
            return [(node.input, frozenset(node.by) | _all(reads[name] for name in used & reads.keys()))]
        case Union():
            return [(given, used) for given in node.inputs]
        case Distinct() | History():
            return [(node.input, frozenset(columns[node.input]))]
        case _:
            return [(given, frozenset(columns[given])) for given in node.inputs]


def _left_of(node: Lookup | AsOf, used: frozenset[str]) -> frozenset[str]:
    return (used - {name for name, _ in node.take}) | {left for left, _ in node.on}


def _right_of(node: Lookup | AsOf, used: frozenset[str]) -> frozenset[str]:
    return frozenset(right for _, right in node.on) | {column for name, column in node.take if name in used}


def _all(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
