"""Schemas keep their meaning on every way there and back."""

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from righttime.changes.schema import TableSchema, declare_table
from righttime.changes.types import canonical_schema, from_spark_json, list_type, map_type, to_spark_json

names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,7}", fullmatch=True)
comments = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
numbers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
plain = st.sampled_from([*numbers, pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
decimals = st.integers(1, 38).flatmap(lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale)))


def fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(
        lambda name, given, nullable, comment: pa.field(name, given, nullable=nullable, metadata=None if comment is None else {"comment": comment}),
        names,
        types,
        st.booleans(),
        st.none() | comments,
    )
    return st.lists(field, min_size=1, max_size=5, unique_by=lambda one: one.name.casefold())


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(inner.map(list_type), st.tuples(plain, inner).map(lambda pair: map_type(*pair)), fields(inner).map(pa.struct))


types = st.recursive(plain | decimals, nested, max_leaves=6)
schemas = fields(types).map(pa.schema)


@given(columns=schemas)
def test_a_canonical_schema_stays_as_it_is(columns: pa.Schema) -> None:
    """Canonical form is reached in one step."""
    assert canonical_schema(columns).equals(columns, check_metadata=True)


@given(columns=schemas)
def test_a_schema_written_as_ddl_reads_back_the_same(columns: pa.Schema) -> None:
    """The column list that we write means, to our reader, what it was written from."""
    table = declare_table("t", columns)
    assert declare_table("t", table.ddl()).columns.equals(table.columns, check_metadata=True)


@given(columns=schemas, comment=st.none() | comments)
def test_a_schema_written_as_json_reads_back_the_same(columns: pa.Schema, comment: str | None) -> None:
    """The JSON that Spark and Delta share loses nothing, and neither does the ledger's."""
    assert from_spark_json(to_spark_json(columns)).equals(columns, check_metadata=True)
    table = declare_table("t", columns, comment=comment)
    assert TableSchema.from_json(table.to_json()) == table


@given(columns=schemas)
def test_a_schema_survives_parquet_without_the_arrow_footer(columns: pa.Schema) -> None:
    """Files need no Arrow schema of their own: Parquet's types say it all for canonical columns."""
    sink = pa.BufferOutputStream()
    pq.write_table(columns.empty_table(), sink, store_schema=False)
    found = pq.read_schema(pa.BufferReader(sink.getvalue()))
    assert canonical_schema(found).types == columns.types
