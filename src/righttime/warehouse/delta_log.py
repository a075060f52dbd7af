"""The Delta log of one table: entries written exactly once, and read back.

In: data files to add or remove, a version number.
Out: a synced entry under that number, or `FileExistsError` if somebody was there first.
Promise: any Delta reader understands an entry from here; a reader never sees half of one; entries of ours carry a batch id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.types as kind

from righttime.changes.schema import TableSchema
from righttime.changes.types import TIMESTAMP_NTZ, to_spark_json
from righttime.errors import WarehouseDamaged
from righttime.warehouse.durable import put_if_absent
from righttime.warehouse.store import DataFile, TableVersion

APP_ID = "righttime"
LOG_FOLDER = "_delta_log"
_VERSIONED = re.compile(r"(\d{20})\.(json|checkpoint(\.[^/]+)?\.parquet)")

Action = dict[str, Any]


class DeltaLog:
    """The log folder of one table; keeps nothing in memory."""

    def __init__(self, table_folder: Path) -> None:
        self.table_folder = table_folder
        self.folder = table_folder / LOG_FOLDER

    def put(self, version: int, actions: Iterable[Action]) -> None:
        """Write one entry and sync it; raise `FileExistsError` if the version is taken."""
        text = "\n".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
        put_if_absent(self.entry_path(version), text.encode() + b"\n")

    def entry_path(self, version: int) -> Path:
        return self.folder / f"{version:020d}.json"

    def has(self, version: int) -> bool:
        """Say whether the log reaches `version`, whether as an entry or inside a checkpoint."""
        return self.entry_path(version).exists() or version <= self.newest()

    def read(self, version: int) -> list[Action]:
        """Return the actions of one entry; raise `WarehouseDamaged` if it is not there or not readable."""
        path = self.entry_path(version)
        try:
            return [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        except OSError as error:
            raise WarehouseDamaged(path=str(path), reason=f"a log entry cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise WarehouseDamaged(path=str(path), reason="a log entry is not JSON") from error

    def applied(self, version: int, newest: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield the entries after `version` up to `newest`."""
        for number in range(version + 1, newest + 1):
            yield number, self.read(number)

    def newest(self, *, at_least: int | None = None) -> int:
        """Return the newest version; with `at_least`, a version known to exist, only later names are looked for."""
        if at_least is not None and self.entry_path(at_least).exists():
            while self.entry_path(at_least + 1).exists():
                at_least += 1
            return at_least
        versions = [version for version, _ in self.names()]
        if not versions:
            raise WarehouseDamaged(path=str(self.table_folder), reason="the table's log is missing or empty")
        return max(versions)

    def entries(self) -> list[int]:
        """Return the versions that have an entry of their own, in order."""
        return sorted(version for version, name in self.names() if name.endswith(".json"))

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield the files of the log that belong to a version."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WarehouseDamaged(path=str(self.table_folder), reason="the table's folder or its log is missing") from error
        for name in names:
            match = _VERSIONED.fullmatch(name)
            if match:
                yield int(match[1]), name

    def describe(self, version: int) -> TableVersion:
        """Return what an entry says about itself."""
        actions = self.read(version)
        about: Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        return TableVersion(version, int(about.get("timestamp", 0)) * 1000, str(about.get("operation", "UNKNOWN")), batch_id_of(actions))


def creation(table: TableSchema, *, time_us: int) -> list[Action]:
    """Return the actions of version 0."""
    metadata = {
        "id": str(uuid4()),
        "name": table.name,
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(to_spark_json(table.columns), separators=(",", ":"), ensure_ascii=False),
        "partitionColumns": list(table.partition_by),
        # Old entries go with the versions they describe, by our own collection, never by age alone.
        "configuration": {"delta.enableExpiredLogCleanup": "false"},
        "createdTime": time_us // 1000,
    }
    return [_about("CREATE TABLE", {}, batch_id="create", time_us=time_us), {"protocol": _protocol(table.columns)}, {"metaData": metadata}]


def _protocol(columns: pa.Schema) -> Action:
    if any(_contains_ntz(field.type) for field in columns):
        features = ["timestampNtz"]
        return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": [*features, "appendOnly", "invariants"]}
    return {"minReaderVersion": 1, "minWriterVersion": 2}


def _contains_ntz(given: pa.DataType) -> bool:
    if kind.is_nested(given):
        return any(_contains_ntz(given.field(number).type) for number in range(given.num_fields))
    return bool(given == TIMESTAMP_NTZ)


def change(files: Sequence[DataFile], *, removed: Iterable[Action] = (), batch_id: str, batch_number: int, time_us: int) -> list[Action]:
    """Return the actions of a commit that adds files and takes out those whose add actions are `removed`.

    The batch number lets other writers of ours see what is in.
    """
    removes = [{"remove": _remove(add, time_us=time_us)} for add in removed]
    operation, parameters = _operation(files, removes)
    about = _about(operation, parameters, batch_id=batch_id, time_us=time_us)
    about["commitInfo"]["isBlindAppend"] = not removes
    taken = {"txn": {"appId": APP_ID, "version": batch_number, "lastUpdated": time_us // 1000}}
    return [about, taken, *removes, *({"add": _add(file, time_us=time_us)} for file in files)]


def _operation(files: Sequence[DataFile], removes: Sequence[Action]) -> tuple[str, dict[str, str]]:
    if not removes:
        return "WRITE", {"mode": "Append", "partitionBy": "[]"}
    return ("MERGE" if files else "DELETE"), {"predicate": "[]"}


def _add(file: DataFile, *, time_us: int) -> Action:
    return {
        "path": quote(file.path, safe="/-_.~="),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": time_us // 1000,
        "dataChange": True,
        "stats": file.stats_json,
    }


def reversal(added: Iterable[Action], removed: Iterable[Action], *, to_version: int, time_us: int) -> list[Action]:
    """Return the actions of a commit that takes added files out again and brings removed ones back; both given by their add actions."""
    about = _about("RESTORE", {"version": str(to_version)}, batch_id=f"undo-{to_version}", time_us=time_us)
    removes = ({"remove": _remove(add, time_us=time_us)} for add in added)
    return [about, *removes, *({"add": {**add, "dataChange": True}} for add in removed)]


def _remove(add: Action, *, time_us: int) -> Action:
    return {
        "path": add["path"],
        "deletionTimestamp": time_us // 1000,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": add["partitionValues"],
        "size": add["size"],
        "stats": add.get("stats"),
    }


def _about(operation: str, parameters: dict[str, str], *, batch_id: str, time_us: int) -> Action:
    return {
        "commitInfo": {
            "timestamp": time_us // 1000,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": APP_ID,
            "righttimeBatch": batch_id,
        }
    }


def batch_id_of(actions: Iterable[Action]) -> str | None:
    """Return the batch id of an entry that this package wrote, None for anybody else's."""
    for action in actions:
        about = action.get("commitInfo") or {}
        if about.get("engineInfo") == APP_ID:
            return str(about.get("righttimeBatch"))
    return None


def changes_rows(actions: Iterable[Action]) -> bool:
    """Tell whether an entry does more to rows than to move them into other files, as its writer says."""
    files = (action.get("add") or action.get("remove") for action in actions)
    return any(file.get("dataChange", True) for file in files if file is not None)


def local_path(table_folder: Path, path: str) -> str:
    """Return the file that a log path names: relative to the table or a file URI, percent-encoded."""
    decoded = unquote(path)
    return decoded.removeprefix("file://") if decoded.startswith("file://") else f"{table_folder}/{decoded}"
