"""Why SQL text cannot be read, in our words: the parser speaks of its own classes.

In: an error of sqlglot and the text it was given; a node of its tree.
Out: a few words, with the place where they help; the node as text.
Promise: pure; nothing of the parser's names shows.
"""

import re

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

_PERCENT = re.compile(r"%s\b|%\(\w*\)s\b")


def why_unreadable(error: BaseException, text: str, *, place: bool = False) -> str:
    """Return what is wrong with a text; `place` adds line and column, for texts that were handed to the parser as they are."""
    percent = _PERCENT.search(text)
    if percent is not None:
        return f"{percent[0]} is no placeholder here, ? is"
    if isinstance(error, TokenError):
        return "a text, a name or a comment in it does not end"
    if not isinstance(error, ParseError) or not error.errors:
        return "it is not SQL"
    first = error.errors[0]
    near = str(first.get("highlight") or "")
    description = str(first.get("description") or "")
    # At the end of a text the parser stops at the last word, or at the bracket that was put around it.
    if not str(first.get("end_context") or "").strip() and (description.startswith(("Required keyword", "Expect")) or not text.rstrip().endswith(near)):
        return "it ends too early"
    where = f", line {first['line']}, column {first['col']}" if place else ""
    missing = description.startswith("Required keyword")
    return f"something is missing near {near[:40]!r}{where}" if missing else f"{near[:40]!r} is not expected there{where}"


def shown(node: exp.Expr) -> str:
    """Return part of an expression as text, close to how it was written."""
    # Spark's notation of these is not what stood there.
    other = isinstance(node, exp.Parameter | exp.AtTimeZone)
    return node.sql(None if other else "spark", normalize_functions=False)[:80]
