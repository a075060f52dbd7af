"""Files and folders that are on the disk when a call returns.

In: bytes and paths.
Out: synced files; `OSError` as the system raised it.
Promise: a failed write leaves no file behind, and no name is ever bound to half of its bytes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from righttime.errors import CommitFailed, WarehouseDamaged

TEMPORARY_PREFIX = "_righttime_"  # unlike other writers' names, so that a collection knows its own
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_new(path: Path, content: bytes | memoryview) -> None:
    """Write a file that does not exist yet and sync it; its folder is the caller's to sync."""
    descriptor = os.open(path, _NEW_FILE, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except BaseException:
        remove_quietly(path)
        raise
    finally:
        os.close(descriptor)


def put_if_absent(path: Path, content: bytes) -> None:
    """Bind a name to its whole content and sync both, or raise `FileExistsError` and change nothing."""
    # A link appears at once with all its bytes; a crash before it leaves only the temporary name, which readers skip.
    temporary = _temporary(path)
    write_new(temporary, content)
    try:
        os.link(temporary, path)
    finally:
        remove_quietly(temporary)
    try:
        sync_folder(path.parent)
    except OSError:
        # Nobody was told of it, so it may go again; kept, it would stand in the way of the next try.
        remove_quietly(path)
        raise


def replace(path: Path, content: bytes) -> None:
    """Put new content in the place of the old, whole at any time, and sync it with its folder."""
    temporary = _temporary(path)
    write_new(temporary, content)
    temporary.replace(path)
    sync_folder(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}.tmp")


def sync_file(path: Path) -> None:
    """Sync a file that another process wrote."""
    _sync(path, os.O_RDONLY)


def sync_files(paths: Sequence[Path]) -> None:
    """Sync files that somebody else wrote; many take little longer than one, for all are on their way to the disk before the first is waited for."""
    with ExitStack() as opened:
        descriptors = []
        for path in paths:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            opened.callback(os.close, descriptors[-1])
        if hasattr(os, "posix_fadvise"):
            for descriptor in descriptors:
                with suppress(OSError):  # only advice: the kernel begins to write what is not on the disk, and keeps it until it is
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for descriptor in descriptors:
            os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_quietly(path: Path) -> None:
    """Remove a file if that is possible; what stays is found by a later collection."""
    with suppress(OSError):
        path.unlink()


@contextmanager
def coded_errors(folder: Path, *, step: str, batch_id: str) -> Iterator[None]:
    """Turn the system's errors into ours: a missing table is damage, anything else (disk full, …) a failed commit."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WarehouseDamaged(path=str(folder), reason=f"{error.filename or 'a folder'} is missing") from error
    except OSError as error:
        reason = f"{error.strerror or type(error).__name__} ({folder})"
        raise CommitFailed(source=batch_id, step=step, reason=reason) from error
