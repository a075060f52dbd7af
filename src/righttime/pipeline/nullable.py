"""Types in which everything may be null.

In: types as Spark tells them of a plan.
Out: the same, with nulls allowed at every place that can have them.
Promise: pure; no value becomes another one. Where a struct is null, Arrow has nulls in the place of its fields, and takes none where a field may not be null:
neither to cast rows nor to write them.
"""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from righttime.changes.types import list_type, map_type


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the columns with nulls allowed, in values inside of others, too; keys of maps never are null."""
    return pa.schema([pa.field(field.name, _with_nulls(field.type)) for field in schema])


def arrow_columns(columns: StructType) -> pa.Schema:
    """Return the columns of a frame as rows of it are kept."""
    return nullable(pa.schema([pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in columns]))


def with_nulls(rows: pa.Table) -> pa.Table:
    """Return the same rows in columns that may have nulls; nothing is copied."""
    return rows.cast(nullable(rows.schema))


def _with_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        # What a field says beside its type stays: by that Spark tells a variant from a struct.
        return pa.struct([field.with_type(_with_nulls(field.type)).with_nullable(True) for field in kind])
    if pa.types.is_map(kind):
        return map_type(_with_nulls(kind.key_type), _with_nulls(kind.item_type))
    return list_type(_with_nulls(kind.value_type)) if pa.types.is_list(kind) else kind
