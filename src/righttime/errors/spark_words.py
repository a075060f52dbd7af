"""What Spark says went wrong, in as few words as a user needs.

In: the text of an error of Spark.
Out: the reason in one line, without names of classes, codes, traces, and advice that is not to be followed here.
Promise: a text that is not Spark's, or was shortened before, stays as it is.
"""

import re
from typing import Any

_SPARKS = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] |SQLSTATE: \w{5}\b")
_CLASS = re.compile(r"^(?:Job aborted due to stage failure: .*?\(TID \d+\) \(.*?\): )?(?:(?:org\.apache|java|javax|scala)\.[\w.$]+: )+")
_TRACE = re.compile(r"\s+at (?:org\.apache|java|javax|scala|jdk|py4j)\.[\w.$/]+\(.*", re.DOTALL)
# A call to Java, which has another number each time, and the thread that waited for the one in which something went wrong.
_CALL = re.compile(r"^An error occurred while calling \S+\s+: (?:[\w.]+: Exception thrown in awaitResult:.*?\nCaused by: )?", re.DOTALL)

# In the order in which they are applied; ANSI mode cannot be switched off here, so nobody is advised to.
_SHORTER = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (r"^\[[A-Z][A-Z0-9_.]+\] ", ""),
        (r"\s*== (?:SQL|DataFrame).*", ""),
        (r"\s*\(?SQLSTATE: \w{5}\)?", ""),
        (r" If necessary set \S*spark\.sql\.ansi\.enabled\S* to \S* to bypass this error[^.]*\.", ""),
        (r"\. \(line (\d+), pos (\d+)\)", r" (line \1, position \2)"),
        (r" Please, refer to '[^']*' for a fix\.", ""),
        (r" Correct the value as per the syntax, or change its target type\.", ""),
        # As Spark writes a number in SQL: its type is one letter or two behind it.
        (r"The value (-?[\d.]+(?:E[+-]?\d+)?)(?:BD|[YSLFD]) of the type", r"The value \1 of the type"),
        (
            r'The value (.*) of the type "[^"]*" cannot be cast to "([^"]*)"(?: because it is malformed| due to an overflow)',
            r"the value \1 cannot be cast to \2",
        ),
        (r"\. Use (?:the SQL function )?[`']?(\w+)(?:\(\))?[`']? to tolerate [^.]* and return NULL instead\.", r"; \1 gives null instead"),
        (r"Cannot resolve routine `(.*)` on search path \[.*?\]", r"there is no function \1"),
        (r'Cannot resolve ".*" due to data type mismatch: ', ""),
        (r"A column, variable, or function parameter with name `(.*?)` cannot be resolved\.", r"there is no column \1."),
    )
)


def told_by_java(said: str) -> str:
    """Return what went wrong in Java, of the text in which a call to it says that it failed; other texts stay as they are."""
    call = _CALL.match(said)
    return said if call is None else said[call.end() :].split("\n\tat ", 1)[0]


def without_task(reason: str) -> str:
    """Return a reason of Spark without the task that tells it: its numbers, its host, its trace."""
    return _CLASS.sub("", _TRACE.sub("", reason))


def in_short(reason: str) -> str:
    """Return a reason of Spark in short."""
    text = without_task(reason)
    if not _SPARKS.search(text):
        return text
    for pattern, words in _SHORTER:
        text = pattern.sub(words, text)
    text = " ".join(text.split()).removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


class SaysWhy:
    """An error whose `reason` may be one of Spark's; put before the class of the error."""

    def __init__(self, **context: Any) -> None:
        super().__init__(**({**context, "reason": in_short(context["reason"])} if isinstance(context.get("reason"), str) else context))
