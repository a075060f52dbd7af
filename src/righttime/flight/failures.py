"""Failures: how an error crosses the wire and comes back as the same class, with the same code and context.

In: an exception on one side.
Out: the same `RightTimeError` on the other.
Promise: nothing but codes and contexts crosses; an error that is none of ours crosses without its text, which may hold anything.
"""

import json
from collections.abc import Mapping
from typing import Any

from righttime import errors
from righttime.errors import RightTimeError, ServiceFailed

_TEXT_MAX = 10_000


class Shown(str):
    """A value of another type, as its text; it looks in messages as the value itself would."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def failure_record(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON can hold it."""
    if not isinstance(error, RightTimeError):
        error = ServiceFailed(reason=type(error).__name__)
    return {"code": error.code, "context": {str(name): _plain(value) for name, value in error.context.items()}}


def failure_of(record: object) -> RightTimeError:
    """Return the error that `failure_record` wrote; one of a newer service that is not known here becomes `ServiceFailed`."""
    if not isinstance(record, Mapping) or not isinstance(record.get("context"), Mapping):
        return ServiceFailed(reason="an error that cannot be read")
    kind = _classes().get(str(record.get("code")))
    context = {str(name): _read(value) for name, value in record["context"].items()}
    if kind is None:
        return ServiceFailed(reason=f"{record.get('code')}: {context}")
    return kind(**context)


def failure_text(error: BaseException) -> bytes:
    """Return an error as the extra information of a Flight error."""
    return json.dumps(failure_record(error)).encode()


def failure_from_text(text: bytes) -> RightTimeError | None:
    """Return the error in the extra information of a Flight error; None if there is none of ours."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return failure_of(record) if isinstance(record, dict) and "code" in record else None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if value is None or isinstance(value, bool | int | float):
        return value
    return {"shown": repr(value)[:_TEXT_MAX]}


def _read(value: Any) -> Any:
    return Shown(value["shown"]) if isinstance(value, dict) and isinstance(value.get("shown"), str) else value


def _classes() -> dict[str, type[RightTimeError]]:
    return {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RightTimeError)}
