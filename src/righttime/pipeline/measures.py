"""Measures as text: `sum(qty * price)`, `count(*)`, `count(distinct sku)`.

In: what a user wrote in `aggregate`.
Out: function and argument apart.
Promise: pure; text that is not one call of a known function is no measure.
"""

import re
from typing import cast

from righttime.pipeline.nodes import Measure, MeasureFunction

_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_DISTINCT = re.compile(r"distinct\s+(.+)", re.IGNORECASE | re.DOTALL)
_FUNCTIONS = ("sum", "count", "avg", "min", "max", "count_distinct")


def parse_measure(name: str, text: str) -> Measure | None:
    """Return the measure that the text means, None if it means none."""
    found = _CALL.fullmatch(text.strip())
    if found is None or not _is_one_argument(found[2]):
        return None
    function, argument = found[1].lower(), found[2].strip()
    distinct = _DISTINCT.fullmatch(argument)
    if distinct is not None:
        # Of distinct values only their number is kept; the least and the greatest are the same without the word, and other sums are not.
        function, argument = f"{function}_distinct", distinct[1].strip()
    if function not in _FUNCTIONS or not argument or (argument == "*" and function != "count"):
        return None
    return Measure(name, cast(MeasureFunction, function), argument)


def _is_one_argument(argument: str) -> bool:
    """Return whether brackets outside quotes pair up, so that the call's own bracket is the last, and no comma is outside of them."""
    depth, quote = 0, ""
    for letter in argument:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter == "," and not depth:
            return False
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if depth < 0:
                return False
    return depth == 0 and not quote
