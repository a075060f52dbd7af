"""Frames: how one message is written, a small header and the bytes that go with it.

In: a JSON header and parts such as Arrow batches.
Out: one buffer, and the same again.
Promise: bytes from anywhere are read without harm: whatever is not a frame raises `BadMessage`, whatever is too long `MessageTooLarge`.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from righttime.errors import BadMessage, MessageTooLarge

_MAGIC = b"RTF1"
_HEAD = struct.Struct("<4sI")
_PARTS = "_parts"
_PARTS_MAX = 1_000_000
_ALIGNED = 8  # Arrow reads numbers in place only from here
_T = TypeVar("_T")


def still_there() -> bool:
    """Say of a client that nobody can look after that it is not gone."""
    return False


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was sent; its accessors raise `BadMessage` where it does not hold what it should. `gone` tells whether its sender is gone."""

    header: Mapping[str, Any]
    parts: Sequence[pa.Buffer] = ()
    gone: Callable[[], bool] = still_there

    def text(self, name: str) -> str:
        return self._typed(name, str)

    def number(self, name: str) -> int:
        return self._typed(name, int)

    def flag(self, name: str) -> bool:
        return self._typed(name, bool)

    def listed(self, name: str) -> list[Any]:
        return self._typed(name, list)

    def mapping(self, name: str) -> dict[str, Any]:
        return self._typed(name, dict)

    def seconds(self, name: str) -> float:
        value = self.header.get(name)
        if type(value) is int:
            value = float(value)
        if not isinstance(value, float) or not 0 <= value < 1e9:
            raise BadMessage(reason=f"{name!r} is not a number of seconds")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.header.get(name) is None else self.text(name)

    def optional_number(self, name: str) -> int | None:
        return None if self.header.get(name) is None else self.number(name)

    def _typed(self, name: str, kind: type[_T]) -> _T:
        return typed(self.header.get(name), kind, what=repr(name))


def typed(value: object, kind: type[_T], *, what: str) -> _T:
    """Return a value of a message if it is of the type that it should be."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadMessage(reason=f"{what} is not a {kind.__name__}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise BadMessage(reason=f"{what} is a number of more than 64 bits")
    return value


def write_frame(header: Mapping[str, Any], parts: Sequence[Any] = (), *, bytes_max: int | None = None) -> pa.Buffer:
    """Return one message as bytes."""
    buffers = [part if isinstance(part, pa.Buffer) else pa.py_buffer(part) for part in parts]
    text = json.dumps({**header, _PARTS: [buffer.size for buffer in buffers]} if buffers else header, separators=(",", ":")).encode()
    text += b" " * (-(_HEAD.size + len(text)) % _ALIGNED)
    size = _HEAD.size + len(text) + sum(buffer.size + -buffer.size % _ALIGNED for buffer in buffers)
    if bytes_max is not None and size > bytes_max:
        raise MessageTooLarge(size=size, bound=bytes_max)
    if not buffers:
        return pa.py_buffer(_HEAD.pack(_MAGIC, len(text)) + text)
    pieces = [_HEAD.pack(_MAGIC, len(text)), text]
    for buffer in buffers:
        pieces += [buffer, b"\0" * (-buffer.size % _ALIGNED)]
    return pa.py_buffer(b"".join(pieces))


def read_frame(frame: pa.Buffer | bytes, *, bytes_max: int) -> Message:
    """Read what `write_frame` wrote; the parts are views of the same bytes."""
    buffer = frame if isinstance(frame, pa.Buffer) else pa.py_buffer(frame)
    if buffer.size > bytes_max:
        raise MessageTooLarge(size=buffer.size, bound=bytes_max)
    view = memoryview(buffer)
    if len(view) < _HEAD.size:
        raise BadMessage(reason="it is too short")
    magic, length = _HEAD.unpack(view[: _HEAD.size])
    if magic != _MAGIC or length > len(view) - _HEAD.size:
        raise BadMessage(reason="it does not begin like a message")
    header = _header(bytes(view[_HEAD.size : _HEAD.size + length]))
    return Message(header, _parts(buffer, header, _HEAD.size + length))


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(reason="its header is no JSON") from error
    return typed(header, dict, what="its header")


def _parts(buffer: pa.Buffer, header: dict[str, Any], begin: int) -> list[pa.Buffer]:
    sizes = typed(header.get(_PARTS, []), list, what="the list of parts")
    if len(sizes) > _PARTS_MAX:
        raise BadMessage(reason="it has too many parts")
    parts = []
    for size in sizes:
        if type(size) is not int or size < 0 or size > buffer.size - begin:
            raise BadMessage(reason="a part is longer than the message")
        parts.append(buffer.slice(begin, size))
        begin += size + -size % _ALIGNED
    return parts
