"""Folders for warehouses that live for one crash test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def crash_folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: SIGKILL spares the page cache either way, and an fsync costs nothing there."""
    base = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="crash-test-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
