"""The writer lock: at most one process writes an embedded warehouse.

In: a warehouse folder.
Out: a held lock, or `WarehouseLocked` naming the process that holds it.
Promise: the operating system keeps the lock, so it ends with its process, however that one dies.
"""

import fcntl
import os
import socket
import struct
import sys
import weakref
from contextlib import suppress
from pathlib import Path

from righttime.errors import NotAWarehouse, WarehouseLocked

LOCK_FILE = "writer.lock"

_BYTE_LOCK = struct.Struct("@hhqqi4x")  # C's struct flock: type, whence, start, length, process


class WriterLock:
    """The exclusive right to write one warehouse folder; a second taker is refused, in this process too."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held.add(self)

    @classmethod
    def acquire(cls, folder: Path) -> "WriterLock":
        """Take the lock without waiting. The file stays when the lock goes: removing it would let two takers hold two files."""
        try:
            fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise NotAWarehouse(path=str(folder), reason=f"it cannot be locked for writing ({error}), which read_only=True does not need") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_byte(fd, fcntl.F_WRLCK)
            _write_holder(fd)
        except BlockingIOError:
            os.close(fd)
            raise locked(folder) from None
        except OSError as error:
            os.close(fd)
            raise NotAWarehouse(path=str(folder), reason=f"it cannot be locked ({error})") from error
        return cls(fd)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            # Unlocking, not only closing: a forked child that still has the file open must not keep the lock.
            _lock_byte(self._fd, fcntl.F_UNLCK)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.abandon()

    def abandon(self) -> None:
        """Close this process's end of the lock without giving up the lock itself."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def locked(folder: Path) -> WarehouseLocked:
    """Return the error that names the holder of the folder's lock, as far as it has written its name down."""
    pid, host, _ = _holder(folder)
    return WarehouseLocked(path=str(folder), pid=int(pid) if pid else "unknown", host=host or "unknown")


def living_writer(folder: Path) -> int | None:
    """Return the process that writes the warehouse, by its own number, None if there is none. One on another host counts as alive."""
    pid, host, started = _holder(folder)
    if not pid:
        return None
    # The lock first: the writer may be in another namespace of processes (a container beside this one), where its number means nothing here.
    if host == socket.gethostname() and not _is_held(folder):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return int(pid)  # alive, and somebody else's
        if started != _started(int(pid)):
            return None  # the writer was killed, and another process has its number
    return int(pid)


def _lock_byte(fd: int, kind: int) -> None:
    """Lock or unlock a byte of the file, beside the lock itself: others can ask for this one without taking it, so that they keep no writer out."""
    if sys.platform == "linux":
        with suppress(OSError):  # a file system without such locks; there the process's number has to do
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _BYTE_LOCK.pack(kind, os.SEEK_SET, 0, 1, 0))


def _is_held(folder: Path) -> bool:
    """Tell whether a writer on this host certainly has the lock; False where that cannot be asked."""
    if sys.platform == "linux":
        with suppress(OSError), (folder / LOCK_FILE).open("rb") as file:
            found = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, _BYTE_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            return bool(_BYTE_LOCK.unpack(found)[0] != fcntl.F_UNLCK)
    return False


def _holder(folder: Path) -> tuple[str, str, str]:
    """Return process, host and start of the process that wrote its name into the lock file; empty texts if there is none."""
    try:
        pid, _, rest = (folder / LOCK_FILE).read_text().strip().partition(" ")
    except OSError:
        return "", "", ""
    host, _, started = rest.partition(" ")
    return (pid, host, started) if pid.isdigit() else ("", "", "")


def _started(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; empty where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _write_holder(fd: int) -> None:
    holder = f"{os.getpid()} {socket.gethostname()} {_started(os.getpid())}\n".encode()
    os.pwrite(fd, holder, 0)
    os.ftruncate(fd, len(holder))


_held: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _abandon_all() -> None:
    for lock in list(_held):
        lock.abandon()


# A forked child shares the open file and with it the lock; it would keep a killed parent's warehouse locked.
os.register_at_fork(after_in_child=_abandon_all)
