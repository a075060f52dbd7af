"""What a user declares about a table, checked once and frozen.

In: a name, columns as a Spark column list or an Arrow schema, keys, partition columns.
Out: a `TableSchema` that every part reads.
Promise: a `TableSchema` from here fits memory, Delta and Spark alike; anything else is refused with `BadTable` before something exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from righttime.changes.ddl import format_columns, parse_columns
from righttime.changes.types import BadType, canonical_schema, from_spark_json, is_primitive, to_spark_json
from righttime.errors import BadTable

# A table's name is also its folder's name, on file systems that may not tell upper from lower case.
_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table: canonical columns, and what they mean. Make it with `declare_table`; the name is in lower case."""

    name: str
    columns: pa.Schema
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    comment: str | None = None
    in_memory: bool = True
    unique: bool = False

    def ddl(self) -> str:
        """Return the columns as a Spark column list."""
        return format_columns(self.columns)

    def to_json(self) -> str:
        """Return one line of JSON for the ledger."""
        content = {
            "name": self.name,
            "columns": to_spark_json(self.columns),
            "keys": self.keys,
            "partition_by": self.partition_by,
            "comment": self.comment,
            "in_memory": self.in_memory,
            "unique": self.unique,
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TableSchema:
        """Return what `to_json` wrote."""
        content: dict[str, Any] = json.loads(text)
        return cls(
            name=content["name"],
            columns=from_spark_json(content["columns"]),
            keys=tuple(content["keys"]),
            partition_by=tuple(content["partition_by"]),
            comment=content["comment"],
            in_memory=content["in_memory"],
            unique=content.get("unique", False),
        )


def declare_table(
    name: str,
    columns: str | pa.Schema,
    *,
    keys: Iterable[str] = (),
    partition_by: Iterable[str] = (),
    comment: str | None = None,
    in_memory: bool = True,
    unique: bool = False,
) -> TableSchema:
    """Check a declaration and return it frozen; raise `BadTable` with the reason.

    Table names are folded to lower case; column names keep theirs and are unique without regard to case. Key columns become NOT NULL.
    """
    if not _TABLE_NAME.fullmatch(str(name).lower()):
        raise BadTable(table=name, reason="its name is not made of the letters a to z, digits and _, beginning with a letter, at most 128")
    name = name.lower()
    try:
        given = parse_columns(columns) if isinstance(columns, str) else columns
        if not isinstance(given, pa.Schema):
            raise BadType(f"the columns are a {type(columns).__name__}, not a column list or an Arrow schema")
        canonical = canonical_schema(given)
        key_names = _chosen(canonical, keys, what="key")
        partition_names = _chosen(canonical, partition_by, what="partition column")
        _check_partitions(canonical, partition_names)
    except BadType as error:
        raise BadTable(table=name, reason=str(error)) from error
    if unique and not key_names:
        raise BadTable(table=name, reason="unique=True needs keys=")
    return TableSchema(name, _without_null(canonical, key_names), key_names, partition_names, comment, in_memory, unique)


def _chosen(columns: pa.Schema, names: Iterable[str], *, what: str) -> tuple[str, ...]:
    """Return the names as the columns spell them."""
    if isinstance(names, str):
        raise BadType(f"{what}s are given as a list of names, not as one text")
    if not isinstance(names, Iterable):
        raise BadType(f"{what}s are given as a list of names, not as {names!r}")
    spelled = {name.casefold(): name for name in columns.names}
    chosen: list[str] = []
    for name in names:
        column = spelled.get(str(name).casefold())
        if column is None:
            raise BadType(f"{what} {name!r} is not a column; the columns are {', '.join(columns.names)}")
        if column in chosen:
            raise BadType(f"{what} {name!r} is given twice")
        if not is_primitive(columns.field(column).type):
            raise BadType(f"{what} {name!r} has type {columns.field(column).type}; arrays, maps and structs cannot be one")
        chosen.append(column)
    return tuple(chosen)


def _check_partitions(columns: pa.Schema, names: tuple[str, ...]) -> None:
    if len(names) == len(columns):
        raise BadType("every column is a partition column; leave at least one for the files")
    for name in names:
        # Delta writes partition values as text, and its readers do not agree on the text of bytes.
        if columns.field(name).type == pa.binary():
            raise BadType(f"partition column {name!r} is BINARY; partition by another column")


def _without_null(columns: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    return pa.schema([field.with_nullable(False) if field.name in keys else field for field in columns])
