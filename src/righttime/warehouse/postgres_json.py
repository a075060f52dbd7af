"""Texts for columns of type json, jsonb and uuid: those that PostgreSQL gives back as they were given.

In: texts.
Out: what they are in PostgreSQL's own notation, None for what it would not take.
Promise: pure. `json` keeps any JSON text as it is. `jsonb` and `uuid` keep values, and write each in one way only: another way of writing it would
be another text once it is stored.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_DIGITS_MAX = 16_000  # of a number in jsonb, on either side of its point; PostgreSQL takes some more
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_json(text: str) -> bool:
    """Tell whether a column of type json takes the text."""
    try:
        json.loads(text, parse_constant=_refuse, parse_int=len, parse_float=len)
        return True
    except (ValueError, RecursionError):
        return False


def jsonb_text(text: str) -> str | None:
    """Return the text that a column of type jsonb gives back for this one, None if it does not take it."""
    try:
        return _written(json.loads(text, parse_constant=_refuse, parse_int=_Number, parse_float=_Number, object_pairs_hook=dict))
    except (ValueError, ArithmeticError, RecursionError):  # a decimal with too many digits in its exponent is the second one
        return None


class _Number(str):
    """A number as it was written."""


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        # By length first: that is the order of PostgreSQL.
        pairs = sorted(value.items(), key=lambda pair: (len(pair[0].encode(errors="surrogatepass")), pair[0].encode(errors="surrogatepass")))
        return "{" + ", ".join(f"{_text(name)}: {_written(held)}" for name, held in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)


def _text(value: str) -> str:
    if "\0" in value or _SURROGATE.search(value):
        raise ValueError("a character that PostgreSQL does not keep")
    return json.dumps(value, ensure_ascii=False)


def _number(written: str) -> str:
    number = Decimal(written)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if len(digits) + abs(exponent) > _DIGITS_MAX:
        raise ValueError("a number that is too long")
    if not number:
        return "0" if exponent >= 0 else f"0.{'0' * -exponent}"
    return f"{number:f}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
