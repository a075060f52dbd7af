"""The fingerprint of a flow: equal for equal declarations, another one when what the flow computes may have changed.

In: a flow.
Out: a short text, stored with its state.
Promise: names of files and lines do not count, the source of user functions does; the same in every process.
"""

import dataclasses
import hashlib
import inspect
import json
import textwrap
from typing import Any

from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import Node, Target

# A change of what operators keep as state is a change of every flow.
FORMAT = 1
_PLAIN = (int, float, str, bytes, bool, type(None))


def fingerprint(flow: Flow) -> str:
    """Return the fingerprint: another one means that kept state is of no use and the flow must be refreshed in full."""
    ids = {node: name for name, node in flow.nodes().items()}
    steps = {name: _fields(node, ids) for node, name in ids.items()}
    targets = [_fields(target, ids) for target in flow.targets]
    text = json.dumps([FORMAT, steps, targets], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _fields(declared: Node | Target, ids: dict[Node, str]) -> dict[str, Any]:
    return {field.name: _value(getattr(declared, field.name), ids) for field in dataclasses.fields(declared) if field.name != "origin"}


def _value(value: Any, ids: dict[Node, str]) -> Any:
    if isinstance(value, Node):
        return ids[value]
    if isinstance(value, tuple):
        return [_value(item, ids) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return _function(value) if callable(value) else value


def _function(function: Any) -> list[Any]:
    """Return what is known about a function: its source or code, and the plain values it was built over."""
    code = getattr(function, "__code__", None)
    if code is None:
        return [type(function).__qualname__, _source(type(function))]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    plain = [value for value in [*cells, *(function.__defaults__ or ())] if isinstance(value, _PLAIN)]
    inner = [_function(value) for value in cells if hasattr(value, "__code__") and value is not function]
    return [
        _source(function) or [code.co_code.hex(), repr([value for value in code.co_consts if isinstance(value, _PLAIN)]), code.co_names],
        repr(plain),
        inner,
    ]


def _source(declared: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(declared))
    except (OSError, TypeError):
        return ""
