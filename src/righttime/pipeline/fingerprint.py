"""The fingerprint of a flow: equal for equal declarations, another one when what the flow computes may have changed.

In: a flow.
Out: a short text, stored with its state.
Promise: names of files and lines do not count; the source of user functions does, and so do the values they were made with; the same in every process.
"""

import copyreg
import dataclasses
import hashlib
import inspect
import json
import pickle
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from righttime.pipeline.flow import Flow
from righttime.pipeline.nodes import Node, Target

# A change of what operators keep as state is a change of every flow.
FORMAT = 3
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


def _function(function: Any, inside: tuple[Any, ...] = ()) -> list[Any]:
    """Return what is known about a function: its source or code, and the values it was made with. `inside` are the ones that it is part of."""
    code = getattr(function, "__code__", None)
    if code is None:
        return _object(function, inside)
    cells = [content for cell in function.__closure__ or () for content in _content(cell)]
    values = [*cells, *(function.__defaults__ or ())]
    plain = [value for value in values if isinstance(value, _PLAIN)]
    within = (*inside, function)
    inner = [_function(value, within) for value in cells if hasattr(value, "__code__") and not _is_one_of(within, value)]
    # Of what is common nothing else is said: state is of use as long as the fingerprint is the same.
    others = [value for value in values if not isinstance(value, _PLAIN) and not hasattr(value, "__code__")]
    others += [made for made in (function.__kwdefaults__, getattr(function, "__self__", None)) if made is not None]
    return [
        _source(function) or [code.co_code.hex(), repr([value for value in code.co_consts if isinstance(value, _PLAIN)]), code.co_names],
        repr(plain),
        inner,
        *(_held(value, within) for value in others),
    ]


def _content(cell: Any) -> list[Any]:
    """Return what is in a variable of the code around a function; nothing if it has no value yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _object(value: Any, inside: tuple[Any, ...]) -> list[Any]:
    """Return what is known about an object: its class, what it does when it is called, and what it holds."""
    kind = value if isinstance(value, type) else type(value)
    known = [kind.__qualname__, "" if kind.__module__.partition(".")[0] in sys.stdlib_module_names else _source(kind)]
    if value is kind:
        return known
    call = getattr(kind, "__call__", None)  # noqa: B004 - the function itself is wanted, which a base class may have
    return [*known, *([_function(call, (*inside, value))] if hasattr(call, "__code__") else []), _parts(value, (*inside, value))]


def _parts(value: Any, inside: tuple[Any, ...]) -> Any:
    """Return what an object would be built of again: that is what Spark's workers get of it."""
    try:
        known: Any = copyreg.dispatch_table.get(type(value))
        parts = value.__reduce_ex__(4) if known is None else known(value)
    except (TypeError, AttributeError, pickle.PicklingError):
        return ""  # It cannot be sent, and the analysis says so.
    if isinstance(parts, str):
        return parts
    build, *rest = parts
    return [getattr(build, "__qualname__", ""), *(_held(list(part) if isinstance(part, Iterator) else part, inside) for part in rest)]


def _held(value: Any, inside: tuple[Any, ...]) -> Any:
    """Return what is known about a value that a function or an object holds."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if _is_one_of(inside, value):
        return "itself"
    within = (*inside, value)
    if type(value) in (tuple, list):
        return [_held(item, within) for item in value]
    if type(value) is dict:
        return ["dict", *sorted(([_held(key, within), _held(item, within)] for key, item in value.items()), key=json.dumps)]
    if type(value) in (set, frozenset):
        return ["set", *sorted((_held(item, within) for item in value), key=json.dumps)]
    return _function(value, inside)


def _is_one_of(values: tuple[Any, ...], wanted: Any) -> bool:
    return any(value is wanted for value in values)


def _source(declared: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(declared))
    except (OSError, TypeError):
        return ""
