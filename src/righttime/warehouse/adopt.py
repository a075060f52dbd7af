"""Whether a version that another Delta writer made can be read here as it is.

In: a table's declaration and a version of its folder.
Out: nothing, or `BadTable` with what stands in the way.
Promise: after this check the version's plain file list, read with the declared columns, gives exactly the rows a Delta reader sees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from righttime.changes.schema import TableSchema
from righttime.changes.types import BadType, from_spark_json
from righttime.errors import BadTable, WarehouseDamaged
from righttime.warehouse.files import OWN_PREFIX

_FEATURES = {"timestampNtz"}


def check_version(table: TableSchema, folder: Path, version: int, *, files: Iterable[str]) -> None:
    """Raise `BadTable` if the version has other columns, or rows that are not simply those of its files."""
    try:
        found = DeltaTable(str(folder), version=version)
        schema, protocol, partition_by = found.schema().to_json(), found.protocol(), found.metadata().partition_columns
    except (DeltaError, OSError) as error:
        raise WarehouseDamaged(path=str(folder), reason=f"version {version} cannot be read ({str(error).partition(chr(10))[0]})") from error
    reason = (
        _features_reason(protocol.min_reader_version, protocol.reader_features or ())
        or _columns_reason(table, schema, tuple(partition_by))
        or _files_reason(table, files)
    )
    if reason:
        raise BadTable(table=table.name, reason=f"version {version} {reason}")


def _features_reason(reader_version: int, features: Iterable[str]) -> str | None:
    # Version 2 is column mapping; deletion vectors and the like are named features of version 3.
    unknown = sorted(set(features) - _FEATURES)
    if reader_version == 2 or unknown:
        return f"needs a reader that knows {', '.join(unknown) or 'column mapping'}"
    return None


def _columns_reason(table: TableSchema, schema: str, partition_by: tuple[str, ...]) -> str | None:
    try:
        columns = from_spark_json(json.loads(schema))
    except BadType as error:
        return f"has a column that is not possible here ({error})"
    if not columns.equals(table.columns) or partition_by != table.partition_by:
        return f"has other columns ({columns.to_string(show_field_metadata=False)}; partitioned by {list(partition_by)})"
    return None


def _files_reason(table: TableSchema, files: Iterable[str]) -> str | None:
    """Say which file lacks a column; most writers leave partition columns out, and columns added later are not in older files."""
    for file in files:
        path = Path(file)
        if not path.name.startswith(OWN_PREFIX):
            missing = sorted(set(table.columns.names) - set(pq.read_schema(path).names))
            if missing:
                return f"has a file without the columns {missing} ({path.name}); insert its rows through a producer"
    return None
