"""Delta checkpoints that are whole on the disk before a reader can find them.

In: a log and a version.
Out: `<version>.checkpoint.parquet` and `_last_checkpoint`.
Promise: power loss at any moment leaves the log readable, with the checkpoint or without.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from righttime.errors import WarehouseDamaged
from righttime.warehouse.delta_log import LOG_FOLDER, DeltaLog
from righttime.warehouse.durable import replace, sync_file, sync_folder


def write_checkpoint(log: DeltaLog, version: int, *, scratch: Path, writing: AbstractContextManager[object]) -> None:
    """Let delta-rs write the checkpoint in the new folder `scratch`, then sync it and put it into the log under the lock `writing`."""
    # delta-rs syncs nothing and names the checkpoint in the same breath; done on the real log, a power cut could
    # leave a pointer to an empty file. So it works on a scratch table made of links to the same entries.
    try:
        _link_entries(log, scratch / LOG_FOLDER, version)
        _create(scratch, version, table_folder=log.table_folder)
        name = f"{version:020d}.checkpoint.parquet"
        made = scratch / LOG_FOLDER / name
        sync_file(made)
        made.replace(log.folder / name)
        sync_folder(log.folder)
        with writing:
            replace(log.folder / "_last_checkpoint", (scratch / LOG_FOLDER / "_last_checkpoint").read_bytes())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _link_entries(log: DeltaLog, folder: Path, version: int) -> None:
    """Link what a replay up to `version` needs: the newest checkpoint below it, and the entries since."""
    names = [(number, name) for number, name in log.names() if number <= version]
    start = max((number for number, name in names if name.endswith(".checkpoint.parquet") and number < version), default=0)
    folder.mkdir(parents=True)
    for number, name in names:
        if number >= start and not (number == version and name.endswith(".parquet")):
            os.link(log.folder / name, folder / name)


def _create(scratch: Path, version: int, *, table_folder: Path) -> None:
    try:
        DeltaTable(str(scratch), version=version).create_checkpoint()
    except DeltaError as error:
        raise WarehouseDamaged(path=str(table_folder), reason=f"version {version} cannot be read ({str(error).partition(chr(10))[0]})") from error
