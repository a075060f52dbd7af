"""One step of a flow in a few words, as a reader of the dry run wants it.

In: a declared step.
Out: a short text.
Promise: says what the user wrote, nothing that was derived from it.
"""

from collections.abc import Iterable

from righttime.pipeline.nodes import Aggregate, Apply, AsOf, Derive, Expect, History, Join, Lookup, Node, Select, StreamNode, Union, Where


def detail(node: Node) -> str:
    """Return what a step does."""
    match node:
        case StreamNode():
            return node.stream
        case Where():
            return node.condition
        case Select() | Derive():
            return ", ".join(column.name if column.expression == f"`{column.name}`" else f"{column.name} = {column.expression}" for column in node.columns)
        case Expect():
            return f"{node.name}: {node.condition}, otherwise {node.otherwise}"
        case Apply():
            return getattr(node.function, "__name__", type(node.function).__name__)
        case Join():
            return f"{node.how}, on {_pairs(node.on)}"
        case Lookup():
            return f"on {_pairs(node.on)}, takes {_pairs(node.take)}, missing: {node.missing}"
        case AsOf():
            return f"on {_pairs(node.on)}, takes {_pairs(node.take)}"
        case Union():
            return f"of {len(node.parts)}"
        case Aggregate():
            measures = (f"{measure.name} = {measure.function}({measure.expression})" for measure in node.measures)
            return f"by {', '.join(node.by) or 'nothing'}: {', '.join(measures)}"
        case History():
            return f"versions by {', '.join(node.keys)}, numbered {node.key} from {node.key_from}"
        case _:
            return ""


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)
