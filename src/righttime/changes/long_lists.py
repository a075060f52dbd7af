"""Long IN lists, read without a parser: one that builds a tree takes 50 µs for each value.

In: the text of an expression.
Out: a short text with a name in place of each long list of whole numbers, plain texts or `?`, and what stood there.
Promise: pure; a list is taken out only where the short text reads as the long one does, with the name for the values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from righttime.changes.sql_text import EXPRESSION_CHARS_MAX

VALUES_MIN = 100
_NAME = "righttime_list_"


def _list_of(value: str) -> str:
    # Possessive throughout: what is no such list is given up at once, not tried in all ways.
    return rf"{value}(?:[ \t\r\n]*+,[ \t\r\n]*+{value}){{{VALUES_MIN - 1},}}+"


_NUMBER, _TEXT = r"-?+[0-9]{1,18}", r"'[^'\\]*+'"
_LIST = re.compile(
    rf"\bIN[ \t\r\n]*+\([ \t\r\n]*+(?:(?P<numbers>{_list_of(_NUMBER)})|(?P<texts>{_list_of(_TEXT)})|(?P<parameters>{_list_of(r'[?]')}))[ \t\r\n]*+\)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LongList:
    """One list: its values, or how many `?` it has."""

    values: list[int] | list[str]
    parameters: int = 0


def without_long_lists(text: str) -> tuple[str, dict[str, LongList]]:
    """Return the text with names in place of its long lists, and the lists by name."""
    if not isinstance(text, str):
        return text, {}  # refused later
    if not 2 * VALUES_MIN <= len(text) <= EXPRESSION_CHARS_MAX or _NAME in text.lower():
        return text, {}
    lists: dict[str, LongList] = {}

    def take_out(found: re.Match[str]) -> str:
        name = f"{_NAME}{len(lists)}"
        lists[name] = _read(found)
        return f"IN ({name})"

    short = _LIST.sub(take_out, text)
    return (short, lists) if lists and _names_are_read(short, lists) else (text, {})


def _read(found: re.Match[str]) -> LongList:
    if found["numbers"]:
        return LongList([int(number) for number in found["numbers"].split(",")])
    if found["texts"]:
        return LongList([text[1:-1] for text in re.findall(_TEXT, found["texts"])])
    return LongList([], found["parameters"].count("?"))


def _names_are_read(short: str, lists: dict[str, LongList]) -> bool:
    """Tell whether each name is a word of its own behind IN; in a text or a comment it would be none, and the list no list."""
    try:
        tokens = list(sqlglot.tokenize(short, read="spark"))
    except SqlglotError:
        return False
    found = [tokens[place].text for place in range(2, len(tokens)) if tokens[place - 2].token_type is TokenType.IN]
    return [name for name in found if name.startswith(_NAME)] == list(lists)
