"""Marks: values of any class as JSON can hold them, each that JSON has no form for marked with its type.

In: rows and values as users give them.
Out: JSON values, and the same rows and values again.
Promise: pure. A value of a known class comes back as it was given; of any other its `repr` is kept.
"""

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

Mark = Callable[[Any], Any]


def marked(value: Any, special: Mark = lambda value: None) -> Any:
    """Return a value for JSON; what `special` returns for it, or for a value inside it, counts first unless that is None."""
    if (found := special(value)) is not None:
        return found
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: marked(inner, special) for key, inner in value.items()}
        return {"$map": [[marked(key, special), marked(inner, special)] for key, inner in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": [marked(inner, special) for inner in value]}
    if isinstance(value, list | np.ndarray):
        return [marked(inner, special) for inner in value]
    return next(({mark: write(value)} for mark, kinds, write in _WRITERS if isinstance(value, kinds)), {"$other": repr(value)})


def unmarked(value: dict[str, Any], special: Mapping[str, Mark] | None = None) -> Any:
    """Return what an object of JSON was made of, inner ones first, as an `object_hook` does; `special` reads further marks."""
    mark = next(iter(value), "")
    if special is not None and mark in special:
        return special[mark](value[mark])
    return _READERS[mark](value[mark]) if mark in _READERS else value


_WRITERS: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
    ("$bytes", (bytes, bytearray, memoryview), lambda value: base64.b64encode(bytes(value)).decode()),
    ("$decimal", Decimal, str),
    ("$timestamp", datetime, datetime.isoformat),
    ("$date", date, date.isoformat),
)
_READERS: dict[str, Mark] = {
    "$bytes": base64.b64decode,
    "$decimal": Decimal,
    "$timestamp": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$tuple": tuple,
    "$map": dict,
}
