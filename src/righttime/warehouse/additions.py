"""What the log said when it added a file, found again: to take the file out, and to bring it back.

In: a log, a version, files of that version.
Out: their add actions, word for word.
Promise: every file is found or `WarehouseDamaged` says which is not; reading ends at the newest checkpoint that knows the rest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from righttime.errors import WarehouseDamaged
from righttime.warehouse.delta_log import Action, DeltaLog, local_path
from righttime.warehouse.scan import reading_errors

_KEPT = ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags")


def additions(log: DeltaLog, version: int, files: Collection[str]) -> dict[str, Action]:
    """Return the add actions of files that are in `version`, by absolute path."""
    missing = set(files)
    found: dict[str, Action] = {}
    # Newest first; of one number the entry before the checkpoint, which costs more and knows all that came before, too.
    for number, name in sorted(log.names(), key=lambda named: (-named[0], not named[1].endswith(".json"))):
        if not missing:
            break
        if number > version:
            continue
        adds = _of_checkpoint(log.folder / name) if name.endswith(".parquet") else _of_entry(log.read(number))
        for add in adds:
            path = local_path(log.table_folder, add["path"])
            if path in missing:
                found[path] = add
        missing.difference_update(found)
    if missing:
        raise WarehouseDamaged(path=min(missing), reason=f"the table's log does not say how this file came into version {version}")
    return found


def _of_entry(actions: Iterable[Action]) -> Iterator[Action]:
    return (action["add"] for action in actions if "add" in action)


def _of_checkpoint(path: Path) -> Iterator[Action]:
    with reading_errors(str(path)), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[f"add.{name}" for name in _KEPT]):
            for add in batch.column(0).to_pylist():
                if add is not None:
                    yield _as_in_an_entry(add)


def _as_in_an_entry(add: dict[str, Any]) -> Action:
    maps = {name: dict(add[name]) for name in ("partitionValues", "tags") if add.get(name) is not None}
    return {name: value for name, value in {**add, **maps}.items() if value is not None}


def rows_of(add: Action) -> int | None:
    """Return how many rows an added file has, if its writer said so."""
    counted: int | None = json.loads(add.get("stats") or "{}").get("numRecords")
    return counted
