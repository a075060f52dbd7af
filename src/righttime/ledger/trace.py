"""The commit trace: how far each source had come in memory, readable after the process was killed.

In: every commit's number, time and running row count, noted without any system call.
Out: after a crash, the newest commit of each source, so that what was lost can be named.
Promise: a note survives SIGKILL at any instruction and is read back whole; after a power failure notes may be missing, never invented.
"""

import mmap
import os
import secrets
import struct
import threading
from pathlib import Path

from righttime.errors import BadSource

TRACE_FILE = "trace.bin"

_HEADER = struct.Struct("@8s16s")  # magic, trace id
_MAGIC = b"RTTRACE1"
_HEADER_BYTES = 64
# A slot: two records that take turns, then the name of the source. The first and the last word of a record are the same number:
# words are stored in order, so a record that was cut short has two different ones (or zero), and its twin still holds the note before.
_RECORD = struct.Struct("@qqqq")  # number, time_us, rows_total, number
_NAME_LENGTH = struct.Struct("@H")
_TWIN = _RECORD.size
_NAME_AT = 2 * _RECORD.size
_SLOT_BYTES = 256
_NAME_BYTES_MAX = _SLOT_BYTES - _NAME_AT - _NAME_LENGTH.size
_SLOTS_PER_GROWTH = 64

Note = tuple[int, int, int]
"""Number and time of a source's newest commit, and its rows so far."""


class CommitTrace:
    """The notes of one writer process. `record` may be called for different slots at once, for one slot by one thread at a time."""

    def __init__(self, path: Path, *, sources_max: int) -> None:
        self._path = path
        self._sources_max = sources_max
        self._growing = threading.Lock()

    @classmethod
    def open(cls, folder: Path, *, sources_max: int = 4096) -> "CommitTrace":
        """Open the trace of the warehouse in `folder` with the notes that are in it; an unreadable one is begun anew."""
        trace = cls(folder / TRACE_FILE, sources_max=sources_max)
        if _is_trace(trace._path):
            trace._load()
        else:
            trace.reset()
        return trace

    @property
    def trace_id(self) -> str:
        """A new one after every reset: the same losses, found twice because recovery was killed, are known by it."""
        return bytes(_HEADER.unpack_from(self._map)[1]).decode()

    def slot(self, source: str) -> int:
        """Return the slot of `source`, given to it now if it has none."""
        with self._growing:
            found = self._slots.get(source)
            return self._add(source) if found is None else found

    def record(self, slot: int, number: int, time_us: int, rows_total: int) -> None:
        """Note a commit (numbers from 1, ascending); well under a microsecond, no system call."""
        at = self._next_at[slot]
        _pack_record(self._map, at, number, time_us, rows_total, number)
        self._next_at[slot] = at ^ _TWIN

    def release(self, source: str) -> None:
        """Free the slot of a source whose commits are all durable; its slot number may go to another source."""
        with self._growing:
            slot = self._slots.pop(source, None)
            if slot is not None:
                _NAME_LENGTH.pack_into(self._map, _slot_at(slot) + _NAME_AT, 0)
                self._free.append(slot)

    def read(self) -> dict[str, Note]:
        """Return the newest whole note of every source that has one."""
        with self._growing:
            newest = {source: max(self._note(_slot_at(slot)), self._note(_slot_at(slot) + _TWIN)) for source, slot in self._slots.items()}
        return {source: note for source, note in newest.items() if note[0] > 0}

    def reset(self) -> None:
        """Forget all notes and slots, in one step: a kill leaves the old trace or the new one."""
        fresh = self._path.with_name(self._path.name + ".new")
        header = _HEADER.pack(_MAGIC, secrets.token_hex(8).encode())
        fresh.write_bytes(header.ljust(_HEADER_BYTES + _SLOTS_PER_GROWTH * _SLOT_BYTES, b"\0"))
        fresh.replace(self._path)
        self._load()

    def close(self) -> None:
        """Let go of the file; its notes stay in it."""
        self._map.close()

    def _load(self) -> None:
        self._map = _map(self._path)
        count = (len(self._map) - _HEADER_BYTES) // _SLOT_BYTES
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._next_at: list[int] = []
        for slot in range(count):
            at = _slot_at(slot)
            self._next_at.append(at + _TWIN if self._note(at) > self._note(at + _TWIN) else at)
            source = self._name(at)
            if source:
                self._slots[source] = slot
            else:
                self._free.append(slot)
        self._free.reverse()

    def _add(self, source: str) -> int:
        name = source.encode(errors="replace")
        if not 0 < len(name) <= _NAME_BYTES_MAX:
            raise BadSource(source=source, reason=f"the name of a source has 1 to {_NAME_BYTES_MAX} bytes")
        if len(self._slots) >= self._sources_max:
            raise BadSource(source=source, reason=f"{len(self._slots)} sources have commits that are not durable yet")
        if not self._free:
            self._grow()
        slot = self._free.pop()
        at = _slot_at(slot)
        # The length comes last: it is what makes the slot count.
        self._map[at : at + _NAME_AT] = bytes(_NAME_AT)
        begin = at + _NAME_AT + _NAME_LENGTH.size
        self._map[begin : begin + len(name)] = name
        _NAME_LENGTH.pack_into(self._map, at + _NAME_AT, len(name))
        self._slots[source] = slot
        return slot

    def _grow(self) -> None:
        old = len(self._next_at)
        new = old + _SLOTS_PER_GROWTH
        # Written, not only extended: on a full disk this fails here, where touching a hole in the file would kill the process.
        with self._path.open("r+b") as file:
            file.seek(_slot_at(old))
            file.write(bytes((new - old) * _SLOT_BYTES))
        # The old map is left to its users: both show the same pages, so a thread that is recording through it loses nothing.
        self._map = _map(self._path)
        self._next_at.extend(_slot_at(slot) for slot in range(old, new))
        self._free.extend(reversed(range(old, new)))

    def _note(self, at: int) -> Note:
        number, time_us, rows_total, number_again = _RECORD.unpack_from(self._map, at)
        return (number, time_us, rows_total) if number == number_again else (0, 0, 0)

    def _name(self, at: int) -> str:
        (length,) = _NAME_LENGTH.unpack_from(self._map, at + _NAME_AT)
        begin = at + _NAME_AT + _NAME_LENGTH.size
        # Bytes that are no name come only from a power failure; such a slot has no note worth reading.
        return self._map[begin : begin + length].decode(errors="replace") if length <= _NAME_BYTES_MAX else ""


_pack_record = _RECORD.pack_into


def _slot_at(slot: int) -> int:
    return _HEADER_BYTES + slot * _SLOT_BYTES


def _is_trace(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC and os.fstat(file.fileno()).st_size >= _slot_at(1)
    except FileNotFoundError:
        return False


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
