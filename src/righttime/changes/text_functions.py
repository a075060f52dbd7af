"""Functions over text: LIKE, concatenation, lower, upper, trim, length.

In: terms of text.
Out: terms.
Promise: Spark's meaning: `_` is one character and not one byte, trim takes off spaces only, ß in capitals is SS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from righttime.changes.sql_text import literal_text, refuse
from righttime.changes.terms import Term, broadcast, strict


def like(part: Term, pattern: str, escape: str) -> Term:
    """Return `part LIKE pattern ESCAPE escape`."""
    regex = rf"\A(?s:{_like_regex(pattern, escape)})\z"
    try:
        pc.match_substring_regex(pa.array([""]), regex)
    except pa.ArrowInvalid:
        refuse("its LIKE pattern is too large", "Write a shorter pattern.")
    written = f"{part.inner} LIKE {literal_text(pattern, pa.string())}"
    text = written if escape == "\\" else f"{written} ESCAPE {literal_text(escape, pa.string())}"
    return strict("LIKE", pa.bool_(), text, (part,), lambda found: pc.match_substring_regex(found, regex))


def _like_regex(pattern: str, escape: str) -> str:
    pieces: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                refuse("its LIKE pattern has an escape character that stands before nothing special", "Escape only %, _ and the escape character itself.")
            pieces.append(_quoted(following))
        else:
            pieces.append({"%": ".*", "_": "."}.get(character) or _quoted(character))
    return "".join(pieces)


def _quoted(character: str) -> str:
    return re.escape(character) if character.isascii() and character != "\0" else r"\x00" if character == "\0" else character


def joined(parts: Sequence[Term]) -> Term:
    """Return `concat(parts)`."""
    text = f"concat({', '.join(part.text for part in parts)})"

    def compute(*found: Any) -> Any:
        return pc.binary_join_element_wise(*found, "", null_handling="emit_null")

    return strict("concat", pa.string(), text, parts, compute, atom=True)


def folded(name: str, part: Term) -> Term:
    """Return `lower(part)` or `upper(part)`."""
    plain, full = (pc.ascii_lower, str.lower) if name == "lower" else (pc.ascii_upper, str.upper)
    return strict(name, pa.string(), f"{name}({part.text})", (part,), lambda found: _folded(found, plain, full), atom=True)


def _folded(found: Any, plain: Callable[[Any], Any], full: Callable[[str], str]) -> Any:
    """Fold plain text in bulk. Other text is folded once per distinct value, since Arrow knows no letters that become two."""
    texts = broadcast(found, 1, pa.string())
    beyond = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    if not pc.any(beyond, min_count=0).as_py():
        return plain(found)
    distinct = texts.filter(beyond).dictionary_encode()
    table = pa.array([full(text) for text in distinct.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(plain(texts), beyond, table.take(distinct.indices))


def trimmed(name: str, part: Term) -> Term:
    """Return `trim(part)`, `ltrim(part)` or `rtrim(part)`: without spaces at its ends."""
    compute = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}[name]
    return strict(name, pa.string(), f"{name}({part.text})", (part,), lambda found: compute(found, characters=" "), atom=True)


def length(part: Term) -> Term:
    """Return `length(part)`: characters of a text, bytes of a BINARY."""
    count = pc.utf8_length if kind.is_string(part.type) else pc.binary_length
    return strict("length", pa.int32(), f"length({part.text})", (part,), lambda found: count(found).cast(pa.int32()), atom=True)
