"""Query parameters as text, so that a receipt can hold them and a re-run can use them again.

In: the values that were passed for the `?` of a query.
Out: one text per value, type first.
Promise: reading what was written gives an equal value; a type that cannot be kept is refused before the query runs.
"""

import base64
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from righttime.errors import SqlRefused

_WRITE: dict[type, tuple[str, Callable[[Any], str]]] = {
    type(None): ("null", lambda value: ""),
    bool: ("bool", str),
    int: ("int", str),
    float: ("float", float.hex),
    str: ("str", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    Decimal: ("decimal", str),
    datetime: ("timestamp", datetime.isoformat),
    date: ("date", date.isoformat),
}
_READ: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float.fromhex,
    "str": str,
    "bytes": base64.b64decode,
    "decimal": Decimal,
    "timestamp": datetime.fromisoformat,
    "date": date.fromisoformat,
}


def placeholders_text(placeholders: int, values: Sequence[Any]) -> tuple[str, ...]:
    """Return the values as texts, one for each placeholder of a statement; any other number of them is refused."""
    if placeholders != len(values):
        raise SqlRefused(reason=f"it has {placeholders} placeholders and got {len(values)} parameters", way_out="Pass one value for each ?.")
    return parameters_text(values)


def parameters_text(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the values as texts."""
    texts = []
    for value in values:
        if type(value) not in _WRITE:
            raise SqlRefused(
                reason=f"a parameter of type {type(value).__name__} cannot be kept in a receipt",
                way_out="Pass a number, text, bytes, date, datetime, Decimal or None.",
            )
        kind, write = _WRITE[type(value)]
        texts.append(f"{kind}:{write(value)}")
    return tuple(texts)


def parameters_read(texts: Sequence[str]) -> list[Any]:
    """Return the values of texts that `parameters_text` wrote."""
    return [_READ[kind](rest) for kind, _, rest in (text.partition(":") for text in texts)]
