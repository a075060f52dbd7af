"""Which columns of a flow's state its drains look for values in.

In: an analysed flow.
Out: the columns by step; of those it pays to know where their values lie.
Promise: a column that is left out makes a drain read more, never other rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from righttime.pipeline.analysis import Analysed
from righttime.pipeline.nodes import Aggregate, Distinct, History, Join, Node

Sought = Mapping[str, frozenset[str]]


def sought_columns(analysed: Analysed) -> Sought:
    """Return the columns that each step, and each target, finds its kept rows by."""
    steps = {step: _of_step(analysed, node) for step, node in analysed.nodes.items()}
    targets = {f"into_{target.table}": frozenset(target.keys) for target in analysed.flow.targets}
    return {name: columns for name, columns in {**steps, **targets}.items() if columns}


def _of_step(analysed: Analysed, node: Node) -> frozenset[str]:
    match node:
        case Distinct():
            return frozenset(analysed.schemas[analysed.ids[node.input]].names)
        case Join():
            return frozenset(name for pair in node.on for name in pair)
        case Aggregate():
            return frozenset(node.by)
        case History():
            return frozenset(node.keys)
        case _:
            return frozenset()
